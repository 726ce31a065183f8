package meta

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The model check: every order of votes, publishes, aborts, fences, boots, joins, evictions, losses and reports of a
// small cluster, up to a depth, over the real apply code. What each node truly has is kept beside the
// database, and after every entry the two are held against each other.
//
//	go test ./meta -run ModelCheck -model.depth 7
//	RDMCFS_MODEL_DEPTH=7 go test ./meta -run ModelCheck
var modelDepth = flag.Int("model.depth", 0, "depth of the model check (0: a few seconds' worth)")

// world is one state of the model.
type world struct {
	db    *DB
	nodes [4]modelNode // by number; 0 unused
	// pushes are the sessions so far, in order of their beginning.
	pushes []modelPush
	flight []modelEntry
	budget modelBudget
	path   []string
	log    [][]byte
}

// modelNode is what a node truly is.
type modelNode struct {
	incarnation uint32 // that it believes to have; 0: not booted
	seq         uint64
	has         uint64 // bit i: the bytes of push i, durable
	lost        uint64 // bit i: lost, and not reported to the log yet
	gone        bool   // evicted, or never joined
	unborn      bool
	store       byte // grows with a replacement
}

type modelPush struct {
	id      ContentID
	base    ContentID
	view    uint64
	votes   Votes
	decided int
	seq     uint64 // of its publish proposal; 0: none yet
	aborted bool
}

// modelEntry is a proposal under way: it may arrive at any time, twice, or never.
type modelEntry struct {
	name string
	e    Entry
	push int
	lost uint64 // Unheld: what it reports
	left int    // arrivals left
}

// modelBudget bounds the rare events of one run.
type modelBudget struct {
	downs, boots, losses, replaces, evicts, joins, fetches, pushes, aborts, unlinks, retries, drains, looks, returns int
}

const modelFile = Ino(1)<<40 | 1

func (w *world) clone() *world {
	c := *w
	c.db = w.db.Clone()
	c.pushes = append([]modelPush(nil), w.pushes...)
	for i := range c.pushes {
		c.pushes[i].votes.Bitmap = append([]byte(nil), w.pushes[i].votes.Bitmap...)
	}
	c.flight = append([]modelEntry(nil), w.flight...)
	c.path = append([]string(nil), w.path...)
	c.log = append([][]byte(nil), w.log...)
	return &c
}

// key names the state, without the path to it.
func (w *world) key() sum128 {
	var b strings.Builder
	h := w.db.cur.Load().head
	fmt.Fprintf(&b, "%x %x %v %v", h.Sum, h.View, w.nodes, w.budget)
	for _, p := range w.pushes {
		fmt.Fprintf(&b, "|%v %v %x %d %d %v", p.id, p.view, p.votes.Bitmap, p.decided, p.seq, p.aborted)
	}
	for _, f := range w.flight {
		fmt.Fprintf(&b, "|%s %d %d %x", f.name, f.e.Seq, f.left, EncodeEntry(f.e))
	}
	return hashPair(nil, []byte(b.String()))
}

type modelCheck struct {
	t       *testing.T
	policy  *Policy
	leaving bool // nodes drain, and are evicted if spare
	visited map[sum128]int8
	states  int
	applied int
}

func (m *modelCheck) fail(w *world, format string, args ...any) {
	m.t.Helper()
	m.t.Fatalf("%s\nafter:\n  %s", fmt.Sprintf(format, args...), strings.Join(w.path, "\n  "))
}

// apply runs an entry through the database and checks the invariants.
func (m *modelCheck) apply(w *world, e Entry) Result {
	m.t.Helper()
	e.Generation = FirstGeneration
	data := EncodeEntry(e)
	w.log = append(w.log, data)
	res, _, err := w.db.Apply(uint64(len(w.log)), 1, data)
	if err != nil {
		m.fail(w, "apply %T: %v", e.Op, err)
	}
	m.applied++
	return res
}

// propose makes an entry of a node under its own idea of its incarnation.
func (w *world) propose(n NodeID, op Op) Entry {
	node := &w.nodes[n]
	node.seq++
	return Entry{Node: n, Incarnation: node.incarnation, Seq: node.seq, Op: op}
}

