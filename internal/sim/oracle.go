package sim

import (
	"cmp"
	"errors"
	"hash/fnv"
	"slices"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
)

// oracle sees everything and holds the cluster against the guarantees.
type oracle struct {
	w        *world
	chosen   []chosen // by index-1: what was applied there first
	fenced   map[meta.NodeID]uint32
	decided  map[meta.ContentID]decision
	executed map[executed]uint64
	sessions map[meta.ContentID]*file
	live     map[meta.ContentID]bool // published and not retired
	removed  map[meta.Ino]bool
	acks     []ack
	refused  map[meta.ContentID]string // sessions whose close failed for certain
	// untold are contents that a machine's disk has lost; depart marks machines about to be taken away.
	untold  map[lostCopy]bool
	depart  map[*machine]bool
	closing bool
}

type chosen struct {
	data   uint64 // hash of the entry
	digest [16]byte
}

type decision struct {
	commit bool
	index  uint64
}

type executed struct {
	node meta.NodeID
	inc  uint32
	seq  uint64
}

type ack struct {
	ino     meta.Ino
	id      meta.ContentID
	size    int64
	version uint64
	index   uint64
	orphan  bool
}

type lostCopy struct {
	m  *machine
	id meta.ContentID
}

func newOracle(w *world) *oracle {
	return &oracle{
		w: w, fenced: map[meta.NodeID]uint32{}, decided: map[meta.ContentID]decision{}, executed: map[executed]uint64{},
		sessions: map[meta.ContentID]*file{}, live: map[meta.ContentID]bool{}, removed: map[meta.Ino]bool{},
		refused: map[meta.ContentID]string{}, untold: map[lostCopy]bool{}, depart: map[*machine]bool{},
	}
}

// applied is told of each entry that a process has applied.
func (o *oracle) applied(l *life, e *consensus.Entry, res *meta.Result, events []meta.Event) {
	h := fnv.New64a()
	h.Write(e.Data)
	h.Write([]byte{byte(e.Term), byte(e.Time), byte(e.Time >> 8), byte(e.Time >> 16)})
	_, digest := l.db.Digest()
	now := chosen{h.Sum64(), digest}
	switch n := uint64(len(o.chosen)); {
	case e.Index <= n:
		o.same(l, e.Index, now)
		return
	case e.Index > n+1:
		o.w.fail("%s applies %d, nobody has applied %d", l.m.name, e.Index, n+1)
		return
	}
	o.chosen = append(o.chosen, now)
	o.w.stats.Entries++
	o.first(l, e, res, events)
}

// same holds that every process applies the same and gets the same state.
func (o *oracle) same(l *life, index uint64, now chosen) {
	switch want := o.chosen[index-1]; {
	case want.data != now.data:
		o.w.fail("%s applies another entry at %d than was applied before", l.m.name, index)
	case want.digest != now.digest:
		o.w.fail("%s: state at %d differs: %x, was %x", l.m.name, index, now.digest, want.digest)
	}
}

func (o *oracle) restored(l *life) {
	index, digest := l.db.Digest()
	if index > uint64(len(o.chosen)) || o.chosen[index-1].digest != digest {
		o.w.fail("%s: state of a snapshot at %d differs", l.m.name, index)
	}
}

// first looks at an entry that is applied for the first time anywhere.
func (o *oracle) first(l *life, e *consensus.Entry, res *meta.Result, events []meta.Event) {
	if len(e.Data) == 0 {
		return
	}
	if by := time.Duration(e.Time - o.w.now); by > stampAhead {
		o.w.fail("entry %d, applied by %s, is %v ahead of the truth", e.Index, l.m.name, by)
	}
	entry, err := meta.DecodeEntry(e.Data)
	if err != nil {
		o.w.fail("entry %d: %v", e.Index, err)
		return
	}
	o.w.tell("%4d %s: %v", e.Index, describe(&entry), outcome(res))
	if entry.Incarnation > 0 && res.Errno == 0 && !res.Duplicate && !res.Fenced {
		key := executed{entry.Node, entry.Incarnation, entry.Seq}
		if at, twice := o.executed[key]; twice {
			o.w.fail("proposal %v was executed at %d and again at %d", key, at, e.Index)
		}
		o.executed[key] = e.Index
		if entry.Incarnation <= o.fenced[entry.Node] {
			o.w.fail("entry %d of fenced incarnation %d of node %d was executed", e.Index, entry.Incarnation, entry.Node)
		}
	}
	if u, ok := entry.Op.(*meta.Unheld); ok && res.Errno == 0 {
		for _, id := range u.Contents {
			delete(o.untold, lostCopy{o.w.find(u.Node), id})
		}
	}
	p, publishes := entry.Op.(*meta.Publish)
	publishes = publishes && res.Errno == 0 && !res.Duplicate
	if publishes {
		o.publishes(e.Index, p)
	}
	for i := range events {
		o.event(e.Index, &events[i])
	}
	if publishes {
		o.published(l, p, res)
	}
}

