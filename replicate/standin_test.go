package replicate

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
)

// placedOn creates files until one is placed on the nodes that want asks for.
func (c *cluster) placedOn(want func(members []meta.NodeID) bool) (meta.Ino, []meta.NodeID) {
	c.t.Helper()
	for i := range 200 {
		ino := c.create(1, fmt.Sprintf("placed%d", i))
		file, err := c.node(1).db.Inode(ino)
		if err != nil {
			c.t.Fatal(err)
		}
		members, err := c.node(1).db.Members(file.Policy, ino)
		if err != nil {
			c.t.Fatal(err)
		}
		if want(members) {
			return ino, members
		}
	}
	c.t.Fatal("no file is placed so")
	return 0, nil
}

// TestOthersStandInForNodesThatAreDeclaredDownMeanwhile: the nodes that are to hold a file beside its writer are cut
// off, and the log declares them down while the bytes are on their way. Others stand in for them, and the close is
// well. A node that comes back afterwards, or meanwhile, changes nothing of that.
func TestOthersStandInForNodesThatAreDeclaredDownMeanwhile(t *testing.T) {
	for _, back := range []string{"never", "meanwhile"} {
		for _, size := range []int{200_000, 3 << 20} {
			for _, member := range []bool{true, false} {
				t.Run(fmt.Sprintf("%d bytes, the writer is a member %v, back %s", size, member, back), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						c := newCluster(t, 7, 3)
						c.setLeaderless()
						c.must(1, &meta.SetPolicy{Dir: 0, Policy: &meta.Policy{Placement: meta.PlaceCopies, Copies: 3}})
						ino, members := c.placedOn(func(m []meta.NodeID) bool { return slices.Contains(m, 1) == member })
						cut := slices.DeleteFunc(slices.Clone(members), func(n meta.NodeID) bool { return n == 1 })
						for _, n := range cut {
							c.node(n).cut()
						}
						done := make(chan error)
						b := randomBytes(1, size)
						var out Outcome
						go func() {
							var err error
							out, err = c.node(1).publish(ino, meta.ContentID{}, b)
							done <- err
						}()
						for _, n := range cut {
							<-time.After(300 * time.Millisecond)
							c.declareDown(n)
						}
						if back == "meanwhile" {
							<-time.After(1300 * time.Millisecond) // others are asked
							c.node(cut[0]).stop()
							c.node(cut[0]).start()
						}
						if err := <-done; err != nil {
							t.Fatal(err)
						}
						if back == "never" && out.Content.Seq != 1 {
							t.Errorf("it took %d sessions", out.Content.Seq)
						}
						holders, err := c.node(1).db.Holders(out.Content)
						if err != nil || len(holders) < 2 {
							t.Fatalf("held by %v: %v", holders, err)
						}
						for _, n := range holders {
							c.node(n).wantBytes(out.Content, b)
						}
					})
				})
			}
		}
	}
}

// TestWriterStandsInForTheOnlyMember: the node that is to hold the only copy is declared down while it is asked. The
// writer, which was not to keep a copy, is the next in order.
func TestWriterStandsInForTheOnlyMember(t *testing.T) {
	for _, size := range []int{200_000, 3 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, 2, 1)
				c.setLeaderless()
				c.must(1, &meta.SetPolicy{Dir: 0, Policy: &meta.Policy{Placement: meta.PlaceCopies, Copies: 1}})
				ino, _ := c.placedOn(func(m []meta.NodeID) bool { return slices.Contains(m, 2) })
				c.node(2).cut()
				b := randomBytes(1, size)
				time.AfterFunc(300*time.Millisecond, func() { c.declareDown(2) })
				out, err := c.node(1).publish(ino, meta.ContentID{}, b)
				if err != nil {
					t.Fatal(err)
				}
				c.node(1).wantBytes(out.Content, b)
			})
		})
	}
}