func (m *modelCheck) boot(w *world, n NodeID) {
	res := m.apply(w, Entry{Node: n, Op: &Boot{Node: n, Store: [16]byte{byte(n), w.nodes[n].store}}})
	if res.Errno == 0 {
		w.nodes[n].incarnation, w.nodes[n].seq = res.Incarnation, 0
	} else {
		m.fail(w, "boot of %d: %v", n, res.Errno)
	}
}

// start is two nodes up, a third not yet there, and a reserved file of node 1.
func (m *modelCheck) start(nodes int) *world {
	w := &world{db: OpenMemory()}
	w.budget = modelBudget{downs: 1, boots: 2, losses: 1, replaces: 1, evicts: 1, joins: 1, fetches: 3, pushes: 2,
		aborts: 1, unlinks: 1, retries: 1}
	if m.leaving {
		w.budget.drains, w.budget.looks, w.budget.evicts, w.budget.replaces, w.budget.aborts, w.budget.unlinks = 2, 1, 0, 0,
			0, 0
	}
	if m.policy != nil && m.policy.KeepRemoved > 0 {
		w.budget.returns = 2
	}
	m.apply(w, Entry{Op: &SetVoters{}}) // in raft, which is not here
	for n := NodeID(1); n <= 3; n++ {
		w.nodes[n].gone, w.nodes[n].unborn = true, true
	}
	for n := NodeID(1); int(n) <= nodes; n++ {
		m.join(w, n, false)
		m.boot(w, n)
	}
	if m.policy != nil {
		m.apply(w, w.propose(1, &SetPolicy{Policy: m.policy}))
	}
	res := m.apply(w, w.propose(1, &Create{Parent: RootIno, Name: "f", Kind: KindFile}))
	if res.Ino != modelFile {
		m.fail(w, "create: %+v", res)
	}
	first := ContentID{Node: 1, Incarnation: 1, Seq: 1000}
	m.apply(w, w.propose(1, &Publish{Ino: modelFile, Session: first})) // empty, seen by all
	return w
}

func (m *modelCheck) join(w *world, n NodeID, replace bool) {
	j := &Join{Name: fmt.Sprint("n", n), Replace: replace}
	if n > 1 || replace {
		j.TokenHash = [32]byte{byte(n), byte(w.budget.replaces), byte(w.budget.joins)}
		m.apply(w, Entry{Op: &AddToken{Hash: j.TokenHash, Expires: 1 << 60, Replace: true}})
	}
	res := m.apply(w, Entry{Op: j})
	if res.Errno != 0 || res.Node != n {
		m.fail(w, "join %d: %+v", n, res)
	}
	w.nodes[n] = modelNode{store: w.nodes[n].store + 1}
}

// modelAction is a named step to a next state; fn changes the clone it is given.
type modelAction struct {
	name string
	fn   func(*world)
}

// actions lists what can happen next.
func (m *modelCheck) actions(w *world) (out []modelAction) {
	add := func(name string, fn func(*world)) { out = append(out, modelAction{name, fn}) }
	for n := NodeID(1); n <= 3; n++ {
		m.nodeActions(w, n, add)
	}
	for i := range w.pushes {
		m.pushActions(w, i, add)
	}
	for i, f := range w.flight {
		add(fmt.Sprintf("arrives: %s", f.name), func(w *world) { m.deliver(w, i) })
	}
	if w.budget.unlinks > 0 && w.nodes[2].incarnation > 0 && !w.nodes[2].gone {
		add("unlink by 2", func(w *world) {
			w.budget.unlinks--
			m.apply(w, w.propose(2, &Unlink{Parent: RootIno, Name: "f"}))
		})
	}
	if w.budget.returns > 0 && w.nodes[1].incarnation > 0 && !w.nodes[1].gone {
		m.returnActions(w, add)
	}
	return out
}

// returnActions are what may become of a removed file that is kept.
func (m *modelCheck) returnActions(w *world, add func(string, func(*world))) {
	kept, err := Removals{w.db}.Under("/", 10)
	if err != nil {
		m.fail(w, "removed files: %v", err)
	}
	for _, f := range kept {
		add("undelete by 1", func(w *world) {
			w.budget.returns--
			m.apply(w, w.propose(1, &Undelete{Removed: f.Index, Parent: RootIno, Name: "f"}))
		})
		add("drop by 1", func(w *world) {
			w.budget.returns--
			m.apply(w, w.propose(1, &Undelete{Removed: f.Index, Drop: true}))
		})
	}
}

