package core

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/rdmcfs/rdmcfs/internal/consensus/logstate"
	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog"
	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog/simfs"
)

const simSteps = 6000

// simCore is a core with its simulated disk: what is appended reaches the disk later, in order; a power loss takes
// the rest.
type simCore struct {
	id      ID
	disk    *simfs.Disk
	log     *raftlog.Log
	core    *Core
	pending []*Append   // handed out, not persisted
	apply   []Committed // handed out, not applied
	applied []string    // all that was ever applied, in order; survives (the log is what is tested)
	index   uint64      // applied
}

// sim runs cores under one seeded schedule: messages are delayed, reordered, duplicated and lost; nodes lose power.
type sim struct {
	t      *testing.T
	seed   uint64
	rng    *rand.Rand
	nodes  map[ID]*simCore
	net    []*raftpb.Message
	lossy  bool
	now    int64
	seq    uint64
	chosen []string // by index-1: what was applied there first
	told   []told   // marks on their way
	back   ID       // a node that was put back to an older copy: it is to end
	ended  bool     // it has
	down   ID       // a node that does not run
}

// told is what one node tells another of the members.
type told struct {
	from, to ID
	term     uint64
	list     []logstate.Mark
}

func (s *sim) fatalf(format string, args ...any) {
	s.t.Helper()
	s.t.Fatalf("seed %d: %s", s.seed, fmt.Sprintf(format, args...))
}

func newSim(t *testing.T, seed uint64, n int) *sim {
	s := &sim{t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 99)), nodes: map[ID]*simCore{}}
	var voters []uint64
	for i := range n {
		voters = append(voters, uint64(i+1))
	}
	for _, id := range voters {
		disk := simfs.New()
		if err := raftlog.Create(simOptions(id, disk), logstate.Base{Conf: &raftpb.ConfState{Voters: voters}}); err != nil {
			t.Fatal(err)
		}
		s.nodes[id] = &simCore{id: id, disk: disk}
		s.boot(s.nodes[id])
	}
	return s
}

func simOptions(id ID, disk *simfs.Disk) raftlog.Options {
	return raftlog.Options{Dir: "/raft", Identity: logstate.Identity{ID: id}, FS: disk, SegmentBytes: 64 << 10}
}

func (s *sim) boot(n *simCore) {
	log, state, err := raftlog.Open(simOptions(n.id, n.disk))
	if err != nil {
		s.fatalf("node %d: %v", n.id, err)
	}
	n.log = log
	if n.core, err = New(Config{ID: n.id, State: state, ElectionTicks: 10, HeartbeatTicks: 2,
		Intn: s.rng.IntN}); err != nil {
		s.fatalf("node %d: %v", n.id, err)
	}
	n.pending, n.apply = nil, nil
}

func (s *sim) powerLoss(n *simCore) {
	n.disk = n.disk.PowerLoss(s.rng.IntN)
	s.boot(n)
}

// pump takes what a core hands out.
func (s *sim) pump(n *simCore) {
	for {
		out, ok := n.core.Ready()
		if !ok {
			return
		}
		s.net = append(s.net, out.Messages...)
		for _, k := range out.Short {
			s.told = append(s.told, told{n.id, k.ID, 1, []logstate.Mark{k}})
		}
		if out.Append != nil {
			n.pending = append(n.pending, out.Append)
		}
		n.apply = append(n.apply, out.Apply...)
	}
}

// persist writes the oldest appends.
func (s *sim) persist(n *simCore) {
	for range 1 + s.rng.IntN(3) {
		if len(n.pending) == 0 {
			return
		}
		a := n.pending[0]
		n.pending = n.pending[1:]
		if err := n.log.Append(a.Batch()); err != nil {
			s.fatalf("append on %d: %v", n.id, err)
		}
		n.core.Persisted(a)
		s.pump(n)
	}
}

// applySome applies, and checks that all nodes apply the same at each index, and that time goes forward.
func (s *sim) applySome(n *simCore) {
	k := s.rng.IntN(len(n.apply) + 1)
	for _, c := range n.apply[:k] {
		what := fmt.Sprintf("%d/%x", c.Term, c.Raw)
		if c.Index <= uint64(len(s.chosen)) {
			if s.chosen[c.Index-1] != what {
				s.fatalf("node %d applies %s at %d, another one applied %s", n.id, what, c.Index, s.chosen[c.Index-1])
			}
		} else if c.Index == uint64(len(s.chosen))+1 {
			s.chosen = append(s.chosen, what)
		} else {
			s.fatalf("node %d skips to %d after %d", n.id, c.Index, len(s.chosen))
		}
		n.index = max(n.index, c.Index)
	}
	if k > 0 {
		n.core.Applied(n.apply[k-1].Index)
		n.apply = n.apply[k:]
		s.pump(n)
	}
}

