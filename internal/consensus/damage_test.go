package consensus

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog"
	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog/simfs"
)

// voterWithHistory is a stopped voter (not the leader) of a cluster that has some log.
func voterWithHistory(t *testing.T, adjust func(*cluster)) (*cluster, *testNode) {
	c := newCluster(t, 3, adjust)
	leader := c.waitVoters(3)
	for i := range 40 {
		c.propose(leader, fmt.Sprint("h", i))
	}
	c.converge()
	for id, tn := range c.nodes {
		if id != leader {
			c.stop(id)
			return c, tn
		}
	}
	return nil, nil
}

func segmentsOf(t *testing.T, d *simfs.Disk) []string {
	names, err := d.List("/raft")
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, n := range names {
		if strings.HasSuffix(n, ".raftlog") {
			list = append(list, filepath.Join("/raft", n))
		}
	}
	return list
}

func TestMissingLogNeverStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, tn := voterWithHistory(t, nil)
		tn.disk = simfs.New()
		if err := c.tryStart(tn.id); !errors.Is(err, ErrLogMissing) || !strings.Contains(err.Error(), "join it again") {
			t.Fatal(err)
		}
	})
}

func TestDamagedLogNeverStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, tn := voterWithHistory(t, nil)
		seg := segmentsOf(t, tn.disk)
		tn.disk.Corrupt(seg[len(seg)-1], func(b []byte) []byte {
			for i := 700; i < 708; i++ { // more than the padding between frames
				b[i] ^= 1
			}
			return b
		})
		var damaged *raftlog.DamagedError
		if err := c.tryStart(tn.id); !errors.Is(err, ErrLogDamaged) || !errors.As(err, &damaged) || damaged.File == "" {
			t.Fatal(err)
		}
	})
}

func TestShortenedLogNeverStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, tn := voterWithHistory(t, nil)
		opts := raftlog.Options{Dir: "/raft", Identity: c.identity(tn.id), FS: tn.disk, SegmentBytes: 256 << 10}
		log, state, err := raftlog.Open(opts)
		if err != nil {
			t.Fatal(err)
		}
		log.Close()
		shorten := func(entries int, commit uint64) error {
			opts.FS, tn.disk = simfs.New(), nil
			tn.disk = opts.FS.(*simfs.Disk)
			if err := raftlog.Create(opts, state.Base); err != nil {
				t.Fatal(err)
			}
			log, _, err := raftlog.Open(opts)
			if err != nil {
				t.Fatal(err)
			}
			hard := &raftpb.HardState{Term: state.Hard.Term, Vote: state.Hard.Vote, Commit: new(commit)}
			if err := log.Append(&raftlog.Batch{Entries: state.Entries[:entries], Hard: hard}); err != nil {
				t.Fatal(err)
			}
			log.Close()
			return c.tryStart(tn.id)
		}
		for name, err := range map[string]error{
			"before what the state database has applied": shorten(10, state.Base.Index+5),
			"before its own commit index":                shorten(10, state.LastIndex()+5),
		} {
			var short *ShortError
			if !errors.As(err, &short) || !errors.Is(err, ErrLogShort) || !strings.Contains(err.Error(), "join it again") {
				t.Errorf("log that ends %s: %v", name, err)
			}
		}
	})
}

func TestLogOfAnotherStoreOrOldStateNeverStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, tn := voterWithHistory(t, nil)
		cfg := c.config(tn)
		cfg.Identity.Store[0]++
		if _, err := Open(cfg); !errors.Is(err, ErrLogIdentity) {
			t.Fatal(err)
		}
		// A log that begins after what the state database holds.
		base := raftlog.Base{Index: 1000, Term: 3, Conf: &raftpb.ConfState{Voters: []uint64{tn.id}}}
		disk := simfs.New()
		opts := raftlog.Options{Dir: "/raft", Identity: c.identity(tn.id), FS: disk}
		if err := raftlog.Create(opts, base); err != nil {
			t.Fatal(err)
		}
		tn.disk = disk
		if err := c.tryStart(tn.id); !errors.Is(err, ErrStateBehind) {
			t.Fatal(err)
		}
	})
}