func (m *modelCheck) nodeActions(w *world, n NodeID, add func(string, func(*world))) {
	node := w.nodes[n]
	rec := w.db.cur.Load().cl.node(n)
	if node.unborn {
		if w.budget.joins > 0 {
			add(fmt.Sprint("join ", n), func(w *world) { w.budget.joins--; m.join(w, n, false) })
		}
		return
	}
	if node.gone {
		return
	}
	if node.incarnation > 0 && w.budget.pushes > 0 && len(w.flight) < 3 {
		add(fmt.Sprint("begin push at ", n), func(w *world) { m.begin(w, n) })
	}
	if rec.State == NodeUp && w.budget.downs > 0 {
		add(fmt.Sprint("down ", n), func(w *world) {
			w.budget.downs--
			m.apply(w, Entry{Op: &Down{Node: n, Incarnation: rec.Incarnation}})
		})
	}
	if w.budget.boots > 0 && (rec.State != NodeUp || w.budget.boots > 1) {
		add(fmt.Sprint("boot ", n), func(w *world) { w.budget.boots--; m.boot(w, n) })
	}
	if w.budget.evicts > 0 && w.spare(n, ^uint64(0)) {
		add(fmt.Sprint("evict ", n), func(w *world) {
			w.budget.evicts--
			w.nodes[n].gone = true
			m.apply(w, Entry{Op: &Evict{Node: n}})
		})
	}
	if w.budget.replaces > 0 && w.spare(n, ^uint64(0)) {
		add(fmt.Sprint("replace ", n), func(w *world) { w.budget.replaces--; m.join(w, n, true) })
	}
	m.leaveActions(w, n, rec, add)
	if node.incarnation == 0 || len(w.flight) >= 3 {
		return
	}
	if lost := node.lost; lost != 0 && !w.flying(n, "unheld") {
		add(fmt.Sprint("tell loss at ", n), func(w *world) { m.tellLoss(w, n) })
	}
	if !w.flying(n, "held") {
		m.fetchActions(w, n, add)
	}
}

// leaveActions are drains and their ends, and the look that comes before an eviction.
func (m *modelCheck) leaveActions(w *world, n NodeID, rec *nodeRecord, add func(string, func(*world))) {
	if w.budget.drains > 0 {
		add(fmt.Sprintf("drain %d, undo %v", n, rec.draining()), func(w *world) {
			w.budget.drains--
			m.apply(w, Entry{Op: &Drain{Node: n, Undo: rec.draining()}})
		})
	}
	if w.budget.looks == 0 || len(w.flight) >= 3 {
		return
	}
	d, err := w.db.OnlyOn(n, 0, 1)
	if err != nil {
		m.fail(w, "only on %d: %v", n, err)
	}
	if d.Contents == 0 {
		add(fmt.Sprint("look before the eviction of ", n), func(w *world) {
			w.budget.looks--
			e := Entry{Op: &EvictSpare{Node: n, View: d.View, Checked: d.Checked}}
			w.flight = append(w.flight, modelEntry{name: fmt.Sprint("eviction of ", n), e: e, push: -1, left: 1})
		})
	}
}

// evictArrives makes an eviction arrive that was prepared before. If a node has a loss that it has not reported,
// nothing is done: nobody else can know of the loss.
func (m *modelCheck) evictArrives(w *world, e Entry, op *EvictSpare) {
	for _, n := range w.nodes {
		if n.lost != 0 {
			return
		}
	}
	if res := m.apply(w, e); res.Errno != 0 {
		return
	}
	if !w.spare(op.Node, ^uint64(0)) {
		for i := range w.pushes {
			if _, err := w.db.Content(w.pushes[i].id); err == nil && !w.hasBeside(op.Node, i) {
				m.fail(w, "node %d was evicted with the last copy of push %d", op.Node, i)
			}
		}
	}
	w.nodes[op.Node].gone = true
}

func (w *world) hasBeside(n NodeID, push int) bool {
	for o := range w.nodes {
		if NodeID(o) != n && !w.nodes[o].gone && w.nodes[o].has&(1<<push) != 0 {
			return true
		}
	}
	return false
}