// deliver takes a message off the network: any of them, perhaps twice, perhaps never.
func (s *sim) deliver() {
	if len(s.net) == 0 {
		return
	}
	i := 0
	if s.lossy {
		i = s.rng.IntN(min(len(s.net), 8))
	}
	m := s.net[i]
	if !s.lossy || s.rng.IntN(20) != 0 {
		s.net = append(s.net[:i], s.net[i+1:]...)
	}
	if s.lossy && s.rng.IntN(10) == 0 {
		return
	}
	n := s.nodes[m.GetTo()]
	if s.runs(n.id) {
		s.judge(n, n.core.Step(proto.Clone(m).(*raftpb.Message)))
		s.pump(n)
	}
}

func (s *sim) runs(id ID) bool { return id != s.down && !(s.ended && id == s.back) }

// judge takes the error of a message: only a node that was put back may be refused, and it ends.
func (s *sim) judge(n *simCore, err error) {
	var diverged *DivergedError
	switch {
	case isFatal(err) && n.id == s.back:
		s.ended = true
	case isFatal(err), errors.As(err, &diverged):
		s.fatalf("node %d: %v", n.id, err)
	}
}

// tell lets a leader tell the others what it knows of all, and delivers some of that, late.
func (s *sim) tell(n *simCore) {
	list, term := n.core.NoteMarks()
	for id := range ID(len(s.nodes)) {
		if len(list) > 0 && id+1 != n.id {
			s.told = append(s.told, told{n.id, id + 1, term, list})
		}
	}
	for s.rng.IntN(4) > 0 && len(s.told) > 0 {
		i := s.rng.IntN(min(len(s.told), 8))
		k := s.told[i]
		s.told = append(s.told[:i], s.told[i+1:]...)
		if to := s.nodes[k.to]; s.runs(k.to) && (!s.lossy || s.rng.IntN(5) > 0) {
			s.judge(to, to.core.TakeMarks(k.from, k.term, k.list))
		}
	}
	if list := n.core.SaveMarks(); list != nil {
		if err := n.log.Append(&logstate.Batch{Marks: list}); err != nil {
			s.fatalf("marks: %v", err)
		}
	}
}

func isFatal(err error) bool { return errors.Is(err, ErrLogShort) || errors.Is(err, ErrSafety) }

func (s *sim) propose() {
	n := s.nodes[ID(1+s.rng.IntN(len(s.nodes)))]
	var list []Proposal
	for range 1 + s.rng.IntN(3) {
		s.seq++
		list = append(list, Proposal{Origin: n.id, Run: 1, Seq: s.seq,
			Data: binary.AppendUvarint(make([]byte, s.rng.IntN(2000)), s.seq)})
	}
	_ = n.core.Propose(s.now, list)
	s.pump(n)
}

// step does one random thing.
func (s *sim) step() {
	s.now++
	n := s.nodes[ID(1+s.rng.IntN(len(s.nodes)))]
	if !s.runs(n.id) {
		return
	}
	switch r := s.rng.IntN(102); {
	case r >= 100:
		s.tell(n)
	case r < 50:
		s.deliver()
	case r < 65:
		s.persist(n)
	case r < 80:
		s.applySome(n)
	case r < 90:
		n.core.Tick()
		s.pump(n)
	case r < 96:
		s.propose()
	case r < 98 && n.core.Status().First+20 < n.index:
		if base, ok := n.core.Compact(n.index - 10); ok {
			if err := n.log.Append(&logstate.Batch{Base: &base}); err != nil {
				s.fatalf("compact: %v", err)
			}
		}
	case r == 99 && s.lossy:
		s.powerLoss(n)
	}
}

// settle runs a healthy network until all have applied the same.
func (s *sim) settle() {
	s.lossy = false
	for range 400 {
		for _, id := range []ID{1, 2, 3} {
			if n := s.nodes[id]; s.runs(id) {
				n.core.Tick()
				s.tell(n)
				s.pump(n)
			}
		}
		for i := 0; i < 2000 && s.busy(); i++ {
			s.deliver()
			for _, id := range []ID{1, 2, 3} {
				if s.runs(id) {
					s.persist(s.nodes[id])
					s.applySome(s.nodes[id])
				}
			}
		}
	}
	for _, n := range s.nodes {
		if !s.runs(n.id) {
			continue
		}
		if st := n.core.Status(); st.Commit != uint64(len(s.chosen)) {
			s.fatalf("node %d: commit %d of %d, leader %x, role %s", n.id, st.Commit, len(s.chosen), st.Leader, st.Role)
		}
	}
}

func (s *sim) busy() bool {
	if len(s.net) > 0 {
		return true
	}
	for _, n := range s.nodes {
		if !s.runs(n.id) {
			continue
		}
		if len(n.pending) > 0 || len(n.apply) > 0 {
			return true
		}
	}
	return false
}

