package rdmc

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// inbox collects what a member of an unannounced group gets.
type inbox struct {
	mu        sync.Mutex
	messages  []*memory
	completed []uint64
	failures  []error
	refuse    int // the message to refuse, counted from 1
}

func (in *inbox) configure(cfg *GroupConfig) {
	cfg.Unannounced = true
	cfg.Incoming = func(size uint64) (Sink, error) {
		in.mu.Lock()
		defer in.mu.Unlock()
		m := newMemory(int(size), cfg.BlockSize)
		in.messages = append(in.messages, m)
		if len(in.messages) == in.refuse {
			return nil, errTest
		}
		return m, nil
	}
	cfg.Completed = func(t *Transfer) {
		in.mu.Lock()
		defer in.mu.Unlock()
		in.completed = append(in.completed, t.Announcement().Seq)
	}
	cfg.OnFailure = func(err error) {
		in.mu.Lock()
		defer in.mu.Unlock()
		in.failures = append(in.failures, err)
	}
}

func plainGroup(t *testing.T, c *cluster, cfg GroupConfig) ([]*Group, []*inbox) {
	t.Helper()
	cfg.Members = make([]string, len(c.engines))
	orDefault(&cfg.SilenceTimeout, starved)
	var groups []*Group
	var inboxes []*inbox
	for rank, e := range c.engines {
		in := &inbox{}
		own := cfg
		own.Rank = rank
		in.configure(&own)
		g, err := e.NewGroup(own)
		if err != nil {
			t.Fatal(err)
		}
		groups, inboxes = append(groups, g), append(inboxes, in)
	}
	connect(t, groups)
	return groups, inboxes
}

// TestDSN_4_2_FirstBlockTellsTheSize sends as in the papers: members learn of a message and its size from the first
// block.
func TestDSN_4_2_FirstBlockTellsTheSize(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		for _, n := range []int{2, 3, 5, 8} {
			for _, a := range schedule.Algorithms() {
				if _, err := schedule.NewPlan(a, n); err != nil {
					continue
				}
				c := newCluster(t, devices(n))
				groups, inboxes := plainGroup(t, c, GroupConfig{Number: 1, BlockSize: 1000, Algorithm: a, Window: 3})
				var sent []*memory
				for i, size := range []int{1, 1000, 30_500, 999, 5000, 12_345} {
					src := randomMemory(uint64(i), size, 1000)
					if _, err := groups[0].Send(Outgoing{Size: uint64(size), Source: src}); err != nil {
						t.Fatal(err)
					}
					sent = append(sent, src)
				}
				closeAll(t, groups)
				for rank, in := range inboxes {
					in.check(t, rank, sent)
				}
			}
		}
	})
}

func (in *inbox) check(t *testing.T, rank int, sent []*memory) {
	t.Helper()
	in.mu.Lock()
	defer in.mu.Unlock()
	if !slices.IsSorted(in.completed) || len(in.completed) != len(sent) || len(in.failures) != 0 {
		t.Fatalf("rank %d: completed %v, failures %v", rank, in.completed, in.failures)
	}
	if rank == 0 {
		return
	}
	for i, m := range in.messages {
		if !bytes.Equal(m.data, sent[i].data) {
			t.Fatalf("rank %d: message %d has other bytes", rank, i)
		}
	}
}

// TestDSN_4_1_IncomingRefuses: one member refuses a message. All fail, and are called back once.
func TestDSN_4_1_IncomingRefuses(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		c := newCluster(t, devices(4))
		groups, inboxes := plainGroup(t, c, GroupConfig{Number: 1, BlockSize: 1000})
		inboxes[2].mu.Lock()
		inboxes[2].refuse = 2
		inboxes[2].mu.Unlock()
		for i := range 3 {
			if _, err := groups[0].Send(Outgoing{Size: 50_000, Source: randomMemory(uint64(i), 50_000, 1000)}); err != nil &&
				!errors.Is(err, ErrFailed) {
				t.Fatal(err)
			}
		}
		for rank, g := range groups {
			if err := g.Close(testContext(t)); !errors.Is(err, ErrMemberFailed) {
				t.Fatalf("rank %d: %v", rank, err)
			}
			in := inboxes[rank]
			in.mu.Lock()
			defer in.mu.Unlock()
			if len(in.failures) != 1 || !errors.Is(in.failures[0], ErrMemberFailed) {
				t.Fatalf("rank %d: failures %v", rank, in.failures)
			}
		}
	})
}