// spare reports whether each of the pushes is durable on another member too, so that this node's copies may go.
func (w *world) spare(n NodeID, pushes uint64) bool {
	for i := range w.pushes {
		bit := uint64(1) << i
		if w.nodes[n].has&bit&pushes == 0 {
			continue
		}
		others := false
		for o := range w.nodes {
			others = others || NodeID(o) != n && !w.nodes[o].gone && w.nodes[o].has&bit != 0
		}
		if !others {
			return false
		}
	}
	return true
}

func (w *world) flying(n NodeID, kind string) bool {
	for _, f := range w.flight {
		if f.e.Node == n && strings.HasPrefix(f.name, kind) {
			return true
		}
	}
	return false
}

// fetchActions are catching up on what is owed, singly or as a whole.
func (m *modelCheck) fetchActions(w *world, n NodeID, add func(string, func(*world))) {
	list, err := w.db.OwedTo(n, 0, 10)
	if err != nil {
		m.fail(w, "owed to %d: %v", n, err)
	}
	if w.budget.fetches == 0 {
		return
	}
	view, index := w.db.View(), w.db.Index()
	var all uint64
	for _, o := range list {
		i := w.pushOf(o.Content)
		if i < 0 || !w.someoneHas(i) {
			return // none is left to fetch from now
		}
		all |= 1 << i
		add(fmt.Sprintf("fetch %v at %d", i, n), func(w *world) {
			w.budget.fetches--
			w.nodes[n].has |= 1 << i
			w.nodes[n].lost &^= 1 << i
			w.fly(n, fmt.Sprint("held ", i, " at ", n), &Held{Node: n, Contents: []ContentID{o.Content}})
		})
	}
	add(fmt.Sprint("fetch all at ", n), func(w *world) {
		w.budget.fetches--
		w.nodes[n].has |= all
		w.nodes[n].lost &^= all
		h := &Held{Node: n, UpTo: index, View: view}
		for _, o := range list {
			h.Contents = append(h.Contents, o.Content)
		}
		w.fly(n, fmt.Sprint("held up to ", index, " at ", n), h)
	})
}

func (w *world) someoneHas(push int) bool {
	for _, n := range w.nodes {
		if !n.gone && n.has&(1<<push) != 0 {
			return true
		}
	}
	return false
}

func (w *world) pushOf(id ContentID) int {
	for i := range w.pushes {
		if w.pushes[i].id == id {
			return i
		}
	}
	return -1
}

func (w *world) fly(n NodeID, name string, op Op) {
	w.flight = append(w.flight, modelEntry{name: name, e: w.propose(n, op), push: -1, left: 1})
}

func (m *modelCheck) tellLoss(w *world, n NodeID) {
	u := &Unheld{Node: n, Reason: OwedLost}
	lost := w.nodes[n].lost
	for i := range w.pushes {
		if lost&(1<<i) != 0 {
			u.Contents = append(u.Contents, w.pushes[i].id)
		}
	}
	w.fly(n, fmt.Sprint("unheld at ", n), u)
	w.flight[len(w.flight)-1].lost = lost
}

func (m *modelCheck) begin(w *world, n NodeID) {
	w.budget.pushes--
	id := ContentID{Node: n, Incarnation: w.nodes[n].incarnation, Seq: uint64(len(w.pushes) + 1)}
	p := modelPush{id: id, view: w.db.View()}
	if i, err := w.db.Inode(modelFile); err == nil {
		p.base = i.Content
	}
	w.pushes = append(w.pushes, p)
}