// TestShortenedLogIsFoundByTheLeader restarts a voter whose log and state were both set back: only the leader knows,
// so no other may follow it because this machine is late.
func TestShortenedLogIsFoundByTheLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, tn := voterWithHistory(t, func(c *cluster) { c.tune.ElectionTicks = 200 })
		old, oldState := tn.disk.PowerLoss(func(int) int { return 1 }), tn.sm.crash()
		c.start(tn.id)
		for i := range 30 {
			c.propose(tn.id, fmt.Sprint("later", i))
		}
		leader := c.leader()
		eventually(t, 20*time.Second, "the leader knows what the voter has", func() bool {
			answer := make(chan uint64, 1)
			n := c.nodes[leader].node
			n.box.event(func() {
				match, _ := n.loop.core.Match(tn.id)
				answer <- match
			})
			return <-answer >= c.nodes[leader].sm.Applied()
		})
		c.stop(tn.id)
		tn.disk, tn.sm = old, oldState
		c.start(tn.id)
		select {
		case <-tn.node.Done():
		case <-time.After(10 * time.Second):
			t.Fatal("the voter goes on with a log that was set back")
		}
		if err := tn.node.Err(); !errors.Is(err, ErrLogShort) {
			t.Fatal(err)
		}
		c.propose(leader, "goes on")
	})
}

// TestCrashInTheMiddleOfASnapshot leaves a state machine that is ahead of its log, as an intent in the log announces.
func TestCrashInTheMiddleOfASnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, tn := voterWithHistory(t, nil)
		leader := c.leader()
		sm := c.nodes[leader].sm.crash()
		opts := raftlog.Options{Dir: "/raft", Identity: c.identity(tn.id), FS: tn.disk, SegmentBytes: 256 << 10}
		log, state, err := raftlog.Open(opts)
		if err != nil {
			t.Fatal(err)
		}
		index := state.LastIndex() + 5
		sm.now.Index, sm.synced.Index = index, index
		intent := raftlog.Base{Index: index, Term: 1, Conf: &raftpb.ConfState{Voters: []uint64{1, 2, 3}}}
		if err := log.Append(&raftlog.Batch{Intent: &intent}); err != nil {
			t.Fatal(err)
		}
		log.Close()
		kept := tn.sm
		tn.sm = sm
		n, err := Open(c.config(tn))
		if err != nil {
			t.Fatalf("announced snapshot: %v", err)
		}
		if st := n.inside(); st.Applied != index || st.LogFirst != index+1 {
			t.Fatalf("%+v", st)
		}
		n.Close()
		tn.sm = kept // back to a sane history for the cluster's end
	})
}

// TestSnapshotIsAnnouncedOnDisk: when a snapshot takes the place of the state, the log on disk knows of it already,
// whatever a power loss takes: a state that is found ahead of its log is understood by that alone.
func TestSnapshotIsAnnouncedOnDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, func(c *cluster) { c.tune.TailEntries, c.tune.SyncEntries = 50, 10 })
		voter := c.waitVoters(1)
		tn := c.nodes[3-voter]
		c.stop(tn.id)
		for i := range 400 {
			c.propose(voter, fmt.Sprint("s", i))
		}
		eventually(t, 20*time.Second, "the log is cut", func() bool { return c.nodes[voter].node.inside().LogFirst > 300 })
		took := make(chan error, 100)
		tn.sm.restoring = func(index uint64) {
			opts := raftlog.Options{Dir: "/raft", Identity: c.identity(tn.id), FS: tn.disk.PowerLoss(func(int) int { return 0 }),
				SegmentBytes: 256 << 10}
			log, state, err := raftlog.Open(opts)
			if err == nil {
				err = log.Close()
			}
			if err == nil && (state.Intent == nil || state.Intent.Index != index) {
				err = fmt.Errorf("the state goes to %d, the log's intent is %+v", index, state.Intent)
			}
			select {
			case took <- err:
			default:
			}
		}
		c.start(tn.id)
		c.propose(tn.id, "o")
		c.converge()
		select {
		case err := <-took:
			if err != nil {
				t.Fatal(err)
			}
		default:
			t.Fatal("no snapshot was taken")
		}
	})
}

