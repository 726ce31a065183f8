package replicate

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
)

// hidingNames is a state that hides a file, or gives no policy any more.
type hidingNames struct {
	meta.Reader
	noInode, noPolicy bool
}

var errHidden = errors.New("the state can't be read")

func (n *hidingNames) Inode(ino meta.Ino) (meta.Inode, error) {
	if n.noInode {
		return meta.Inode{}, meta.ErrNotFound
	}
	return n.Reader.Inode(ino)
}

func (n *hidingNames) Policy(id meta.PolicyID) (meta.Policy, error) {
	if n.noPolicy {
		return meta.Policy{}, errHidden
	}
	return n.Reader.Policy(id)
}

// G10: a session ends as repeated only if another one follows. The last session of a push that failed ends as failed,
// also if it was to be repeated.
func TestG10OnlyWhatIsRepeatedEndsAsRepeated(t *testing.T) {
	for name, tc := range map[string]struct {
		hide func(*hidingNames)
		says error
		ends []Ending
	}{
		"repeated":      {func(*hidingNames) {}, nil, []Ending{EndRepeated, EndPublished}},
		"no name again": {func(n *hidingNames) { n.noInode = true }, ErrNoInode, []Ending{EndFailed}},
		"no placement":  {func(n *hidingNames) { n.noPolicy = true }, errHidden, []Ending{EndFailed}},
	} {
		t.Run(name, func(t *testing.T) {
			c := metatest.New(t, 3)
			c.Do(1, &meta.SetVoters{Voters: []meta.NodeID{1, 2, 3}})
			ino := c.Do(1, &meta.Create{Parent: meta.RootIno, Name: "f", Kind: meta.KindFile}).Ino
			s, _ := steppedNode(t, c, 1, &onlyStates{}, SystemClock())
			names := &hidingNames{Reader: s.pusher.cfg.Names}
			s.pusher.cfg.Names = names
			s.pusher.cfg.Log = &refusingOnce{meanwhile: func() syscall.Errno {
				c.Boot(2)
				tc.hide(names)
				return syscall.EIO
			}}
			f := s.pusher.transfers.follow()
			defer f.Close()
			push := &Push{Ino: ino, Size: 5, Source: bytes.NewReader([]byte("bytes")), Data: []Extent{{0, 5}}}
			if _, err := s.pusher.publish(t.Context(), push); !errors.Is(err, tc.says) {
				t.Errorf("published: %v, want %v", err, tc.says)
			}
			wantEnds(t, f, tc.ends, tc.says)
		})
	}
}

// wantEnds checks the ends of the sessions of one push, the last of which says why the push failed.
func wantEnds(t *testing.T, f *TransferFeed, want []Ending, says error) {
	t.Helper()
	ended, _, running := f.Take()
	if len(ended) != len(want) || len(running) != 0 {
		t.Fatalf("ended %+v, running %+v", ended, running)
	}
	for i, st := range ended {
		if st.Ending != want[i] {
			t.Errorf("session %d is %s (%s), want %s", i, st.Ending, st.Text, want[i])
		}
	}
	if last := ended[len(ended)-1]; says != nil && !strings.Contains(last.Text, says.Error()) {
		t.Errorf("the last session says %q, want %q", last.Text, says)
	}
}

// G10: if no leader says which nodes show a version, its end says so, and no node is said to be behind.
func TestG10EndWithoutALeaderForItsBarrier(t *testing.T) {
	for name, size := range map[string]int{"inline": 5, "small": 100_000} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, 3, 3)
				n := c.node(1)
				n.rep.pusher.cfg.Log = leaderlessLog{nodeLog{n}}
				f := n.replicator().FollowTransfers()
				defer f.Close()
				out, err := n.publish(c.create(1, "f"), meta.ContentID{}, randomBytes(1, size))
				if err != nil || out.Unseen == nil || len(out.Behind) != 0 {
					t.Fatalf("%+v, %v", out, err)
				}
				ended, _, _ := f.Take()
				if len(ended) != 1 || ended[0].Ending != EndPublished || !strings.Contains(ended[0].Text, "no leader") {
					t.Fatalf("ended %+v", ended)
				}
				for _, m := range ended[0].Members {
					if m.Behind || size == 5 {
						t.Errorf("nobody knows what %+v shows", m)
					}
				}
				if why := n.rep.WhyBehind(2, 0); why != "" {
					t.Errorf("node 2 is said to be behind: %s", why)
				}
			})
		})
	}
}

// behindLog is a log that says of some nodes that they have not shown the publish.
type behindLog struct {
	nodeLog
	nodes []meta.NodeID
}

func (l behindLog) Barrier(context.Context, uint64) ([]meta.NodeID, error) { return l.nodes, nil }

// G10: a transfer lists the members of its file only, also if other nodes have not shown the version in time.
func TestG10NodesOutsideThePlacementAreNoMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, 3)
		n := c.node(1)
		c.must(1, &meta.SetPolicy{Dir: 0, Policy: &meta.Policy{Placement: meta.PlaceCopies, Copies: 2}})
		n.rep.pusher.cfg.Log = behindLog{nodeLog{n}, []meta.NodeID{2, 3, 4}}
		for i, size := range []int{0, 100, 100_000, 3 << 20} {
			ino := c.create(1, string(rune('a'+i)))
			file, err := n.db.Inode(ino)
			if err != nil {
				t.Fatal(err)
			}
			placed, err := n.db.Members(file.Policy, ino)
			if err != nil {
				t.Fatal(err)
			}
			f := n.replicator().FollowTransfers()
			if _, err := n.publish(ino, meta.ContentID{}, randomBytes(1, size)); err != nil {
				t.Fatal(err)
			}
			ended, _, _ := f.Take()
			f.Close()
			wantMembersBehind(t, ended, placed)
		}
	})
}

// G10: a file whose bytes ride in the log, or that has none, lists each member, with those that are behind.
func TestG10MembersThatAreBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 3)
		n := c.node(1)
		n.rep.pusher.cfg.Log = behindLog{nodeLog{n}, []meta.NodeID{2}}
		for i, size := range []int{0, 5} {
			f := n.replicator().FollowTransfers()
			if _, err := n.publish(c.create(1, string(rune('a'+i))), meta.ContentID{}, randomBytes(1, size)); err != nil {
				t.Fatal(err)
			}
			ended, _, _ := f.Take()
			f.Close()
			behind := map[meta.NodeID]bool{}
			for _, m := range ended[0].Members {
				behind[m.Node] = m.Behind
				if (m.State == "stored") == m.Behind {
					t.Errorf("%d bytes: %+v", size, m)
				}
			}
			if len(behind) != 2 || !behind[2] || behind[3] {
				t.Errorf("%d bytes: behind %v", size, behind)
			}
		}
	})
}

// wantMembersBehind checks that a transfer which ended lists the nodes of a placement but the writer, all behind.
func wantMembersBehind(t *testing.T, ended []TransferStatus, placed []meta.NodeID) {
	t.Helper()
	if len(ended) != 1 {
		t.Fatalf("ended %+v", ended)
	}
	want := map[meta.NodeID]bool{}
	for _, id := range placed {
		want[id] = id != 1
	}
	for _, m := range ended[0].Members {
		if !want[m.Node] || !m.Behind {
			t.Errorf("%d bytes, placed on %v: member %+v", ended[0].Size, placed, m)
		}
		delete(want, m.Node)
	}
	for id, missing := range want {
		if missing {
			t.Errorf("%d bytes: node %d is not listed: %+v", ended[0].Size, id, ended[0].Members)
		}
	}
}
