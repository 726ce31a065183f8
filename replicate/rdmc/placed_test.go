package rdmc

import (
	"bytes"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// placed is a message in registered memory that counts the blocks that are copied.
type placed struct {
	Buffer
	copies atomic.Int64
}

func newPlaced(t *testing.T, d rdma.Device, size, block int) *placed {
	t.Helper()
	const offset = 24 // blocks need not be aligned
	region, err := d.AllocRegion(offset+max(size, 1), 0)
	if err != nil {
		t.Fatal(err)
	}
	return &placed{Buffer: Buffer{Data: region.Bytes()[offset:][:size], BlockSize: block, Region: region, Offset: offset}}
}

func (p *placed) ReadBlock(i uint64, buf []byte) error {
	p.copies.Add(1)
	return p.Buffer.ReadBlock(i, buf)
}

func (p *placed) WriteBlock(i uint64, buf []byte) error {
	p.copies.Add(1)
	return p.Buffer.WriteBlock(i, buf)
}

// TestPlacedMessages multicasts from and into registered memory, with windows as small as can be: no block is copied.
func TestPlacedMessages(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		const block, n = 1000, 5
		ds := devices(n)
		c := newCluster(t, ds)
		groups := c.all(GroupConfig{Number: 1, BlockSize: block, Window: 2})
		for i, size := range []int{0, 1, block, 30_500} {
			all := make([]*placed, n)
			for rank := range all {
				all[rank] = newPlaced(t, ds[rank], size, block)
			}
			copy(all[0].Data, randomMemory(uint64(i), size, block).data)
			root, err := groups[0].Send(Outgoing{Size: uint64(size), Source: all[0]})
			if err != nil {
				t.Fatal(err)
			}
			transfers := []*Transfer{root}
			for rank := 1; rank < n; rank++ {
				tr, err := groups[rank].Receive(root.Announcement(), Receiver{Sink: all[rank]})
				if err != nil {
					t.Fatal(err)
				}
				transfers = append(transfers, tr)
			}
			for rank, tr := range transfers {
				if err := tr.Wait(testContext(t)); err != nil || !bytes.Equal(all[rank].Data, all[0].Data) ||
					all[rank].copies.Load() != 0 {
					t.Fatalf("size %d rank %d: %v, bytes equal %v, %d copies", size, rank, err,
						bytes.Equal(all[rank].Data, all[0].Data), all[rank].copies.Load())
				}
			}
		}
		closeAll(t, groups)
	})
}

// TestPlacedKeepsWhatIsThere: blocks that a member has are relayed from where they are, and not received over it,
// which is seen by memory that cannot be written.
func TestPlacedKeepsWhatIsThere(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		const block, n, size = 1 << 16, 4, 20<<16 + 5
		ds := devices(n)
		c := newCluster(t, ds)
		groups := c.all(GroupConfig{Number: 1, BlockSize: block})
		want := randomMemory(1, size, block)
		root, err := groups[0].Send(Outgoing{Size: size, Source: want})
		if err != nil {
			t.Fatal(err)
		}
		var transfers []*Transfer
		var all [][]byte
		for rank := 1; rank < n; rank++ {
			region, err := ds[rank].AllocRegion(size, 0)
			if err != nil {
				t.Fatal(err)
			}
			mem, have := region.Bytes(), NewBitmap(BlockCount(size, block))
			for i := uint64(rank); i < have.Blocks(); i += 3 {
				have.Set(i)
				copy(mem[i*block:], want.at(i))
				if err := unix.Mprotect(mem[i*block:][:len(want.at(i))], unix.PROT_READ); err != nil {
					t.Fatal(err)
				}
			}
			tr, err := groups[rank].Receive(root.Announcement(),
				Receiver{Sink: Buffer{Data: mem, BlockSize: block, Region: region}, Have: have})
			if err != nil {
				t.Fatal(err)
			}
			transfers, all = append(transfers, tr), append(all, mem)
		}
		for i, tr := range transfers {
			if err := tr.Wait(testContext(t)); err != nil || !bytes.Equal(all[i], want.data) {
				t.Errorf("rank %d: %v, bytes equal %v", i+1, err, bytes.Equal(all[i], want.data))
			}
		}
		closeAll(t, groups)
	})
}