// TestCrashInTheMiddleOfASnapshotOverALongerLog: the log reaches beyond the snapshot, but with entries that were never
// committed. They must not pass for what the snapshot holds.
func TestCrashInTheMiddleOfASnapshotOverALongerLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, tn := voterWithHistory(t, nil)
		leader := c.leader()
		sm := c.nodes[leader].sm.crash()
		opts := raftlog.Options{Dir: "/raft", Identity: c.identity(tn.id), FS: tn.disk, SegmentBytes: 256 << 10}
		log, state, err := raftlog.Open(opts)
		if err != nil {
			t.Fatal(err)
		}
		term, index := state.Hard.GetTerm(), state.LastIndex()+5
		var tail []*raftpb.Entry
		for i := state.LastIndex() + 1; i <= index+5; i++ {
			tail = append(tail, &raftpb.Entry{Index: new(i), Term: new(term), Type: raftpb.EntryNormal.Enum()})
		}
		intent := raftlog.Base{Index: index, Term: term + 1, Conf: &raftpb.ConfState{Voters: []uint64{1, 2, 3}}}
		for _, b := range []*raftlog.Batch{{Entries: tail}, {Intent: &intent}} {
			if err := log.Append(b); err != nil {
				t.Fatal(err)
			}
		}
		log.Close()
		kept := tn.sm
		tn.sm = sm
		sm.now.Index, sm.synced.Index = index, index
		n, err := Open(c.config(tn))
		if err != nil {
			t.Fatal(err)
		}
		if st := n.inside(); st.Applied != index || st.LogFirst != index+1 {
			t.Errorf("applied %d, log from %d on: entries of term %d are taken for committed, at %d was one of %d",
				st.Applied, st.LogFirst, term, index, term+1)
		}
		n.Close()
		tn.sm = kept // back to a sane history for the cluster's end
	})
}

func TestFullDiskMakesReadOnlyAndRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		c.propose(1, "before")
		var full atomic.Bool
		full.Store(true)
		c.nodes[1].disk.Fail(func(op simfs.Op, _ string) error {
			if full.Load() && (op == simfs.OpAllocate || op == simfs.OpCreate) {
				return syscall.ENOSPC
			}
			return nil
		})
		n := c.nodes[1].node
		var refused error
		for i := 0; refused == nil && i < 100000; i++ {
			_, refused = n.Propose(context.Background(), []byte(fmt.Sprint("fill", i, strings.Repeat("x", 8000))),
				ProposeOptions{})
		}
		if !errors.Is(refused, ErrReadOnly) || !strings.Contains(refused.Error(), "no space") {
			t.Fatal(refused)
		}
		if st := n.Status(); st.ReadOnly == "" || n.Err() != nil {
			t.Fatalf("%+v, %v", st, n.Err())
		}
		full.Store(false)
		eventually(t, 20*time.Second, "changes work again", func() bool {
			_, err := n.Propose(context.Background(), []byte("after"), ProposeOptions{})
			return err == nil
		})
		c.crash(1, func(int) int { return 0 })
		c.start(1)
		c.propose(1, "again")
	})
}