// TestSimulatedCoresAgree drives three cores with seeded schedules with message loss, reordering, duplication and
// power loss. Every index is applied with the same content everywhere, nothing that was committed is lost, the
// cluster recovers.
func TestSimulatedCoresAgree(t *testing.T) {
	seeds := uint64(150)
	if testing.Short() {
		seeds = 30
	}
	commands, first := 0, ""
	for seed := range seeds {
		s := newSim(t, seed, 3)
		s.lossy = true
		for range simSteps {
			s.step()
		}
		s.settle()
		commands += len(s.chosen)
		if seed == 0 {
			first = fmt.Sprint(s.chosen)
		}
	}
	again := newSim(t, 0, 3)
	again.lossy = true
	for range simSteps {
		again.step()
	}
	again.settle()
	if fmt.Sprint(again.chosen) != first {
		t.Fatal("seed 0 does not replay")
	}
	t.Logf("%d seeds, %d entries", seeds, commands)
}

func TestTimeStampsIncreaseAcrossLeaders(t *testing.T) {
	s := newSim(t, 1, 3)
	s.lossy = true
	for i := range 4000 {
		s.step()
		if i%500 == 0 {
			s.now -= 300 // a clock that is set back, or a new leader's that is late
		}
	}
	s.settle()
	last := int64(0)
	checked := 0
	for _, n := range s.nodes {
		last = 0
		for _, e := range n.core.log.entries {
			if at := TimeOf(e); at != 0 {
				if at <= last {
					t.Fatalf("node %d: time %d after %d", n.id, at, last)
				}
				last = at
				checked++
			}
		}
	}
	if checked < 30 {
		t.Fatalf("only %d stamps", checked)
	}
}

// TestGuardKeepsRaftFromPanicking sends messages that raft would panic on.
func TestGuardKeepsRaftFromPanicking(t *testing.T) {
	state := &logstate.State{Base: logstate.Base{Conf: &raftpb.ConfState{Voters: []uint64{1, 2, 3}}},
		Hard: &raftpb.HardState{}}
	core, err := New(Config{ID: 1, State: state, ElectionTicks: 10, HeartbeatTicks: 2, Intn: func(int) int {
		return 0
	}})
	if err != nil {
		t.Fatal(err)
	}
	heartbeat := &raftpb.Message{Type: raftpb.MsgHeartbeat.Enum(), From: new(uint64(2)), To: new(uint64(1)),
		Term: new(uint64(3)), Commit: new(uint64(7))}
	if err := core.Step(heartbeat); !isFatal(err) {
		t.Fatalf("heartbeat beyond the log: %v", err)
	}
	rng := rand.New(rand.NewPCG(3, 3))
	for range 200000 {
		m := randomMessage(rng)
		_ = core.Step(m)
		drain(core)
		if rng.IntN(50) == 0 {
			core.Tick()
		}
	}
}

func randomMessage(rng *rand.Rand) *raftpb.Message {
	small := func() *uint64 { return new(uint64(rng.IntN(6))) }
	m := &raftpb.Message{Type: raftpb.MessageType(rng.IntN(24)).Enum(), From: new(uint64(rng.IntN(4))), To: new(uint64(1)),
		Term: new(uint64(rng.IntN(5))), LogTerm: small(), Index: small(), Commit: small(), RejectHint: small(),
		Reject: new(rng.IntN(3) == 0)}
	for i := range rng.IntN(3) {
		e := &raftpb.Entry{Type: raftpb.EntryType(rng.IntN(3)).Enum(), Index: new(m.GetIndex() + uint64(i) + 1),
			Term: small()}
		if rng.IntN(2) == 0 {
			e.Data = make([]byte, rng.IntN(60))
		}
		m.Entries = append(m.Entries, e)
	}
	if rng.IntN(4) == 0 {
		m.Snapshot = &raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{Index: small(), Term: small(),
			ConfState: &raftpb.ConfState{Voters: []uint64{uint64(rng.IntN(4)), 1}}}}
	}
	return m
}

// TestCoreRefusesALogBelowItsPromise: a log that ends before what it has promised to be committed is refused with an
// error, and without a panic in raft. A log that ends exactly there is accepted.
func TestCoreRefusesALogBelowItsPromise(t *testing.T) {
	for commit := uint64(10); commit < 14; commit++ {
		state := &logstate.State{Base: logstate.Base{Index: 10, Term: 2, Conf: &raftpb.ConfState{Voters: []uint64{1}}},
			Entries: []*raftpb.Entry{{Index: new(uint64(11)), Term: new(uint64(2)), Type: raftpb.EntryNormal.Enum()}},
			Hard:    &raftpb.HardState{Term: new(uint64(2)), Commit: new(commit)}}
		var err error
		func() {
			defer func() {
				if why := recover(); why != nil {
					t.Errorf("commit %d of a log up to 11: %v", commit, why)
				}
			}()
			_, err = New(Config{ID: 1, State: state, ElectionTicks: 10, HeartbeatTicks: 2, Intn: func(int) int {
				return 0
			}})
		}()
		var short *ShortError
		switch isShort := errors.As(err, &short); {
		case commit <= 11 && err != nil, commit > 11 && !isShort:
			t.Errorf("commit %d of a log up to 11: %v", commit, err)
		case isShort && (short.LastIndex != 11 || short.Promised != commit):
			t.Errorf("%+v", short)
		}
	}
}

