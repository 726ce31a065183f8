package replicate

import (
	"bytes"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
)

// G10: a follower gets the last state of each transfer once, however short it was, and it is true.
func TestG10EachTransferEndsOnceForEachFollower(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, 3)
		c.node(4).stop()
		c.declareDown(4)
		n := c.node(1)
		n.stop()
		n.tuning.Silent = 5 * time.Second // a slow disk here leaves nobody out
		n.start()
		feeds := []*TransferFeed{n.replicator().FollowTransfers(), n.replicator().FollowTransfers()}
		for i, size := range []int{100, 100_000, 5<<20 + 3} {
			if _, err := n.publish(c.create(1, string(rune('a'+i))), meta.ContentID{}, randomBytes(1, size)); err != nil {
				t.Fatal(err)
			}
			for _, f := range feeds {
				<-f.Ready()
				ended, missed, running := f.Take()
				if len(ended) != 1 || missed != 0 || len(running) != 0 {
					t.Fatalf("%d bytes: ended %+v, %d missed, running %+v", size, ended, missed, running)
				}
				wantEnd(t, ended[0], int64(size))
				if ended, _, _ := f.Take(); len(ended) != 0 {
					t.Errorf("%d bytes: told again: %+v", size, ended)
				}
			}
		}
		for _, f := range feeds {
			f.Close()
		}
		if len(n.replicator().transfers.feeds) != 0 {
			t.Error("a closed feed is kept")
		}
	})
}

// wantEnd checks the end of a push that nodes 2 and 3 have and node 4, which is down, has not.
func wantEnd(t *testing.T, st TransferStatus, size int64) {
	t.Helper()
	if st.Ending != EndPublished || st.Stream != size || st.Ended.Before(st.Began) {
		t.Errorf("%d bytes: %+v", size, st)
	}
	states := map[meta.NodeID]string{}
	for _, m := range st.Members {
		states[m.Node] = m.State
		if m.State == "stored" && m.Bytes != size {
			t.Errorf("%d bytes: %+v", size, m)
		}
	}
	if states[2] != "stored" || states[3] != "stored" || states[4] == "stored" || states[1] != "" {
		t.Errorf("%d bytes: %+v", size, st.Members)
	}
}

// G10: a transfer that fails ends as failed, with the reason, also for a feed that began while it ran.
func TestG10FailedTransferEndsAsFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		n := c.node(1)
		b := randomBytes(1, 8<<20)
		gate := make(chan struct{})
		src := &vanishing{ReaderAt: bytes.NewReader(b), at: 4, wait: gate, err: errors.New("the disk broke")}
		done := make(chan error, 1)
		ino := c.create(1, "f")
		go func() {
			_, err := n.rep.Publish(t.Context(), Push{
				Ino: ino, Path: "/f", Size: int64(len(b)), Source: src, Data: []Extent{{0, int64(len(b))}},
			})
			done <- err
		}()
		c.eventually("it runs", func() bool { return len(n.rep.Transfers()) == 1 })
		f := n.replicator().FollowTransfers()
		defer f.Close()
		close(gate)
		if err := <-done; err == nil {
			t.Fatal("published")
		}
		ended, _, _ := f.Take()
		if len(ended) != 1 || ended[0].Ending != EndFailed || ended[0].Text == "" {
			t.Fatalf("ended %+v", ended)
		}
		for _, m := range ended[0].Members {
			if m.State == "receiving" {
				t.Errorf("member %+v of a transfer that has ended", m)
			}
		}
	})
}

// A node that a close did not wait for any longer is named, until it shows the version.
func TestG10WhyBehind(t *testing.T) {
	tr := newTransfers()
	tr.leftBehind([]meta.NodeID{3}, lateShow{index: 7, path: "/a", at: time.Unix(0, 0)})
	for node, shown := range map[meta.NodeID]uint64{3: 7, 2: 0} {
		if got := tr.whyBehind(node, shown); got != "" {
			t.Errorf("node %d shows %d: %q", node, shown, got)
		}
	}
	if got := tr.whyBehind(3, 6); got == "" {
		t.Error("nothing is said of node 3")
	}
}

// A follower that takes nothing keeps a bounded number of ends, and learns how many it missed.
func TestFeedIsBounded(t *testing.T) {
	tr := newTransfers()
	f := tr.follow()
	for range feedMax + 3 {
		tr.begin(SystemClock(), TransferStatus{}).end(EndPublished, "")
	}
	if ended, missed, _ := f.Take(); len(ended) != feedMax || missed != 3 {
		t.Errorf("%d ended, %d missed", len(ended), missed)
	}
}