// TestProposalTakenBeforeTheDiskFailedIsUnknown: the leader has a proposal in its log already when its disk fails. When
// the same bytes are proposed again and refused, the refusal must not read as if nothing had been proposed.
func TestProposalTakenBeforeTheDiskFailedIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		c.propose(1, "before")
		var broken atomic.Bool
		broken.Store(true)
		c.nodes[1].disk.Fail(func(simfs.Op, string) error {
			if broken.Load() {
				return syscall.EIO
			}
			return nil
		})
		n := c.nodes[1].node
		_, err := n.Propose(context.Background(), []byte("taken"), ProposeOptions{})
		if !errors.Is(err, ErrReadOnly) {
			t.Fatal(err)
		}
		unknown := errors.Is(err, ErrUnknown)
		_, refused := n.Propose(context.Background(), []byte("refused"), ProposeOptions{})
		if err := refused; !errors.Is(err, ErrReadOnly) || errors.Is(err, ErrUnknown) {
			t.Fatalf("proposed when the log can't be written: %v", err)
		}
		broken.Store(false)
		eventually(t, 20*time.Second, "changes work again", func() bool {
			_, err := n.Propose(context.Background(), []byte("after"), ProposeOptions{})
			return err == nil
		})
		if _, applied := c.nodes[1].sm.state().Results["taken"]; applied && !unknown {
			t.Fatalf("applied, though the error said that it was not proposed: %v", err)
		}
	})
}

// failsWhile makes each step of a disk fail, except renames, while broken is set.
func failsWhile(broken *atomic.Bool) func(simfs.Op, string) error {
	return func(op simfs.Op, _ string) error {
		if broken.Load() && op != simfs.OpRename {
			return syscall.EIO
		}
		return nil
	}
}

// TestOthersHearThatTheLeaderCantWrite: no disk can be written, so nobody can take the leadership over. All nodes know
// why changes fail, and no longer than it is so.
func TestOthersHearThatTheLeaderCantWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 5, nil)
		old := c.waitVoters(3)
		c.propose(old, "before")
		var broken atomic.Bool
		broken.Store(true)
		for _, m := range c.nodes {
			m.disk.Fail(failsWhile(&broken))
		}
		said := func(id ID, since time.Time) bool {
			st := c.nodes[id].node.Status()
			p := st.Progress[st.Leader]
			return st.Leader == id && st.ReadOnly != "" || p.ReadOnly && p.LastSeen.After(since)
		}
		began := time.Now()
		for id := range c.nodes {
			eventually(t, 20*time.Second, fmt.Sprintf("node %d knows", id), func() bool {
				ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
				defer cancel()
				_, _ = c.nodes[id].node.Propose(ctx, []byte(fmt.Sprint("fails", id)), ProposeOptions{})
				return said(id, began)
			})
		}
		broken.Store(false)
		eventually(t, 20*time.Second, "changes work again", func() bool {
			_, err := c.nodes[old].node.Propose(context.Background(), []byte("healed"), ProposeOptions{})
			return err == nil
		})
		eventually(t, 20*time.Second, "all logs can be written", func() bool {
			for _, m := range c.nodes {
				if m.node.Status().ReadOnly != "" {
					return false
				}
			}
			return true
		})
		healed := time.Now() // what a leader said before may still be on its way for a moment
		<-time.After(2500 * time.Millisecond)
		for id := range c.nodes {
			if said(id, healed.Add(time.Second)) {
				t.Errorf("node %d goes on to say that the leader can't write", id)
			}
		}
		c.converge()
	})
}

func TestFullDiskOfTheLeaderMovesTheLeadership(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		old := c.waitVoters(3)
		c.propose(old, "before")
		var broken atomic.Bool
		broken.Store(true)
		c.nodes[old].disk.Fail(failsWhile(&broken))
		eventually(t, 20*time.Second, "another one leads and takes changes", func() bool {
			for id := range c.nodes {
				if id == old {
					continue
				}
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				_, err := c.nodes[id].node.Propose(ctx, []byte(fmt.Sprint("moved", id)), ProposeOptions{})
				cancel()
				if err != nil || c.nodes[id].node.Status().Leader == old {
					return false
				}
			}
			return true
		})
		broken.Store(false)
		eventually(t, 20*time.Second, "the old leader follows", func() bool { // until then it refuses by itself
			return c.nodes[old].node.Status().Leader != old
		})
		c.propose(old, "healed")
		c.converge()
	})
}

func TestForeignPeersAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		n := c.nodes[1].node
		id := c.identity(2)
		good := hello{purpose: purposePeer, cluster: id.Cluster, generation: id.Generation, from: 2, to: 1}
		cases := map[string]func(h *hello){
			"cluster":    func(h *hello) { h.cluster[0]++ },
			"generation": func(h *hello) { h.generation++ },
			"from":       func(h *hello) { h.from = 3 },
			"to":         func(h *hello) { h.to = 9 },
		}
		for name, change := range cases {
			h := good
			change(&h)
			a, b := net.Pipe()
			served := make(chan error, 1)
			go func() { served <- n.Serve(b, func(id ID) bool { return id == 2 }) }()
			err := greet(a, &h)
			if !errors.Is(err, ErrForeign) {
				t.Errorf("%s: dialler got %v", name, err)
			}
			if err := <-served; !errors.Is(err, ErrForeign) {
				t.Errorf("%s: acceptor got %v", name, err)
			}
			a.Close()
		}
	})
}

// TestGarbageAfterAGoodHello sends junk on each kind of connection: the connection ends with an error, the node goes
// on.
func TestGarbageAfterAGoodHello(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		n := c.nodes[1].node
		id := c.identity(2)
		junk := [][]byte{
			[]byte("GET / HTTP/1.1\r\n\r\n, and some more of it"),
			appendFrame(nil, 99, nil),
			appendFrame(nil, frameRaft, func(b []byte) []byte { return append(b, 0xff, 0xff, 0xff) }),
			appendFrame(nil, frameRequest, func(b []byte) []byte { return append(b, 1) }),
			appendFrame(nil, frameReports, func(b []byte) []byte { return binary.LittleEndian.AppendUint32(b, 1<<31) }),
			appendFrame(nil, framePropose, func(b []byte) []byte { return append(b, 1, 2, 3) }),
			binary.LittleEndian.AppendUint32(nil, 1<<31),
		}
		for _, purpose := range []uint8{purposePeer, purposeFollow, 77} {
			for i, bytes := range junk {
				a, b := net.Pipe()
				served := make(chan error, 1)
				go func() { served <- n.Serve(b, func(id ID) bool { return id == 2 }) }()
				h := hello{purpose: purpose, cluster: id.Cluster, generation: id.Generation, from: 2, to: 1}
				if err := greet(a, &h); err != nil {
					t.Fatal(err)
				}
				go func() {
					_, _ = a.Write(bytes)
					if len(bytes) < 10 {
						_ = a.Close()
					}
				}()
				drained := make(chan struct{})
				go func() { defer close(drained); _, _ = io.Copy(io.Discard, a) }()
				select {
				case err := <-served:
					if err == nil && len(bytes) > 10 {
						t.Errorf("purpose %d junk %d: no error", purpose, i)
					}
				case <-time.After(10 * time.Second):
					t.Fatalf("purpose %d junk %d: connection stays", purpose, i)
				}
				a.Close()
				<-drained
			}
		}
		c.propose(1, "goes on")
	})
}

func TestStateMachineErrorStopsTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		c.propose(1, "a")
		c.nodes[1].sm.mu.Lock()
		c.nodes[1].sm.fail = errors.New("toy: broken")
		c.nodes[1].sm.mu.Unlock()
		_, err := c.nodes[1].node.Propose(context.Background(), []byte("b"), ProposeOptions{})
		if err == nil || !strings.Contains(err.Error(), "toy: broken") || !errors.Is(err, ErrUnknown) {
			t.Fatal(err)
		}
		<-c.nodes[1].node.Done()
		if c.nodes[1].node.Err() == nil {
			t.Fatal("no reason given")
		}
	})
}