// TestOlderCopyGivesWay: a node that was put back to a copy of the time when it was the only voter leads by itself,
// in the same term as the leader of the others. Each hears the other. The one with less ends with words that say what
// to do, and the other goes on.
func TestOlderCopyGivesWay(t *testing.T) {
	const term, older, newer = 2, 3, 9
	entries := func(n uint64, term uint64) (list []*raftpb.Entry) {
		for i := range n {
			list = append(list, &raftpb.Entry{Index: new(i + 1), Term: new(term), Type: raftpb.EntryNormal.Enum()})
		}
		return list
	}
	// leads is a core that has elected itself, and committed n entries and that of its election.
	leads := func(id uint64, n uint64) *Core {
		state := &logstate.State{Base: logstate.Base{Conf: &raftpb.ConfState{Voters: []uint64{id}}}, Entries: entries(n, 1),
			Hard: &raftpb.HardState{Term: new(uint64(term - 1)), Commit: new(n)}}
		core, err := New(Config{ID: id, State: state, ElectionTicks: 10, HeartbeatTicks: 2, Intn: func(int) int {
			return 0
		}})
		if err != nil {
			t.Fatal(err)
		}
		core.Campaign()
		drain(core)
		if s := core.Status(); s.Role != RoleLeader || s.Term != term || s.Commit != n+1 {
			t.Fatalf("node %d: %+v", id, s)
		}
		return core
	}
	message := func(kind raftpb.MessageType, from, to, term, commit uint64) *raftpb.Message {
		return &raftpb.Message{Type: kind.Enum(), From: new(from), To: new(to), Term: new(term), Commit: new(commit)}
	}
	put, other := leads(1, older), leads(2, newer)
	if err := other.Step(message(raftpb.MsgApp, 1, 2, term, older+1)); err == nil || isFatal(err) {
		t.Fatalf("the leader of the others hears of one with less: %v", err)
	}
	if err := put.Step(message(raftpb.MsgHeartbeat, 2, 1, term, 0)); err == nil || isFatal(err) {
		t.Fatalf("a heartbeat says nothing of histories: %v", err)
	}
	if out := drain(put); len(out) != 1 || out[0].GetType() != raftpb.MsgHeartbeatResp || out[0].GetTo() != 2 {
		t.Fatalf("it is answered with %v: the other one sends what it has committed after that", out)
	}
	if err := put.Step(message(raftpb.MsgApp, 2, 1, term, newer+1)); !errors.Is(err, ErrLogShort) ||
		!strings.Contains(err.Error(), "join it again") {
		t.Fatalf("the older copy hears of a leader in its term: %v", err)
	}
	if err := leads(1, older).Step(message(raftpb.MsgApp, 2, 1, term+1, newer+1)); !errors.Is(err, ErrLogShort) {
		t.Fatalf("the only voter hears of a leader with more: %v", err)
	}
	// A log of the same length with other entries.
	with := message(raftpb.MsgApp, 2, 1, term+1, older)
	with.Index, with.LogTerm, with.Entries = new(uint64(0)), new(uint64(0)), entries(older, 2)
	if err := leads(1, older).Step(with); err == nil || isFatal(err) {
		t.Fatalf("other entries of a leader that has committed no more: %v", err)
	}
	with.Entries, with.Commit = entries(older+3, 2), new(uint64(older+3))
	if err := leads(1, older+1).Step(with); !isFatal(err) {
		t.Fatalf("other entries of a leader that has committed more: %v", err)
	}
	if s := other.Status(); s.Role != RoleLeader {
		t.Fatalf("the one with more is %v", s.Role)
	}
}

// Raft turns a change of voters that comes too early for it into an empty entry, and says nothing. A leader that has
// not applied an entry of its own term yet has to refuse such a change with an error, or its caller waits for what
// never comes.
func TestChangeOfVotersBeforeTheLeaderHasApplied(t *testing.T) {
	const id, entries = 1, 5
	state := &logstate.State{Base: logstate.Base{Conf: &raftpb.ConfState{Voters: []uint64{id}}},
		Hard: &raftpb.HardState{Term: new(uint64(1)), Commit: new(uint64(entries))}}
	for i := range uint64(entries) {
		state.Entries = append(state.Entries, &raftpb.Entry{Index: new(i + 1), Term: new(uint64(1)),
			Type: raftpb.EntryNormal.Enum()})
	}
	core, err := New(Config{ID: id, State: state, ElectionTicks: 10, HeartbeatTicks: 2, Intn: func(int) int {
		return 0
	}})
	if err != nil {
		t.Fatal(err)
	}
	var waiting []Committed // handed out, not applied
	advance := func() {
		for {
			out, ok := core.Ready()
			if !ok {
				return
			}
			if out.Append != nil {
				core.Persisted(out.Append)
			}
			waiting = append(waiting, out.Apply...)
		}
	}
	add := []*raftpb.ConfChangeSingle{Change(raftpb.ConfChangeAddLearnerNode, 2)}
	core.Campaign()
	advance()
	for _, e := range waiting {
		if err := core.ProposeConf(add); !errors.Is(err, ErrConfChange) {
			t.Fatalf("before entry %d of %d is applied: %v", e.Index, len(waiting), err)
		}
		core.Applied(e.Index)
	}
	if len(waiting) != entries+1 {
		t.Fatalf("%d entries to be applied", len(waiting))
	}
	if err := core.ProposeConf(add); err != nil {
		t.Fatal(err)
	}
	advance()
	if !slices.Contains(core.Conf().GetLearners(), 2) {
		t.Fatalf("the change is not in force: %v", core.Conf())
	}
}