func (m *modelCheck) pushActions(w *world, i int, add func(string, func(*world))) {
	p := w.pushes[i]
	writer := &w.nodes[p.id.Node]
	if writer.gone || writer.incarnation != p.id.Incarnation {
		return // the writer's process is gone, and its session with it
	}
	for n := NodeID(1); n <= 3; n++ {
		if node := w.nodes[n]; node.gone || node.incarnation == 0 {
			continue
		} else if node.has&(1<<i) == 0 && p.seq == 0 {
			add(fmt.Sprintf("vote of %d for %d", n, i), func(w *world) {
				w.nodes[n].has |= 1 << i
				w.nodes[n].lost &^= 1 << i
				w.pushes[i].votes.Add(n)
			})
		}
	}
	for n := NodeID(1); n <= 3; n++ {
		if w.nodes[n].has&(1<<i) != 0 && w.budget.losses > 0 && !w.nodes[n].gone && w.spare(n, 1<<i) {
			add(fmt.Sprintf("loss of %d at %d", i, n), func(w *world) {
				w.budget.losses--
				w.nodes[n].has &^= 1 << i
				w.nodes[n].lost |= 1 << i
			})
		}
	}
	if len(p.votes.Bitmap) > 0 && p.seq == 0 && len(w.flight) < 3 {
		add(fmt.Sprint("propose publish ", i), func(w *world) { m.proposePublish(w, i) })
	}
	if p.seq > 0 && w.budget.retries > 0 && len(w.flight) < 3 {
		add(fmt.Sprint("propose publish again ", i), func(w *world) { w.budget.retries--; m.proposePublish(w, i) })
	}
	if w.budget.aborts > 0 && len(w.flight) < 3 {
		add(fmt.Sprint("propose abort ", i), func(w *world) {
			w.budget.aborts--
			w.fly(p.id.Node, fmt.Sprint("abort ", i), &Abort{Session: p.id})
			w.flight[len(w.flight)-1].push = i
		})
	}
}

func (m *modelCheck) proposePublish(w *world, i int) {
	p := &w.pushes[i]
	v := Votes{View: p.view, Bitmap: append([]byte(nil), p.votes.Bitmap...)}
	e := w.propose(p.id.Node, &Publish{Ino: modelFile, Session: p.id, Base: p.base, Size: 8, Votes: v})
	p.seq = e.Seq
	w.flight = append(w.flight, modelEntry{name: fmt.Sprint("publish ", i), e: e, push: i, left: 2})
}

// deliver lets a proposal arrive and checks what may come of it.
func (m *modelCheck) deliver(w *world, i int) {
	f := &w.flight[i]
	entry := *f
	if f.left--; f.left == 0 {
		w.flight = append(append([]modelEntry(nil), w.flight[:i]...), w.flight[i+1:]...)
	}
	if op, ok := entry.e.Op.(*EvictSpare); ok {
		m.evictArrives(w, entry.e, op)
		return
	}
	before := w.db.cur.Load().cl
	res := m.apply(w, entry.e)
	if res.Errno != 0 || res.Duplicate {
		return
	}
	if !before.alive(Lease{entry.e.Node, entry.e.Incarnation}) {
		m.fail(w, "an entry of a fenced incarnation took effect: %+v", entry.e)
	}
	n := &w.nodes[entry.e.Node]
	switch op := entry.e.Op.(type) {
	case *Publish:
		m.published(w, entry.push)
		m.checkVotes(w, before, op, res)
	case *Abort:
		w.pushes[entry.push].aborted = true
		if w.pushes[entry.push].decided > 0 && w.db.cur.Load().cl.alive(Lease{op.Session.Node, op.Session.Incarnation}) {
			if _, err := w.db.Content(op.Session); err == nil {
				m.fail(w, "aborted what is published")
			}
		}
		if d, _ := w.db.Decided(op.Session); !d {
			m.fail(w, "aborted, but not decided")
		}
	case *Unheld:
		n.lost &^= entry.lost
	}
}

func (m *modelCheck) published(w *world, i int) {
	p := &w.pushes[i]
	if p.decided++; p.decided > 1 || p.aborted {
		m.fail(w, "session %v published %d times, aborted %v", p.id, p.decided, p.aborted)
	}
}

// checkVotes counts again, by hand, the votes that may be counted.
func (m *modelCheck) checkVotes(w *world, cl *cluster, p *Publish, res Result) {
	policy := cl.policy(0)
	voted := func(n *nodeRecord) bool { return n.State == NodeUp && p.Votes.Has(n.ID) && n.BootView <= p.Votes.View }
	members := cl.members(policy, p.Ino)
	up, valid := 0, 0
	for _, id := range members {
		if n := cl.node(id); n.State == NodeUp {
			up++
			if voted(n) {
				valid++
			}
		}
	}
	for _, n := range cl.nodes { // began to drain while it took the content, or stood in for a member that is back
		if policy.Placement == PlaceCopies && n != nil && !contains(members, n.ID) && voted(n) {
			valid++
		}
	}
	want := max(1, min(2, up))
	if policy.MinCopies == 0 && valid < want {
		m.fail(w, "published with %d votes, %d needed: %+v", valid, want, res)
	}
	holders, err := w.db.Holders(p.Session)
	if err != nil || policy.MinCopies == 0 && len(holders) < want {
		m.fail(w, "published, and held by %v, %d needed: %v", holders, want, err)
	}
}

