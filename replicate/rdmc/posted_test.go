package rdmc

import (
	"bytes"
	"errors"
	"testing"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc/core"
)

// postedGroup is an unannounced group whose members post their receives ahead; completed is called at each member.
func postedGroup(t *testing.T, c *cluster, cfg GroupConfig, completed func(rank int, tr *Transfer)) []*Group {
	t.Helper()
	var groups []*Group
	cfg.Members, cfg.Unannounced, cfg.PostedReceives = make([]string, len(c.engines)), true, true
	orDefault(&cfg.SilenceTimeout, starved)
	for rank, e := range c.engines {
		cfg.Rank = rank
		cfg.Completed = func(tr *Transfer) { completed(rank, tr) }
		g, err := e.NewGroup(cfg)
		if err != nil {
			t.Fatal(err)
		}
		groups = append(groups, g)
	}
	connect(t, groups)
	return groups
}

// TestReport_3_PostedReceives is the report's interface: each member posts one buffer, and the next when a message
// has come. Sizes go by blocks and by the small way, and the root sends all of it at once, with windows as small as
// can be.
func TestReport_3_PostedReceives(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		const block, n, messages = 1000, 5, 20
		c := newCluster(t, devices(n))
		var sent [][]byte
		for i := range messages {
			sent = append(sent, randomMemory(uint64(i), 1+i*i*137%30_000, block).data)
		}
		got := make([][][]byte, n)
		var groups []*Group
		post := func(rank int) error {
			if len(got[rank]) == messages {
				return nil
			}
			buf := make([]byte, len(sent[len(got[rank])]))
			got[rank] = append(got[rank], buf)
			return groups[rank].PostReceive(Buffer{Data: buf, BlockSize: block}, uint64(len(buf)))
		}
		groups = postedGroup(t, c, GroupConfig{BlockSize: block, Window: 2}, func(rank int, _ *Transfer) {
			if rank == 0 {
				return
			}
			if err := post(rank); err != nil {
				t.Errorf("rank %d: %v", rank, err)
			}
		})
		for _, data := range sent {
			if _, err := groups[0].Send(Outgoing{Size: uint64(len(data)),
				Source: Buffer{Data: data, BlockSize: block}}); err != nil {
				t.Fatal(err)
			}
		}
		for rank := 1; rank < n; rank++ {
			if err := post(rank); err != nil {
				t.Fatal(err)
			}
		}
		closeAll(t, groups)
		for rank := 1; rank < n; rank++ {
			for i := range sent {
				if !bytes.Equal(got[rank][i], sent[i]) {
					t.Fatalf("rank %d: message %d has other bytes", rank, i)
				}
			}
		}
	})
}

// TestReport_3_PostedTooSmall: a member posts less than what comes. All are notified, with that member as the suspect.
func TestReport_3_PostedTooSmall(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		c := newCluster(t, devices(3))
		groups := postedGroup(t, c, GroupConfig{BlockSize: 1000}, func(int, *Transfer) {})
		for rank, limit := range []uint64{0, 5000, 4999} {
			if rank > 0 {
				if err := groups[rank].PostReceive(Buffer{Data: make([]byte, 5000), BlockSize: 1000}, limit); err != nil {
					t.Fatal(err)
				}
			}
		}
		if _, err := groups[0].Send(Outgoing{Size: 5000,
			Source: Buffer{Data: make([]byte, 5000), BlockSize: 1000}}); err != nil {
			t.Fatal(err)
		}
		for rank, g := range groups {
			err := g.Close(testContext(t))
			var failure *GroupError
			if !errors.As(err, &failure) || failure.Reason != ReasonSink || len(failure.Suspects) != 1 ||
				failure.Suspects[0] != 2 {
				t.Fatalf("rank %d: %v", rank, err)
			}
		}
	})
}

func TestPostReceiveInvalid(t *testing.T) {
	c := newCluster(t, tcpDevices(t, 2))
	groups := postedGroup(t, c, GroupConfig{BlockSize: 1000}, func(int, *Transfer) {})
	if err := groups[0].PostReceive(Buffer{}, 1); !errors.Is(err, ErrInvalid) {
		t.Errorf("by the root: %v", err)
	}
	if err := groups[1].PostReceive(nil, 1); !errors.Is(err, ErrInvalid) {
		t.Errorf("without a sink: %v", err)
	}
	for range core.MaxQueued {
		if err := groups[1].PostReceive(Buffer{}, 1); err != nil {
			t.Fatal(err)
		}
	}
	if err := groups[1].PostReceive(Buffer{}, 1); !errors.Is(err, ErrFull) {
		t.Errorf("without bound: %v", err)
	}
	closeAll(t, groups)
	if err := groups[1].PostReceive(Buffer{}, 1); !errors.Is(err, ErrClosed) {
		t.Errorf("after close: %v", err)
	}
	for _, i := range []uint64{2, 3, 1 << 62} {
		if err := (Buffer{Data: make([]byte, 1500), BlockSize: 1000}).ReadBlock(i, make([]byte, 10)); !errors.Is(err,
			ErrInvalid) {
			t.Errorf("block %d of a buffer of 1500 bytes: %v", i, err)
		}
	}
}