// A follower whose disk is slow has a new leader's entries in memory, the older ones that they replace on the disk, and
// knows that the new ones are committed. It is no older copy when it gets them again.
func TestReplacedEntriesOnASlowDisk(t *testing.T) {
	const last, replaced = 5, 3
	entries := func(from, term uint64) (list []*raftpb.Entry) {
		for i := from; i <= last; i++ {
			list = append(list, &raftpb.Entry{Index: new(i), Term: new(term), Type: raftpb.EntryNormal.Enum()})
		}
		return list
	}
	for _, handedOut := range []bool{false, true} {
		state := &logstate.State{Base: logstate.Base{Conf: &raftpb.ConfState{Voters: []uint64{1, 2, 3}}},
			Entries: entries(1, 1),
			Hard:    &raftpb.HardState{Term: new(uint64(1)), Commit: new(uint64(replaced - 1))}}
		core, err := New(Config{ID: 1, State: state, ElectionTicks: 10, HeartbeatTicks: 2, Intn: func(int) int {
			return 0
		}})
		if err != nil {
			t.Fatal(err)
		}
		drain(core)
		m := &raftpb.Message{Type: raftpb.MsgApp.Enum(), From: new(uint64(2)), To: new(uint64(1)), Term: new(uint64(3)),
			Commit: new(uint64(last)),
			Index:  new(uint64(replaced - 1)), LogTerm: new(uint64(1)), Entries: entries(replaced, 3)}
		if err := core.Step(m); err != nil {
			t.Fatal(err)
		}
		var waiting []*Append
		for handedOut {
			out, ok := core.Ready()
			if !ok {
				break
			}
			if out.Append != nil {
				waiting = append(waiting, out.Append)
			}
		}
		if err := core.Step(m); err != nil {
			t.Errorf("handed out %v: the same entries again: %v", handedOut, err)
		}
		for _, a := range waiting {
			core.Persisted(a)
		}
		drain(core)
		m.Term, m.Entries = new(uint64(4)), entries(replaced, 4)
		if err := core.Step(m); !isFatal(err) && err == nil {
			t.Errorf("handed out %v: other entries than committed ones are taken once the disk has those", handedOut)
		}
	}
}

// drain lets a core do all that it wants, and gives what it sends.
func drain(core *Core) (sent []*raftpb.Message) {
	for {
		out, ok := core.Ready()
		if !ok {
			return sent
		}
		sent = append(sent, out.Messages...)
		if out.Append != nil {
			core.Persisted(out.Append)
		}
		if n := len(out.Apply); n > 0 {
			core.Applied(out.Apply[n-1].Index)
		}
	}
}

// applyAll does what a core asks for, except that it puts nothing on stable storage; it applies all entries.
func applyAll(core *Core) (kept []*Append) {
	for {
		out, ok := core.Ready()
		if !ok {
			return kept
		}
		if out.Append != nil {
			kept = append(kept, out.Append)
		}
		if n := len(out.Apply); n > 0 {
			core.Applied(out.Apply[n-1].Index)
		}
	}
}