// TestCopiesOfALinkedFileCountWhereverTheyAre: a file gets its number, hence its place, with the publish. Copies are
// counted also where the number does not place it, as long as the policy allows it there.
func TestCopiesOfALinkedFileCountWhereverTheyAre(t *testing.T) {
	for _, size := range []int{200_000, 3 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newClusterWith(t, 7, 3, func(id meta.NodeID) map[string]string {
					return map[string]string{"kind": map[bool]string{true: "tape", false: "disk"}[id >= 6]}
				})
				c.setLeaderless()
				disks := map[string]string{"kind": "disk"}
				c.must(1, &meta.SetPolicy{Dir: 0, Policy: &meta.Policy{Placement: meta.PlaceCopies, Copies: 2, Labels: disks}})
				for _, n := range []meta.NodeID{3, 4, 5} {
					c.node(n).cut()
				}
				for i := range 8 {
					b := randomBytes(uint64(i), size)
					ctx, cancel := context.WithTimeout(t.Context(), neverComes)
					out, err := c.node(1).rep.Publish(ctx, Push{
						LinkParent: meta.RootIno, LinkName: fmt.Sprint("linked", i), Path: "/linked", Size: int64(size),
						Source: bytes.NewReader(b), Data: []Extent{{0, int64(size)}},
					})
					cancel()
					if err != nil {
						t.Fatalf("file %d: %v", i, err)
					}
					for _, n := range []meta.NodeID{1, 2} {
						c.node(n).wantBytes(out.Content, b)
					}
				}
			})
		})
	}
}

// TestChangesOfAFileGoToNodesThatStandIn: who stands in lacks the version before, so gets the whole file.
func TestChangesOfAFileGoToNodesThatStandIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 6, 3)
		c.setLeaderless()
		c.must(1, &meta.SetPolicy{Dir: 0, Policy: &meta.Policy{Placement: meta.PlaceCopies, Copies: 3}})
		ino, members := c.placedOn(func(m []meta.NodeID) bool { return slices.Contains(m, 1) })
		b := randomBytes(1, 5<<20)
		first, err := c.node(1).publish(ino, meta.ContentID{}, b)
		if err != nil {
			t.Fatal(err)
		}
		cut := slices.DeleteFunc(members, func(n meta.NodeID) bool { return n == 1 })
		for i, n := range cut {
			c.node(n).cut()
			time.AfterFunc(time.Duration(i+1)*200*time.Millisecond, func() { c.declareDown(n) })
		}
		copy(b[2<<20:], "changed")
		ctx, cancel := context.WithTimeout(t.Context(), neverComes)
		defer cancel()
		out, err := c.node(1).rep.Publish(ctx, Push{
			Ino: ino, Path: "/f", Base: first.Content, Size: int64(len(b)), Source: bytes.NewReader(b),
			Data: []Extent{{0, int64(len(b))}}, Dirty: []Extent{{2 << 20, 7}},
		})
		if err != nil {
			t.Fatal(err)
		}
		holders, err := c.node(1).db.Holders(out.Content)
		if err != nil || len(holders) < 2 {
			t.Fatalf("held by %v: %v", holders, err)
		}
		for _, n := range holders {
			c.node(n).wantBytes(out.Content, b)
		}
	})
}

// TestWhoStandsInIsAskedHoweverLateThatIsKnown: a member is declared down when the session that asked it is about to
// give up, so that no time is left in it for the node that stands in. The next session asks that node.
func TestWhoStandsInIsAskedHoweverLateThatIsKnown(t *testing.T) {
	for _, before := range []time.Duration{700 * time.Millisecond, 50 * time.Millisecond} {
		for _, size := range []int{200_000, 3 << 20} {
			t.Run(fmt.Sprintf("%d bytes, %v before the end", size, before), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := newCluster(t, 6, 3)
					c.setLeaderless()
					c.must(1, &meta.SetPolicy{Dir: 0, Policy: &meta.Policy{Placement: meta.PlaceCopies, Copies: 2}})
					ino, members := c.placedOn(func(m []meta.NodeID) bool { return slices.Contains(m, 1) })
					gone := slices.DeleteFunc(members, func(n meta.NodeID) bool { return n == 1 })[0]
					c.node(gone).cut()
					time.AfterFunc(testTuning().Stuck-before, func() { c.declareDown(gone) })
					b := randomBytes(1, size)
					out, err := c.node(1).publish(ino, meta.ContentID{}, b)
					if err != nil {
						t.Fatal(err)
					}
					holders, err := c.node(1).db.Holders(out.Content)
					if err != nil || len(holders) != 2 || out.Content.Seq != 2 {
						t.Fatalf("%v is held by %v: %v", out.Content, holders, err)
					}
					for _, n := range holders {
						c.node(n).wantBytes(out.Content, b)
					}
				})
			})
		}
	}
}