// TestHugeClaimRefused: a member refuses the largest message there is, which must not cost it memory for the blocks
// before.
func TestHugeClaimRefused(t *testing.T) {
	const block = MaxMessageBytes / MaxMessageBlocks
	c := newCluster(t, tcpDevices(t, 2))
	before := allocated()
	var groups []*Group
	for rank, e := range c.engines {
		g, err := e.NewGroup(GroupConfig{
			Members: make([]string, 2), Rank: rank, Unannounced: true, BlockSize: block, SilenceTimeout: starved,
			Incoming: func(size uint64) (Sink, error) {
				if size != MaxMessageBytes {
					t.Errorf("asked for %d bytes", size)
				}
				return nil, errTest
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		groups = append(groups, g)
	}
	connect(t, groups)
	if _, err := groups[0].Send(Outgoing{Size: MaxMessageBytes, Source: endless{}}); err != nil {
		t.Fatal(err)
	}
	for rank, g := range groups {
		if err := g.Close(testContext(t)); !errors.Is(err, ErrMemberFailed) {
			t.Fatalf("rank %d: %v", rank, err)
		}
	}
	if took := allocated() - before; took > 64<<20 {
		t.Errorf("%d bytes for a message that was refused", took)
	}
}

// endless is a source of any size.
type endless struct{}

func (endless) ReadBlock(uint64, []byte) error { return nil }

func TestUnannouncedInvalid(t *testing.T) {
	c := newCluster(t, tcpDevices(t, 2))
	if _, err := c.engines[1].NewGroup(GroupConfig{Members: make([]string, 2), Rank: 1,
		Unannounced: true}); !errors.Is(err, ErrInvalid) {
		t.Errorf("without Incoming: %v", err)
	}
	groups, _ := plainGroup(t, c, GroupConfig{Number: 1, BlockSize: 1000})
	if _, err := groups[0].Send(Outgoing{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("empty message: %v", err)
	}
	if _, err := groups[1].Receive(Announcement{Seq: 1}, Receiver{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("receive: %v", err)
	}
}

// TestStoredInOrder: the last block of a message is stored after all of the next message. Stored is called in the order
// of sending.
func TestStoredInOrder(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		const block, blocks, messages = 1000, 3, 3
		c := newCluster(t, devices(2))
		third := make(chan struct{}) // begins to be stored: by the worker that has stored the second
		begin := sync.OnceFunc(func() { close(third) })
		begun := 0
		var got []uint64
		var groups []*Group
		for rank, e := range c.engines {
			g, err := e.NewGroup(GroupConfig{
				BlockSize: block, Members: make([]string, 2), Rank: rank, Unannounced: true, SmallBytes: -1, Window: 24,
				SilenceTimeout: starved,
				Incoming: func(size uint64) (Sink, error) {
					begun++
					sink, number := newMemory(int(size), block), begun
					sink.fail = func(i uint64) error {
						switch {
						case number == 1 && i == blocks-1:
							<-third
						case number == 3:
							begin()
						}
						return nil
					}
					return sink, nil
				},
				Stored: func(tr *Transfer) {
					got = append(got, tr.Announcement().Seq)
					select {
					case <-tr.Stored():
					default:
						t.Errorf("message %d is not stored", tr.Announcement().Seq)
					}
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			groups = append(groups, g)
		}
		connect(t, groups)
		for i := range messages {
			if _, err := groups[0].Send(Outgoing{Size: blocks * block,
				Source: randomMemory(uint64(i), blocks*block, block)}); err != nil {
				t.Fatal(err)
			}
		}
		closeAll(t, groups)
		if !slices.Equal(got, []uint64{1, 2, 3}) {
			t.Errorf("stored %v", got)
		}
	})
}

// TestIncomingMayWaitForTheMessageBefore: Incoming waits until the message before is stored, as an application with one
// buffer does. Small messages behind it are already here, and keep no worker from storing it.
func TestIncomingMayWaitForTheMessageBefore(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		const block, size, smalls = 1 << 10, 64 << 10, 40
		c := newCluster(t, devices(2))
		asked, whole := make(chan struct{}), make(chan struct{})
		patience, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		ask := sync.OnceFunc(func() { close(asked) })
		first := newMemory(size, block)
		left := size / block
		first.fail = func(uint64) error {
			first.mu.Lock()
			defer first.mu.Unlock()
			if left--; left == 0 {
				close(whole)
			}
			return nil
		}
		begun := 0
		var groups []*Group
		for rank, e := range c.engines {
			g, err := e.NewGroup(GroupConfig{
				BlockSize: block, Members: make([]string, 2), Rank: rank, Unannounced: true, SilenceTimeout: starved,
				Incoming: func(n uint64) (Sink, error) {
					if begun++; begun == 1 {
						return first, nil
					}
					ask()
					select {
					case <-whole:
						return newMemory(int(n), block), nil
					case <-patience.Done():
						return nil, errors.New("the message before is not stored")
					}
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			groups = append(groups, g)
		}
		connect(t, groups)
		src := randomMemory(1, size, block)
		src.fail = func(i uint64) error {
			if i == size/block-1 {
				<-asked
			}
			return nil
		}
		if _, err := groups[0].Send(Outgoing{Size: size, Source: src}); err != nil {
			t.Fatal(err)
		}
		for range smalls {
			if _, err := groups[0].Send(Outgoing{Size: 10, Source: randomMemory(1, 10, block)}); err != nil {
				t.Fatal(err)
			}
		}
		closeAll(t, groups)
		if !bytes.Equal(first.data, src.data) {
			t.Error("other bytes came")
		}
	})
}

// allocated is how many bytes this process has allocated until now.
func allocated() uint64 {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.TotalAlloc
}