// invariants holds the database against the truth.
func (m *modelCheck) invariants(w *world) {
	for i, p := range w.pushes {
		c, err := w.db.Content(p.id)
		if err == ErrNotFound {
			continue
		}
		if err != nil {
			m.fail(w, "content %v: %v", p.id, err)
		}
		if !w.someoneHas(i) {
			m.fail(w, "push %d is %v, and no member has it", i, c.State)
		}
		m.checkHolders(w, i, c)
	}
	m.checkRemoved(w)
	for n := NodeID(1); n <= 3; n++ {
		rec := w.db.cur.Load().cl.node(n)
		if rec == nil {
			continue
		}
		if _, _, err := w.db.OwedCount(n); err != nil {
			m.fail(w, "owed to %d: %v", n, err)
		}
	}
}

// checkRemoved holds the removed files against their contents.
func (m *modelCheck) checkRemoved(w *world) {
	kept, err := Removals{w.db}.Under("/", 10)
	if err != nil || uint64(len(kept)) != w.db.cur.Load().head.Removed {
		m.fail(w, "removed files: %d are counted, listed %+v: %v", w.db.cur.Load().head.Removed, kept, err)
	}
	has := map[ContentID]bool{}
	for _, f := range kept {
		if has[f.Inode.Content] = true; f.Inode.Content.IsZero() {
			continue
		}
		if c, err := w.db.Content(f.Inode.Content); err != nil || c.State != ContentRemoved {
			m.fail(w, "the content of %s, which is kept, is %v: %v", f.Path, c.State, err)
		}
	}
	for _, p := range w.pushes {
		if c, err := w.db.Content(p.id); err == nil && c.State == ContentRemoved && !has[p.id] {
			m.fail(w, "content %v is of a removed file that is not kept", p.id)
		}
	}
}

func (m *modelCheck) checkHolders(w *world, i int, c Content) {
	members, err := w.db.Members(c.Policy, c.Ino)
	if err != nil {
		m.fail(w, "members: %v", err)
	}
	bit := uint64(1) << i
	for n := NodeID(1); n <= 3; n++ {
		if w.nodes[n].unborn {
			continue
		}
		believed, err := w.db.Holds(n, c.ID)
		if err != nil {
			m.fail(w, "holds: %v", err)
		}
		if believed && (w.nodes[n].has|w.nodes[n].lost)&bit == 0 {
			m.fail(w, "node %d is believed to hold push %d and lacks it", n, i)
		}
		if believed && w.nodes[n].gone {
			m.fail(w, "evicted node %d is believed to hold push %d", n, i)
		}
		if !believed && contains(members, n) && !m.isOwed(w, n, c.ID) && !m.substitute(w, n) {
			m.fail(w, "member %d neither holds push %d nor is owed it", n, i)
		}
	}
}

// substitute reports that a node may be a member of an older content only for now: another member is not up.
func (m *modelCheck) substitute(w *world, n NodeID) bool {
	if m.policy == nil || m.policy.Placement != PlaceCopies {
		return false
	}
	for _, r := range w.db.cur.Load().cl.nodes {
		if r != nil && (r.State == NodeDown || r.State == NodeJoined) && r.ID != n {
			return true
		}
	}
	return false
}

func (m *modelCheck) isOwed(w *world, n NodeID, id ContentID) bool {
	list, err := w.db.OwedTo(n, 0, 100)
	if err != nil {
		m.fail(w, "owed to %d: %v", n, err)
	}
	for _, o := range list {
		if o.Content == id {
			return true
		}
	}
	return false
}