func (o *oracle) publishes(index uint64, p *meta.Publish) {
	s := p.Session
	if s.Incarnation <= o.fenced[s.Node] {
		o.w.fail("entry %d publishes %v of a fenced incarnation", index, s)
	}
	f := o.sessions[s]
	if f == nil || f.size != p.Size || p.Size > 0 && f.root() != p.Root {
		o.w.fail("entry %d publishes %v, which is not what was written", index, s)
	}
	if why, ok := o.refused[s]; ok {
		o.w.fail("entry %d publishes %v, whose close failed for certain: %s", index, s, why)
	}
}

func (o *oracle) event(index uint64, e *meta.Event) {
	switch e.Kind {
	case meta.EventDecided:
		if d, twice := o.decided[e.Session]; twice {
			o.w.fail("session %v decided at %d (commit %t) and again at %d (commit %t)", e.Session, d.index, d.commit, index, e.Commit)
		}
		o.decided[e.Session] = decision{e.Commit, index}
	case meta.EventFenced:
		o.fenced[e.Node] = max(o.fenced[e.Node], e.Incarnation)
	case meta.EventRetired:
		if e.Node == 0 {
			delete(o.live, e.Content)
		}
	case meta.EventRemoved:
		o.removed[e.Ino] = true
	}
}

// published holds that the log believes no more than is true, and that a loser is kept (G7).
func (o *oracle) published(l *life, p *meta.Publish, res *meta.Result) {
	if res.Conflict {
		o.w.stats.Conflicts++
	}
	if p.Size > 0 && len(p.Inline) == 0 {
		o.live[p.Session] = true
		o.holders(l, p.Session)
	}
}

// holders holds that each node that the log believes to hold a content does, durably, and the right bytes.
func (o *oracle) holders(l *life, id meta.ContentID) {
	c, err := l.db.Content(id)
	if err != nil {
		return // kept by nobody any more
	}
	nodes, err := l.db.Holders(id)
	if err != nil {
		o.w.fail("holders of %v: %v", id, err)
		return
	}
	truly := 0
	for _, n := range nodes {
		m := o.w.find(n)
		if m == nil || m.gone || o.untold[lostCopy{m, id}] && !m.contents.durable(id) {
			continue
		}
		truly++
		delete(o.untold, lostCopy{m, id})
		b := m.contents.blobs[storeID(id)]
		switch {
		case b == nil || b.state == content.Partial:
			o.w.fail("node %d (%s) is believed to hold %v at index %d and does not", n, m.name, id, l.db.Index())
		case b.root != content.Hash(c.Root) || content.Root(b.size, b.leaves) != b.root:
			o.w.fail("node %d (%s) holds other bytes than %v", n, m.name, id)
		}
	}
	if truly == 0 && !o.anywhere(id) {
		o.w.fail("nobody holds %v (believed: %v)", id, nodes)
	}
}

// everything checks all live contents against the newest state there is.
func (o *oracle) everything() {
	for _, l := range o.w.live() {
		if l.db.Index() != uint64(len(o.chosen)) {
			continue
		}
		for _, id := range o.liveContents() {
			o.holders(l, id)
		}
		return
	}
}

func (o *oracle) liveContents() []meta.ContentID {
	ids := make([]meta.ContentID, 0, len(o.live))
	for id := range o.live {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, compareIDs)
	return ids
}

func compareIDs(a, b meta.ContentID) int {
	return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Incarnation, b.Incarnation), cmp.Compare(a.Seq, b.Seq))
}

// begun notes what a session is to publish.
func (o *oracle) begun(l *life, id meta.ContentID, f *file) {
	if o.sessions[id] != nil {
		o.w.fail("session %v was given out twice", id)
	}
	o.sessions[id] = f
}

// bytes are those of a small content.
func (o *oracle) bytes(id meta.ContentID) []byte {
	if f := o.sessions[id]; f != nil {
		return f.data
	}
	return nil
}

// over reports whether the log has decided a session, or fenced it.
func (o *oracle) over(id meta.ContentID) bool {
	_, ok := o.decided[id]
	return ok || id.Incarnation <= o.fenced[id.Node]
}

// voted notes that a node has told a vote. Until the log decides it must be kept.
func (o *oracle) voted(l *life, id meta.ContentID) {
	if o.over(id) {
		return
	}
	if !l.store.durable(id) {
		o.w.fail("%s votes for %v and has not stored it", l.m.name, id)
	}
	l.m.voted[id] = true
}

// votes holds that a machine has kept its votes.
func (o *oracle) votes(m *machine) {
	ids := make([]meta.ContentID, 0, len(m.voted))
	for id := range m.voted {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, compareIDs)
	for _, id := range ids {
		switch {
		case o.over(id):
			delete(m.voted, id)
		case !m.contents.durable(id):
			o.w.fail("%s has voted for %v, which is not decided, and has lost it", m.name, id)
		}
	}
}

func (o *oracle) started(m *machine) { o.votes(m) }
func (o *oracle) stopped(m *machine) { o.votes(m) }

func (o *oracle) lost(m *machine, id meta.ContentID) {
	o.untold[lostCopy{m, id}] = true
	delete(m.voted, id)
}

