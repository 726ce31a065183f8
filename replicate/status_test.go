package replicate

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
)

func TestTransfersShowWhatEachMemberHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		ino := c.create(1, "f")
		b := randomBytes(1, 8<<20)
		gate := make(chan struct{})
		src := &vanishing{ReaderAt: bytes.NewReader(b), at: 4, wait: gate}
		done := make(chan error, 1)
		n := c.node(1)
		go func() {
			_, err := n.rep.Publish(t.Context(), Push{
				Ino: ino, Path: "/a/f", Size: int64(len(b)), Source: src, Data: []Extent{{0, int64(len(b))}},
			})
			done <- err
		}()
		var st TransferStatus
		c.eventually("members are seen to receive", func() bool {
			list := n.rep.Transfers()
			if len(list) != 1 {
				return false
			}
			st = list[0]
			return st.Phase == PhaseSending && len(st.Members) == 2 && st.Members[0].Bytes > 0 && st.Members[1].Bytes > 0
		})
		if st.Path != "/a/f" || st.Size != int64(len(b)) || st.Stream != st.Size || st.CatchUp || st.Rate <= 0 {
			t.Errorf("status %+v", st)
		}
		for _, m := range st.Members {
			if m.State != "receiving" || m.Bytes > 4<<20 {
				t.Errorf("member %+v; the source has given 4 MiB", m)
			}
		}
		close(gate)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if list := n.rep.Transfers(); len(list) != 0 {
			t.Errorf("left over: %+v", list)
		}
		if got := n.rep.Counters(); got.Published != 1 || got.PublishedBytes != uint64(len(b)) {
			t.Errorf("counters %+v", got)
		}
	})
}

func TestSubstituteKeepsTheContentUntilTheMemberHoldsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		for _, n := range c.all() {
			n.stop()
			n.tuning.ReleaseEvery = 50 * time.Millisecond
			n.tuning.DeleteAfter = 50 * time.Millisecond
			n.start()
		}
		c.must(1, &meta.SetPolicy{Dir: 0, Policy: &meta.Policy{Placement: meta.PlaceCopies, Copies: 2, MinCopies: 1}})
		var ino meta.Ino
		var member meta.NodeID // of the file, other than the writer
		for i := 0; member == 0; i++ {
			ino = c.create(1, string(rune('a'+i)))
			i, err := c.node(1).db.Inode(ino)
			if err != nil {
				t.Fatal(err)
			}
			members, err := c.node(1).db.Members(i.Policy, ino)
			if err != nil {
				t.Fatal(err)
			}
			if members[0] == 1 {
				member = members[1]
			}
		}
		substitute := 5 - member
		c.node(member).stop()
		c.declareDown(member)
		b := randomBytes(1, 2<<20)
		out, err := c.node(1).publish(ino, meta.ContentID{}, b)
		if err != nil {
			t.Fatal(err)
		}
		if !c.node(substitute).heldHere(out.Content) {
			c.eventually("the substitute holds it", func() bool { return c.node(substitute).heldHere(out.Content) })
		}
		c.node(member).start()
		c.eventually("the member has it", func() bool { return c.node(member).heldHere(out.Content) })
		c.eventually("the substitute lets it go", func() bool { return !c.node(substitute).heldHere(out.Content) })
		for _, n := range c.all() {
			n.wantBytes(out.Content, b)
		}
	})
}