// slowSource is bytes of which each read takes a while.
type slowSource struct {
	io.ReaderAt
	takes time.Duration
}

func (s slowSource) ReadAt(p []byte, at int64) (int, error) {
	<-time.After(s.takes)
	return s.ReaderAt.ReadAt(p, at)
}

// TestANodeThatComesUpIsAskedForACopy: the writer is the only node that is up when a push begins. By the end another
// one is up too, so a copy of it is needed, and it is asked.
func TestANodeThatComesUpIsAskedForACopy(t *testing.T) {
	for name, policy := range map[string]meta.Policy{
		"all": {}, "two copies": {Placement: meta.PlaceCopies, Copies: 2},
	} {
		for _, size := range []int{200_000, 3 << 20} {
			t.Run(fmt.Sprintf("%s, %d bytes", name, size), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := newCluster(t, 2, 1)
					c.setLeaderless()
					c.must(1, &meta.SetPolicy{Dir: 0, Policy: &policy})
					ino := c.create(1, "f")
					c.node(2).stop()
					c.declareDown(2)
					up := make(chan struct{})
					time.AfterFunc(500*time.Millisecond, func() {
						c.node(2).start()
						close(up)
					})
					b := randomBytes(1, size)
					ctx, cancel := context.WithTimeout(t.Context(), neverComes)
					defer cancel()
					out, err := c.node(1).rep.Publish(ctx, Push{
						Ino: ino, Path: "/f", Size: int64(size), Source: slowSource{bytes.NewReader(b), time.Second},
						Data: []Extent{{0, int64(size)}},
					})
					<-up
					if err != nil {
						t.Fatal(err)
					}
					if size > smallMax && out.Content.Seq != 1 {
						t.Errorf("it took %d sessions", out.Content.Seq)
					}
					holders, err := c.node(1).db.Holders(out.Content)
					if err != nil || !slices.Equal(holders, []meta.NodeID{1, 2}) {
						t.Fatalf("held by %v: %v", holders, err)
					}
					c.eventually("the node that came up has a copy", func() bool { return c.node(2).heldHere(out.Content) })
				})
			})
		}
	}
}

// TestWhoStandsInAndIsNotNeededIsOwedSinceItCameLater: one of three members is declared down while the bytes are on
// their way, and the other copies are enough. The node that stands in was never down; the reason says so.
func TestWhoStandsInAndIsNotNeededIsOwedSinceItCameLater(t *testing.T) {
	for _, size := range []int{200_000, 3 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, 6, 3)
				c.setLeaderless()
				c.must(1, &meta.SetPolicy{Dir: 0, Policy: &meta.Policy{Placement: meta.PlaceCopies, Copies: 3}})
				ino, members := c.placedOn(func(m []meta.NodeID) bool { return slices.Contains(m, 1) })
				gone := slices.DeleteFunc(slices.Clone(members), func(n meta.NodeID) bool { return n == 1 })[0]
				time.AfterFunc(500*time.Millisecond, func() {
					c.node(gone).cut()
					c.declareDown(gone)
				})
				b := randomBytes(1, size)
				ctx, cancel := context.WithTimeout(t.Context(), neverComes)
				defer cancel()
				out, err := c.node(1).rep.Publish(ctx, Push{
					Ino: ino, Path: "/f", Size: int64(size), Source: slowSource{bytes.NewReader(b), time.Second},
					Data: []Extent{{0, int64(size)}},
				})
				if err != nil {
					t.Fatal(err)
				}
				for _, n := range out.Result.Owed {
					why := owedReasons(t, c.node(1).db, n)[out.Content]
					if want := map[bool]meta.OwedReason{true: meta.OwedDown, false: meta.OwedJoined}[n == gone]; why != want {
						t.Errorf("owed to node %d: %v, want %v", n, why, want)
					}
				}
				if len(out.Result.Owed) != 2 {
					t.Errorf("owed to %v", out.Result.Owed)
				}
			})
		})
	}
}