// find lets processes find out, sooner or later, what their disks have lost.
func (o *oracle) find() {
	for _, l := range o.w.live() {
		for _, id := range o.liveContents() {
			if o.untold[lostCopy{l.m, id}] && l.ready {
				l.rep.Missing(id)
			}
		}
	}
}

// unnoticed reports whether a disk has lost what its node is believed to hold.
func (o *oracle) unnoticed(l *life) bool {
	for _, id := range o.liveContents() {
		if !o.untold[lostCopy{l.m, id}] || l.store.durable(id) {
			continue
		}
		if holds, err := l.db.Holds(l.m.node, id); err == nil && holds {
			return true
		}
	}
	return false
}

func (o *oracle) leaving(m *machine) { o.depart[m] = true }

// cloned is told that a process found its incarnation taken by another: no such thing is made here.
func (o *oracle) cloned(l *life) {
	o.w.fail("%s finds another process running as its node; there is none", l.m.name)
}

// copies counts the machines but one that have a content on stable storage, stay, and are believed to hold it once it is published:
// what others happen to have they may delete.
func (o *oracle) copies(id meta.ContentID, but *machine) (n int) {
	head := o.head()
	for _, m := range o.w.machines {
		if m == but || m.gone || o.depart[m] || !m.contents.durable(id) {
			continue
		}
		if o.live[id] {
			if head == nil {
				continue
			}
			if holds, err := head.Holds(m.node, id); err != nil || !holds {
				continue
			}
		}
		n++
	}
	return n
}

// head is the newest state there is, nil if no process has it.
func (o *oracle) head() *meta.DB {
	for _, l := range o.w.live() {
		if l.db.Index() == uint64(len(o.chosen)) {
			return l.db
		}
	}
	return nil
}

// anywhere reports whether any machine has a content.
func (o *oracle) anywhere(id meta.ContentID) bool {
	for _, m := range o.w.machines {
		if !m.gone && m.contents.durable(id) {
			return true
		}
	}
	return false
}

// spare reports whether everything that a machine has is elsewhere too.
func (o *oracle) spare(m *machine) bool {
	for _, id := range m.contents.sorted(m.contents.blobs) {
		c := metaID(id)
		if m.contents.durable(c) && (o.live[c] || !o.over(c)) && o.copies(c, m) == 0 {
			return false
		}
	}
	return true
}

// quorumWithout reports whether the voters can do without a machine for ever. Those that stay must know from their disks that the
// last change of the voters is committed: raft votes by the configuration that a log is known to have committed.
func (o *oracle) quorumWithout(m *machine) bool {
	var conf []consensus.ID
	newest := uint64(0)
	for _, l := range o.w.live() {
		if l.duty.change != nil {
			return false
		}
		if l.know.confIndex >= newest && len(l.know.conf.GetVoters()) > 0 {
			newest, conf = l.know.confIndex, l.know.conf.GetVoters()
			if len(l.know.conf.GetVotersOutgoing()) > 0 {
				return false
			}
		}
	}
	left := 0
	for _, id := range conf {
		for _, x := range o.w.machines {
			if x.raftID == id && x != m && !x.gone && !o.depart[x] && x.life != nil && x.life.log.Hard().GetCommit() >= newest {
				left++
			}
		}
	}
	return left > len(conf)/2
}

// answered is told of a change of names that a client knows to be done.
func (o *oracle) answered(l *life, res meta.Result) {
	if res.Index > l.db.Index() || res.Index > uint64(len(o.chosen)) {
		o.w.fail("%s answers for entry %d, which it has not applied", l.m.name, res.Index)
	}
}

// closed is told what a close has answered.
func (o *oracle) closed(l *life, ino meta.Ino, base meta.ContentID, out pushOutcome, err error) {
	switch {
	case errors.Is(err, errUnknown):
		return
	case err != nil:
		if d, ok := o.decided[out.id]; ok && d.commit {
			o.w.fail("close of %v failed (%v), but it is published", out.id, err)
		}
		if out.id.Seq != 0 {
			o.refused[out.id] = err.Error()
		}
		return
	}
	o.answered(l, out.res)
	if d, ok := o.decided[out.id]; !ok || !d.commit {
		o.w.fail("close=0 for %v, which the log has not published", out.id)
	}
	if !out.blind {
		o.visible(l, out)
	}
	o.acks = append(o.acks, ack{ino, out.id, out.size, out.res.Version, out.res.Index, out.res.Orphan})
}

// visible is the barrier of G3: each up member that is not named behind has applied the entry.
func (o *oracle) visible(l *life, out pushOutcome) {
	for _, n := range l.book {
		m := o.w.find(n.ID)
		if n.State != meta.NodeUp || n.Incarnation <= o.fenced[n.ID] || contains(out.behind, n.ID) || m == nil || m.life == nil || !m.life.ready {
			continue
		}
		if x := m.life; x.proposer.self.Incarnation == n.Incarnation && x.apply.visible < out.res.Index {
			o.w.fail("close=0 at %d, but %s shows only %d and is not named behind", out.res.Index, m.name, x.apply.visible)
		}
	}
}