// TestPlacedWithoutAnnouncement: only the first block on a queue pair, which comes before it is known where it goes,
// is copied.
func TestPlacedWithoutAnnouncement(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		const block, n, size, messages = 1000, 5, 50_500, 6
		ds := devices(n)
		c := newCluster(t, ds)
		got := make([][]*placed, n)
		stored := make(chan error, n*messages)
		var groups []*Group
		for rank, e := range c.engines {
			g, err := e.NewGroup(GroupConfig{
				Number: 1, BlockSize: block, Members: make([]string, n), Rank: rank, Unannounced: true, SilenceTimeout: starved,
				Incoming: func(size uint64) (Sink, error) {
					p := newPlaced(t, ds[rank], int(size), block)
					got[rank] = append(got[rank], p)
					return p, nil
				},
				Stored: func(tr *Transfer) {
					if seq := tr.Announcement().Seq; int(seq) > len(got[rank]) {
						stored <- fmt.Errorf("rank %d: message %d is stored before it began", rank, seq)
					}
					stored <- tr.Err()
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			groups = append(groups, g)
		}
		connect(t, groups)
		var sent []*memory
		for i := range messages {
			sent = append(sent, randomMemory(uint64(i), size, block))
			if _, err := groups[0].Send(Outgoing{Size: size, Source: sent[i]}); err != nil {
				t.Fatal(err)
			}
		}
		for range (n - 1) * messages {
			if err := <-stored; err != nil {
				t.Fatal(err)
			}
		}
		closeAll(t, groups)
		for rank := 1; rank < n; rank++ {
			for i, p := range got[rank] {
				if copies, lanes := p.copies.Load(), int64(len(groups[rank].links.ends)); !bytes.Equal(p.Data, sent[i].data) ||
					copies > lanes {
					t.Errorf("rank %d message %d: bytes equal %v, %d blocks copied, %d queue pairs", rank, i,
						bytes.Equal(p.Data, sent[i].data), copies, lanes)
				}
			}
		}
	})
}

// outside is a message that is said to lie where there is no memory.
type outside struct {
	*memory
	sge rdma.SGE
}

func (o outside) Place(uint64, int) rdma.SGE { return o.sge }

// TestPlacedOutsideIsRefused: a wrong place fails the group at its own member, not at a neighbour.
func TestPlacedOutsideIsRefused(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		for _, bad := range []rdma.SGE{{Offset: 1, Length: 1000}, {Offset: -1, Length: 1000}, {Length: 999},
			{Offset: 1 << 40, Length: 1000}} {
			ds := devices(2)
			c := newCluster(t, ds)
			groups := c.all(GroupConfig{Number: 1, BlockSize: 1000})
			region, err := ds[1].AllocRegion(1000, 0)
			if err != nil {
				t.Fatal(err)
			}
			bad.Region = region
			root, err := groups[0].Send(Outgoing{Size: 1000, Source: randomMemory(1, 1000, 1000)})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := groups[1].Receive(root.Announcement(),
				Receiver{Sink: outside{newMemory(1000, 1000), bad}}); err != nil {
				t.Fatal(err)
			}
			var failed *GroupError
			if err := root.Wait(testContext(t)); !errors.As(err, &failed) || failed.Reason != ReasonSink ||
				len(failed.Suspects) != 1 || failed.Suspects[0] != 1 {
				t.Errorf("%+v: %v", bad, err)
			}
		}
	})
}

// TestBufferInRegionIsBounded: a message comes that is larger than the buffer that Incoming returns for it, and the
// buffer's region goes on behind it. The group fails, and what is behind the buffer stays as it was.
func TestBufferInRegionIsBounded(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		const block, room, size = 1000, 12_500, 20_000
		ds := devices(2)
		c := newCluster(t, ds)
		region, err := ds[1].AllocRegion(size, 0)
		if err != nil {
			t.Fatal(err)
		}
		cfg := GroupConfig{Number: 1, Members: make([]string, 2), BlockSize: block, SmallBytes: -1, Unannounced: true,
			SilenceTimeout: starved, Incoming: func(uint64) (Sink, error) {
				return Buffer{Data: region.Bytes()[:room], BlockSize: block, Region: region}, nil
			}}
		var groups []*Group
		for rank, e := range c.engines {
			cfg.Rank = rank
			g, err := e.NewGroup(cfg)
			if err != nil {
				t.Fatal(err)
			}
			groups = append(groups, g)
		}
		connect(t, groups)
		tr, err := groups[0].Send(Outgoing{Size: size, Source: randomMemory(1, size, block)})
		if err != nil {
			t.Fatal(err)
		}
		var failure *GroupError
		if err := tr.Wait(testContext(t)); !errors.As(err, &failure) || failure.Reason != ReasonSink {
			t.Errorf("a message of %d bytes in a buffer of %d: %v", size, room, err)
		}
		if !bytes.Equal(region.Bytes()[room:], make([]byte, size-room)) {
			t.Error("bytes behind the buffer were written")
		}
	})
}

func TestBufferInvalid(t *testing.T) {
	for _, i := range []uint64{2, 3, 1 << 62} {
		if err := (Buffer{Data: make([]byte, 1500), BlockSize: 1000}).ReadBlock(i, make([]byte, 10)); !errors.Is(err,
			ErrInvalid) {
			t.Errorf("block %d of a buffer of 1500 bytes: %v", i, err)
		}
	}
}