// explore visits every state reachable in depth steps.
func (m *modelCheck) explore(w *world, depth int) {
	key := w.key()
	if seen, ok := m.visited[key]; ok && int(seen) >= depth {
		return
	}
	m.visited[key] = int8(depth)
	m.states++
	m.invariants(w)
	if m.states%512 == 0 {
		m.replay(w)
	}
	if depth == 0 {
		return
	}
	for _, a := range m.actions(w) {
		next := w.clone()
		next.path = append(next.path, a.name)
		a.fn(next)
		m.explore(next, depth-1)
	}
}

// replay applies the same log to a fresh database.
func (m *modelCheck) replay(w *world) {
	db := OpenMemory()
	for i, data := range w.log {
		if _, _, err := db.Apply(uint64(i+1), 1, data); err != nil {
			m.fail(w, "replay: %v", err)
		}
	}
	_, want := w.db.Digest()
	if _, got := db.Digest(); got != want {
		m.fail(w, "replay: digest %x, want %x", got, want)
	}
}

func TestModelCheck(t *testing.T) {
	depth := *modelDepth
	if v, err := strconv.Atoi(os.Getenv("RDMCFS_MODEL_DEPTH")); err == nil && depth == 0 {
		depth = v
	}
	cases := map[string]struct {
		policy *Policy
		nodes  int
		prefix []string // steps taken before the search, to reach deeper
	}{
		"all":       {nil, 3, nil},
		"all, join": {nil, 2, []string{"begin push at 1", "vote of 1 for 0", "vote of 2 for 0", "propose publish 0"}},
		"all, published": {nil, 3, []string{"begin push at 1", "vote of 1 for 0", "vote of 2 for 0", "propose publish 0",
			"arrives: publish 0"}},
		"all, caught up": {nil, 3, []string{"begin push at 1", "vote of 1 for 0", "vote of 2 for 0", "propose publish 0",
			"arrives: publish 0", "fetch all at 3"}},
		"all, leaving": {nil, 3, []string{"begin push at 1", "vote of 1 for 0", "vote of 2 for 0", "propose publish 0"}},
		"copies, leaving": {&Policy{Placement: PlaceCopies, Copies: 1}, 3,
			[]string{"begin push at 1", "vote of 1 for 0", "vote of 2 for 0", "vote of 3 for 0", "propose publish 0"}},
		"all, removed": {&Policy{KeepRemoved: 1 << 40}, 3, []string{"begin push at 1", "vote of 1 for 0", "vote of 2 for 0",
			"propose publish 0", "arrives: publish 0", "unlink by 2"}},
		"copies, removed": {&Policy{Placement: PlaceCopies, Copies: 2, KeepRemoved: 1 << 40}, 3,
			[]string{"begin push at 1", "vote of 1 for 0", "vote of 2 for 0", "vote of 3 for 0", "propose publish 0",
				"arrives: publish 0", "unlink by 2"}},
		"copies": {&Policy{Placement: PlaceCopies, Copies: 2}, 3,
			[]string{"begin push at 1", "vote of 1 for 0", "vote of 2 for 0", "vote of 3 for 0", "propose publish 0"}},
		"copies, published": {&Policy{Placement: PlaceCopies, Copies: 2}, 3,
			[]string{"begin push at 1", "vote of 1 for 0", "vote of 2 for 0", "vote of 3 for 0", "propose publish 0",
				"arrives: publish 0"}},
	}
	names := slices.Sorted(maps.Keys(cases))
	for _, name := range names {
		c := cases[name]
		t.Run(name, func(t *testing.T) {
			m := &modelCheck{t: t, policy: c.policy, leaving: strings.HasSuffix(name, "leaving"), visited: map[sum128]int8{}}
			w := m.start(c.nodes)
			for _, step := range c.prefix {
				m.take(w, step)
			}
			d := depth
			if d == 0 && testing.Short() {
				d = 3
			} else if d == 0 {
				d = 4
			}
			m.explore(w, d)
			t.Logf("depth %d after %d given steps: %d states, %d entries applied", d, len(c.prefix), m.states, m.applied)
		})
	}
}

// take follows one named step.
func (m *modelCheck) take(w *world, name string) {
	actions := m.actions(w)
	for i := range actions {
		if actions[i].name == name {
			w.path = append(w.path, name)
			actions[i].fn(w)
			m.invariants(w)
			return
		}
	}
	m.fail(w, "no step %q", name)
}