// A leader finds a change in two steps that the leader before it has begun. Until the second step is applied, raft
// turns any other change into an empty entry. A change that is not refused has to come into force.
func TestChangeOfVotersBetweenTheStepsOfAnother(t *testing.T) {
	const id, late = 1, 4
	first := &raftpb.ConfChangeV2{Transition: raftpb.ConfChangeTransitionAuto.Enum(), Changes: []*raftpb.ConfChangeSingle{
		Change(raftpb.ConfChangeAddLearnerNode, 2), Change(raftpb.ConfChangeAddLearnerNode, 3)}}
	data, err := proto.Marshal(first)
	if err != nil {
		t.Fatal(err)
	}
	core, err := New(Config{ID: id, ElectionTicks: 10, HeartbeatTicks: 2, Intn: func(int) int { return 0 },
		State: &logstate.State{
			Base: logstate.Base{Conf: &raftpb.ConfState{Voters: []uint64{id}}},
			Hard: &raftpb.HardState{Term: new(uint64(1))},
			Entries: []*raftpb.Entry{{Index: new(uint64(1)), Term: new(uint64(1)), Type: raftpb.EntryConfChangeV2.Enum(),
				Data: data}},
		}})
	if err != nil {
		t.Fatal(err)
	}
	add := []*raftpb.ConfChangeSingle{Change(raftpb.ConfChangeAddLearnerNode, late)}
	core.Campaign()
	err = ErrEarly
	for step := 0; errors.Is(err, ErrEarly); step++ {
		if step > 20 {
			t.Fatalf("never taken: %v; %v", err, core.Conf())
		}
		out, _ := core.Ready()
		if out.Append != nil {
			core.Persisted(out.Append)
		}
		for _, e := range out.Apply {
			core.Applied(e.Index)
			if err = core.ProposeConf(add); err == nil {
				break
			}
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	for kept := applyAll(core); len(kept) > 0; kept = applyAll(core) {
		for _, a := range kept {
			core.Persisted(a)
		}
	}
	if !slices.Contains(core.Conf().GetLearners(), late) {
		t.Fatalf("a change was taken and is not in force: %v", core.Conf())
	}
}

// A voter that is removed and soon a learner again takes entries of both before it has applied the first. It has to
// keep its log: the leader counts on what it has acknowledged.
func TestRemovedAndAddedAgain(t *testing.T) {
	const id, leader = 3, 2
	core, err := New(Config{ID: id, ElectionTicks: 10, HeartbeatTicks: 2, Intn: func(int) int { return 0 },
		State: &logstate.State{Base: logstate.Base{Conf: &raftpb.ConfState{Voters: []uint64{leader, id}}}}})
	if err != nil {
		t.Fatal(err)
	}
	appends := func(index uint64, kind raftpb.ConfChangeType) *Append {
		data, err := proto.Marshal(&raftpb.ConfChangeV2{Changes: []*raftpb.ConfChangeSingle{Change(kind, id)}})
		if err != nil {
			t.Fatal(err)
		}
		term := min(index-1, 1) // of the entry before
		if err := core.Step(&raftpb.Message{Type: raftpb.MsgApp.Enum(), From: new(uint64(leader)), To: new(uint64(id)),
			Term:  new(uint64(1)),
			Index: new(index - 1), LogTerm: &term, Commit: new(index),
			Entries: []*raftpb.Entry{{Index: new(index), Term: new(uint64(1)), Type: raftpb.EntryConfChangeV2.Enum(),
				Data: data}}}); err != nil {
			t.Fatal(err)
		}
		out, _ := core.Ready()
		if out.Append == nil {
			t.Fatal("nothing to append")
		}
		return out.Append
	}
	core.Persisted(appends(1, raftpb.ConfChangeRemoveNode))
	if out, _ := core.Ready(); len(out.Apply) != 1 {
		t.Fatalf("applies %v", out.Apply)
	}
	if core.Removed() {
		t.Error("removed before the removal is applied")
	}
	core.Persisted(appends(2, raftpb.ConfChangeAddLearnerNode))
	core.Applied(1)
	if core.Removed() {
		t.Error("gives up a log of which the leader counts on an entry")
	}
	if !core.AddedAfter(1) || core.AddedAfter(2) {
		t.Error("the change at 2 is not found, or found beyond it: who knows what is committed there can tell")
	}
	applyAll(core)
	core.Persisted(appends(3, raftpb.ConfChangeRemoveNode))
	applyAll(core)
	if !core.Removed() {
		t.Error("is out for good and stays")
	}
}

// The only voter has begun again, and its log on disk does not say yet that its last entries are committed: that goes
// with the next write. Raft answers at once where there is one voter, and would name an index below what was
// acknowledged.
func TestReadIndexOfTheOnlyVoterAfterAStart(t *testing.T) {
	const id, last = 1, 5
	state := &logstate.State{Base: logstate.Base{Conf: &raftpb.ConfState{Voters: []uint64{id}}},
		Hard: &raftpb.HardState{Term: new(uint64(1)), Commit: new(uint64(2))}}
	for i := range uint64(last) {
		state.Entries = append(state.Entries, &raftpb.Entry{Index: new(i + 1), Term: new(uint64(1)),
			Type: raftpb.EntryNormal.Enum()})
	}
	core, err := New(Config{ID: id, State: state, ElectionTicks: 10, HeartbeatTicks: 2, Intn: func(int) int {
		return 0
	}})
	if err != nil {
		t.Fatal(err)
	}
	core.Campaign()
	for step := 0; step < 20; step++ {
		err := core.ReadIndex("r")
		out, _ := core.Ready()
		for _, r := range out.Reads {
			if r.Index < last {
				t.Fatalf("index %d is named, %d was acknowledged", r.Index, last)
			}
			return
		}
		if err == nil {
			t.Fatal("a read that nobody answers")
		}
		if out.Append != nil {
			core.Persisted(out.Append)
		}
	}
	t.Fatal("never answered")
}

// A change of voters whose caller has given up may still be on its way when the next one is asked for.
func TestChangeOfVotersWhileAnotherIsOnItsWay(t *testing.T) {
	const id = 1
	core, err := New(Config{ID: id, ElectionTicks: 10, HeartbeatTicks: 2, Intn: func(int) int { return 0 },
		State: &logstate.State{Base: logstate.Base{Conf: &raftpb.ConfState{Voters: []uint64{id}}},
			Hard: &raftpb.HardState{Term: new(uint64(1))}}})
	if err != nil {
		t.Fatal(err)
	}
	persist := func(list []*Append) {
		for ; len(list) > 0; list = applyAll(core) {
			for _, a := range list {
				core.Persisted(a)
			}
		}
	}
	core.Campaign()
	persist(applyAll(core))
	if err := core.ProposeConf([]*raftpb.ConfChangeSingle{Change(raftpb.ConfChangeAddLearnerNode, 2)}); err != nil {
		t.Fatal(err)
	}
	slow := applyAll(core)
	next := []*raftpb.ConfChangeSingle{Change(raftpb.ConfChangeAddLearnerNode, 3)}
	if err := core.ProposeConf(next); !errors.Is(err, ErrEarly) {
		t.Fatalf("the first change is not on the disk yet: %v", err)
	}
	persist(slow)
	if err := core.ProposeConf(next); err != nil {
		t.Fatal(err)
	}
	persist(applyAll(core))
	if learners := core.Conf().GetLearners(); !slices.Contains(learners, 2) || !slices.Contains(learners, 3) {
		t.Fatalf("learners %v", learners)
	}
}

// A change of voters is judged by the state, which has to have all that comes before the change. That may be on its way
// to a slow disk.
func TestNotSettledBeforeItIsOnTheDisk(t *testing.T) {
	const id = 1
	core, err := New(Config{ID: id, ElectionTicks: 10, HeartbeatTicks: 2, Intn: func(int) int { return 0 },
		State: &logstate.State{Base: logstate.Base{Conf: &raftpb.ConfState{Voters: []uint64{id}}},
			Hard: &raftpb.HardState{Term: new(uint64(1))}}})
	if err != nil {
		t.Fatal(err)
	}
	core.Campaign()
	drain(core)
	if !core.Settled() {
		t.Fatal("all is applied")
	}
	if err := core.Propose(1, []Proposal{{Data: []byte("evict")}}); err != nil {
		t.Fatal(err)
	}
	slow := applyAll(core)
	if core.Settled() {
		t.Error("an entry is not on the disk yet, and not applied")
	}
	for _, a := range slow {
		core.Persisted(a)
	}
	if drain(core); !core.Settled() {
		t.Error("all is applied again")
	}
}

// Raft does not take the second step of a change of voters while leadership is being handed over. If that fails, and
// nothing else is proposed, the step comes all the same.
func TestSecondStepAfterAHandOverThatFailed(t *testing.T) {
	const leader, other, electionTicks = 1, 2, 10
	cores := map[ID]*Core{}
	for id := ID(leader); id <= other; id++ {
		core, err := New(Config{ID: id, ElectionTicks: electionTicks, HeartbeatTicks: 2,
			Intn: func(int) int { return 0 }, State: &logstate.State{
				Base: logstate.Base{Conf: &raftpb.ConfState{Voters: []uint64{leader, other}}},
				Hard: &raftpb.HardState{Term: new(uint64(1))}}})
		if err != nil {
			t.Fatal(err)
		}
		cores[id] = core
	}
	var applying uint64 // at the leader, which is slow
	run := func() {
		for busy := true; busy; {
			busy = false
			for id, core := range cores {
				out, ok := core.Ready()
				busy = busy || ok
				if out.Append != nil {
					core.Persisted(out.Append)
				}
				for _, e := range out.Apply {
					if applying = e.Index; id != leader || len(core.Conf().GetVotersOutgoing()) == 0 {
						core.Applied(e.Index)
					}
				}
				for _, m := range out.Messages {
					if to := cores[m.GetTo()]; to != nil && m.GetType() != raftpb.MsgTimeoutNow {
						if err := to.Step(m); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
		}
	}
	core := cores[leader]
	core.Campaign()
	run()
	if err := core.ProposeConf([]*raftpb.ConfChangeSingle{Change(raftpb.ConfChangeAddLearnerNode, 3),
		Change(raftpb.ConfChangeAddLearnerNode, 4)}); err != nil {
		t.Fatal(err)
	}
	run()
	if len(core.Conf().GetVotersOutgoing()) == 0 {
		t.Fatalf("no first step: %v", core.Conf())
	}
	core.TransferLeader(other)
	core.Applied(applying)
	for range 3 * electionTicks {
		core.Tick()
		run()
	}
	if len(core.Conf().GetVotersOutgoing()) > 0 || core.Status().Role != RoleLeader {
		t.Fatalf("%v: %v", core.Status().Role, core.Conf())
	}
}

// preVotes counts the requests for a pre-vote that are on their way.
func (s *sim) preVotes() (n int) {
	for _, m := range s.net {
		if m.GetType() == raftpb.MsgPreVote {
			n++
		}
	}
	return n
}

// A follower that is wrong about its leader's end does not disturb it, and is not wrong again while it hears it.
func TestLeaderThatIsNotGoneStays(t *testing.T) {
	s := newSim(t, 1, 3)
	s.settle()
	before := s.nodes[1].core.Status()
	for id, n := range s.nodes {
		if id == before.Leader {
			continue
		}
		for round, want := range []int{2, 0} {
			n.core.LeaderGone(before.Leader)
			for range hurryTicks { // it stands for election before it hears of the leader again
				n.core.Tick()
				s.pump(n)
				if s.preVotes() > 0 {
					break
				}
			}
			if got := s.preVotes(); got != want {
				t.Errorf("it asks %d nodes for a pre-vote in round %d, want %d", got, round+1, want)
			}
			s.settle()
		}
		if after := n.core.Status(); after.Leader != before.Leader || after.Term != before.Term {
			t.Errorf("%+v after %+v", after, before)
		}
	}
}

// ticksToPreVote ticks a node alone until it asks for pre-votes.
func (s *sim) ticksToPreVote(n *simCore) int {
	s.net = nil
	for i := 1; i <= 100; i++ {
		n.core.Tick()
		s.pump(n)
		if s.preVotes() > 0 {
			return i
		}
	}
	return 0
}

// An election that is hastened and comes to nothing is repeated later each time. A connection hastens the next one
// again, and a leader that steps down has the usual patience.
func TestHastenedElectionsBackOff(t *testing.T) {
	s := newSim(t, 2, 3)
	n := s.nodes[1]
	within := func(when string, got, low, high int) {
		t.Helper()
		if got < low || got > high {
			t.Errorf("%s: an election after %d ticks, want %d to %d", when, got, low, high)
		}
	}
	within("at the start", s.ticksToPreVote(n), 10, 19)
	within("nothing came of it", s.ticksToPreVote(n), 10, 19)
	n.core.Reached()
	within("a member is reached", s.ticksToPreVote(n), 3, 7)
	within("nothing came of that", s.ticksToPreVote(n), 5, 9)
	within("nor of that", s.ticksToPreVote(n), 10, 19)
	s.settle()
	leader := s.nodes[n.core.Status().Leader]
	for range 20 { // it hears of nobody, and steps down
		s.net = nil
		leader.core.Tick()
		s.pump(leader)
		if leader.core.Status().Role != RoleLeader {
			break
		}
	}
	within("it led until now", s.ticksToPreVote(leader), 10, 19)
}

// beats counts the heartbeats that are on their way.
func (s *sim) beats() (n int) {
	for _, m := range s.net {
		if m.GetType() == raftpb.MsgHeartbeat {
			n++
		}
	}
	return n
}

// A leader beats at the last of the ticks that may come at once. A follower asks for no pre-vote within them: they
// end before it may miss its leader, and after them each tick counts by itself.
func TestQuietTicksDoNothing(t *testing.T) {
	s := newSim(t, 1, 3)
	s.settle()
	leader := s.nodes[s.nodes[1].core.Status().Leader]
	for range 20 {
		s.net = nil
		for left := leader.core.Quiet(); left > 0; left-- {
			leader.core.Tick()
			s.pump(leader)
			if last := left == 1; s.beats() > 0 != last {
				t.Fatalf("%d heartbeats with %d ticks to come", s.beats(), left-1)
			}
		}
		s.settle()
	}
	for id, n := range s.nodes {
		if id == leader.id {
			continue
		}
		s.net = nil
		quiet := n.core.Quiet()
		if want := n.core.cfg.ElectionTicks - 1; quiet != want {
			t.Errorf("%d quiet ticks after a heartbeat, want %d", quiet, want)
		}
		for range quiet {
			n.core.Tick()
			s.pump(n)
		}
		if got := n.core.Quiet(); got != 1 || s.preVotes() > 0 || n.core.Status().Leader == 0 {
			t.Errorf("after them %d quiet ticks, %d pre-votes, leader %d", got, s.preVotes(), n.core.Status().Leader)
		}
		if passed := s.ticksToPreVote(n); passed == 0 || passed > n.core.cfg.ElectionTicks {
			t.Errorf("a pre-vote after %d more ticks", passed)
		}
		if got := n.core.Quiet(); got != 1 {
			t.Errorf("%d quiet ticks without a leader, want 1", got)
		}
	}
}

// The only member of raft has nobody to beat for.
func TestLoneLeaderSleeps(t *testing.T) {
	s := newSim(t, 1, 1)
	n := s.nodes[1].core
	n.Campaign()
	for range 20 {
		s.pump(s.nodes[1])
		s.persist(s.nodes[1])
		s.applySome(s.nodes[1])
	}
	if got, want := n.Quiet(), n.cfg.ElectionTicks-1; got != want || n.Status().Role != RoleLeader {
		t.Errorf("%v: %d quiet ticks, want %d", n.Status().Role, got, want)
	}
}
