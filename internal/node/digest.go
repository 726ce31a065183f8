package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/internal/coder"
	"github.com/rdmcfs/rdmcfs/internal/control"
	"github.com/rdmcfs/rdmcfs/meta"
)

// The digests of the state are compared between the nodes at equal index all the time. A node judges only itself. If
// its digest differs from another node's, it reads all its state. Its state is wrong if that does not add up, or if a
// majority of three voters or more has one other digest and has read all of its own state.

const (
	// kindDigest is the kind of the call that asks a node for its digest at an index. The payload is index u64 ·
	// digest 16 · entry there; the answer known u8 · digest 16 · entry · index u64 at which the answering node last found
	// its state whole.
	kindDigest = 4
	// digestEvery is the pause between two comparisons.
	digestEvery = 2 * time.Second
	// digestTimeout bounds a comparison.
	digestTimeout = 5 * time.Second
	// digestPeers are asked each time, voters first. A fsck asks all.
	digestPeers = 8
	// verifyEvery is the time from one look at all of the state to the next. verifyPart is how much of a processor's
	// and the disk's time a look takes: a look that takes longer than verifyEvery goes on all the time. verifyPause is
	// left between two in any case.
	verifyEvery = 10 * time.Minute
	verifyPart  = 0.1
	verifyPause = 30 * time.Second
	marksKept   = 1 << 16
)

// marks are the digests at the last applied indexes.
type marks struct {
	mu   sync.Mutex
	list [marksKept]mark // by index modulo marksKept
}

type mark struct {
	index  uint64
	digest [16]byte
	entry  entryName
}

// entryName is what an entry of the log has, beside its index, that one of another history does not have.
type entryName struct {
	term      uint64
	timeNanos int64 // of the last proposal up to there
}

func (e *entryName) code(c *coder.Coder) {
	c.U64(&e.term)
	c.I64(&e.timeNanos)
}

func (m *marks) record(index uint64, digest [16]byte, entry entryName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.list[index%marksKept] = mark{index, digest, entry}
}

// forget drops all: the state was replaced.
func (m *marks) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.list[:])
}

func (m *marks) at(index uint64) (got mark, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	got = m.list[index%marksKept]
	return got, got.index == index && index > 0
}

// digestAnswer is what a node says of one index.
type digestAnswer struct {
	node   meta.NodeID
	digest [16]byte
	whole  bool // it has read all of its state since that index
	forked bool // it has another entry at that index: its state is that of another history, and says nothing
}

// verdict is what a node finds out about its own state.
type verdict uint8

const (
	agrees verdict = iota
	// differs: a node has another digest, and it can't be said yet which is right.
	differs
	// split: a node that has read all of its state has another digest, and fewer than three voters can't decide which
	// is right.
	split
	// outvoted: a majority of three voters or more has one other digest, and each of them has read all of its state.
	outvoted
)

// judge compares the own digest with what others have at the same entry. with names a node that has another one.
func judge(own [16]byte, answers []digestAnswer, voters []meta.NodeID) (v verdict, with meta.NodeID) {
	count := map[[16]byte]int{}
	for _, a := range answers {
		if a.digest == own || a.forked {
			continue
		}
		if v != split {
			v, with = differs, a.node
		}
		if a.whole && len(voters) < 3 {
			v, with = split, a.node
		}
		if a.whole && slices.Contains(voters, a.node) {
			count[a.digest]++
		}
	}
	for _, n := range count {
		if len(voters) >= 3 && n > len(voters)/2 {
			return outvoted, with
		}
	}
	return v, with
}

// digests compares this node's state with the others'.
type digests struct {
	self    meta.NodeID
	db      *meta.DB
	health  *stateHealth
	members *members
	peers   *control.Peers
	raft    *lateRaft
	marks   *marks
	onDisk  bool // the state lies on a disk of this machine
	log     *slog.Logger

	whole atomic.Uint64 // the state was read whole when this index was applied
	alarm chan struct{} // buffered 1: somebody has another digest
	words atomic.Pointer[string]
	split splitState
}

// splitState holds changes back while this node's state and another's differ, both are sound, and it can't be said
// which is right.
type splitState struct{ with atomic.Uint32 }

// errSplit says that two nodes differ.
var errSplit = errors.New("the states of two nodes differ, and this node changes nothing until one of them begins " +
	"again: see 'rdmcfs status'")

// err is the reason why nothing may be changed now, or nil.
func (s *splitState) err() error {
	if s.with.Load() != 0 {
		return errSplit
	}
	return nil
}

// record takes what a comparison found. That the other node does not answer ends nothing; that it agrees, or is no
// member any more, does.
func (s *splitState) record(
	v verdict, with meta.NodeID, own [16]byte, answers []digestAnswer, member func(meta.NodeID) bool,
) {
	other := meta.NodeID(s.with.Load())
	agreed := slices.ContainsFunc(answers, func(a digestAnswer) bool {
		return a.node == other && (a.digest == own || a.forked)
	})
	switch {
	case v == split:
		s.with.Store(uint32(with))
	case agreed || !member(other):
		s.with.Store(0)
	}
}

// run compares until ctx ends.
func (d *digests) run(ctx context.Context) {
	var r rounds
	for range ticks(ctx, digestEvery) {
		state := d.db.State() // before the mark, which is not an older state's then
		if r.rest(state, d.db.Index()) {
			continue
		}
		own, ok := d.marks.at(r.due)
		differed, all := false, false
		if ok && d.db.Distrusted() == nil {
			differed, all = d.compare(ctx, state, own)
		}
		r.agreed(all, state)
		r.done(differed, d.db.Index())
	}
}

// digestRest is how many rounds are left out while nothing is applied that all have not agreed on: nobody can find
// another digest at an index by asking again.
const digestRest = 14

// rounds says which index is compared next.
type rounds struct {
	due   uint64
	calm  uint64 // all who were asked had this node's digest at this index, 0: not known
	state uint64 // of the state that they agreed with
	left  int    // rounds to leave out
}

// rest reports whether a round is left out.
func (r *rounds) rest(state, applied uint64) bool {
	if r.left == 0 || r.calm != applied || r.state != state {
		return false
	}
	r.left--
	return true
}

// agreed notes whether all who were asked in a round had this node's digest.
func (r *rounds) agreed(all bool, state uint64) {
	r.calm, r.state, r.left = 0, state, 0
	if all {
		r.calm, r.left = r.due, digestRest
	}
}

// done ends a round. If digests differed, the same index is compared again: the nodes read all their states meanwhile,
// and that takes longer than it takes the log to go on. Otherwise the next index is the one that is applied now: others
// have applied it by the next round.
func (r *rounds) done(differed bool, applied uint64) {
	if !differed {
		r.due = applied
	}
}

// compare compares a digest of a state with what others have at the same index. It says whether it differs, and whether
// all who were asked have the same.
func (d *digests) compare(ctx context.Context, state uint64, own mark) (differed, all bool) {
	ctx, cancel := context.WithTimeout(ctx, digestTimeout)
	defer cancel()
	voters := numbers(d.raft.status().Voters)
	index := own.index
	peers := d.others(voters, digestPeers)
	answers := d.ask(ctx, own, peers)
	v, with := judge(own.digest, answers, voters)
	if d.db.State() != state {
		return false, false
	}
	if v != split || d.whole.Load() >= index {
		d.split.record(v, with, own.digest, answers, d.members.isMember)
	}
	switch at := slices.IndexFunc(answers, func(a digestAnswer) bool { return a.forked }); {
	case at >= 0 && d.raft.status().Diverged == "": // else the log has found it too, and says what to do
		d.say(forkedWords(d.self, answers[at].node, index), answers[at].node, index)
		return false, false
	case v == agrees:
		calm := d.split.err() == nil
		if calm {
			d.words.Store(nil)
		}
		return false, calm && at < 0 && len(answers) == len(peers)
	case d.whole.Load() < index:
		signalAlarm(d.alarm) // verify says next whether it is this node's fault
	case v == outvoted:
		d.health.distrust(state, fmt.Errorf("at log index %d most voters have another digest, among them node %d", index,
			with))
		return false, false
	}
	d.say(differWords(d.self, with, nodeOf(d.raft.status().Leader), voters, index, v == split), with, index)
	return true, false
}

// say makes words known in status, and the first ones in the log.
func (d *digests) say(text string, with meta.NodeID, index uint64) {
	if d.words.Swap(&text) == nil {
		d.log.Error("digests differ", "with", with, "index", index, "why", text)
	}
}

// forkedWords says that two nodes have different histories. That is no damage: neither is rebuilt.
func forkedWords(self, with meta.NodeID, index uint64) string {
	return fmt.Sprintf("nodes %d and %d have different entries at log index %d: a voter was put back to an older copy of "+
		"its data directory, and has gone on from there. Each of the two nodes keeps and shows what it has. If there is a "+
		"newer copy of the directory of that voter, stop it and put the newer copy back. Else compare the mounts of both, "+
		"and copy away what only one of them shows before it begins again", min(self, with), max(self, with), index)
}

// differWords says what to do about two nodes whose states differ while nobody can tell which is right. One of them has
// to begin again: one that does not vote, else one that does not lead, since the others go on without it. held says
// whether this node takes no changes meanwhile: what the other one does is for that one to say.
func differWords(self, with, leader meta.NodeID, voters []meta.NodeID, index uint64, held bool) string {
	stays, again := min(self, with), max(self, with)
	rank := func(n meta.NodeID) (r int) {
		if slices.Contains(voters, n) {
			r++
		}
		if n == leader {
			r++
		}
		return r
	}
	if rank(again) > rank(stays) {
		stays, again = again, stays
	}
	text := fmt.Sprintf("nodes %d and %d differ in their states at log index %d, and no majority of three voters says "+
		"which is right: "+
		"until this is mended, each may show names and versions that the other does not", stays, again, index)
	if held {
		text += fmt.Sprintf(", and node %d takes no changes", self)
	}
	return text +
		fmt.Sprintf(". Node %[1]d has to begin again: compare the mounts of both, copy away what only node %[1]d shows "+
			"and is right; "+
			"then stop node %[1]d, run 'rdmcfs evict' for it on node %[2]d, and join it again with an empty data directory",
			again, stays)
}

// digestQuestion asks for the digest at an index, and gives the one that the asking node has.
type digestQuestion struct {
	index  uint64
	digest [16]byte
	entry  entryName
}

func (q *digestQuestion) code(c *coder.Coder) {
	c.U64(&q.index)
	c.Fixed(q.digest[:])
	q.entry.code(c)
}

// digestReply is the answer: all zero if the node does not know its digest there.
type digestReply struct {
	known  bool
	digest [16]byte
	entry  entryName
	whole  uint64 // the index at which the answering node last found its state whole
}

func (a *digestReply) code(c *coder.Coder) {
	c.Flag(&a.known)
	c.Fixed(a.digest[:])
	a.entry.code(c)
	c.U64(&a.whole)
}

// others lists nodes that are up, except this one, voters first, at most limit.
func (d *digests) others(voters []meta.NodeID, limit int) []meta.NodeID {
	b := d.members.book()
	peers := slices.Clone(voters)
	for id := range b.nodes {
		if !slices.Contains(peers, id) {
			peers = append(peers, id)
		}
	}
	peers = slices.DeleteFunc(peers, func(id meta.NodeID) bool {
		return id == d.self || b.nodes[id].State != meta.NodeUp
	})
	return peers[:min(len(peers), limit)]
}

// ask gathers what others say of an index.
func (d *digests) ask(ctx context.Context, own mark, peers []meta.NodeID) (out []digestAnswer) {
	question := coder.Writer(nil, coder.Little)
	(&digestQuestion{own.index, own.digest, own.entry}).code(&question)
	payload := question.Written()
	got := make(chan digestAnswer, len(peers))
	var calls sync.WaitGroup
	for _, id := range peers {
		calls.Go(func() {
			body, err := d.peers.Call(ctx, uint32(id), kindDigest, payload)
			var a digestReply
			answer := coder.Reader(body, coder.Little)
			if a.code(&answer); err != nil || answer.Finish() != nil || !a.known {
				return
			}
			got <- digestAnswer{node: id, digest: a.digest, whole: a.whole >= own.index, forked: a.entry != own.entry}
		})
	}
	calls.Wait()
	close(got)
	for a := range got {
		out = append(out, a)
	}
	return out
}

// digestTries is how often a fsck asks nodes that do not know the digest yet, or do not answer.
const digestTries = 5

// compareNow asks all nodes that are up for their digests at the index that this node has applied. Nodes that have not
// said it after some attempts are left out.
func (d *digests) compareNow(ctx context.Context) (own mark, out map[meta.NodeID]digestAnswer) {
	out = map[meta.NodeID]digestAnswer{}
	own, known := d.marks.at(d.db.Index())
	if !known {
		return own, out // the state was replaced, and nothing was applied since
	}
	for try := range digestTries {
		if try > 0 && !pause(ctx, digestEvery) {
			break
		}
		left := slices.DeleteFunc(d.others(nil, int(^uint(0)>>1)), func(id meta.NodeID) bool {
			_, said := out[id]
			return said
		})
		if len(left) == 0 {
			break
		}
		call, cancel := context.WithTimeout(ctx, digestTimeout)
		for _, a := range d.ask(call, own, left) {
			out[a.node] = a
		}
		cancel()
	}
	return own, out
}

// handle answers another node, and looks at this node's own state where the two differ.
func (d *digests) handle(_ context.Context, _ control.Caller, payload []byte) ([]byte, error) {
	var q digestQuestion
	question := coder.Reader(payload, coder.Little)
	if q.code(&question); question.Finish() != nil {
		return nil, fmt.Errorf("node: digest call: %w: %w", control.ErrProtocol, question.Err())
	}
	var a digestReply
	if own, known := d.marks.at(q.index); known && d.db.Distrusted() == nil {
		a = digestReply{known: true, digest: own.digest, entry: own.entry, whole: d.whole.Load()}
		if own.digest != q.digest && own.entry == q.entry && a.whole < q.index {
			signalAlarm(d.alarm)
		}
	}
	answer := coder.Writer(nil, coder.Little)
	a.code(&answer)
	return answer.Written(), nil
}

func signalAlarm(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// verify reads all of the state: after the start, now and then, and at once when somebody has another digest.
func (d *digests) verify(ctx context.Context) {
	part := verifyPart
	if d.onDisk {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		lowDiskPriority()
	}
	for {
		began := time.Now()
		state := d.db.State()
		index := d.db.Index()
		err := d.db.Verify(ctx, part)
		switch {
		case ctx.Err() == nil && d.db.State() != state:
			continue // what was read was partly the state before
		case err == nil:
			d.whole.Store(index)
		case errors.Is(err, meta.ErrDamaged) && d.db.Distrusted() == nil:
			d.health.distrust(state, err)
		case ctx.Err() == nil:
			d.log.Debug("verify the state", "err", err)
		}
		timer := time.NewTimer(nextVerify(time.Since(began)))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-d.alarm:
			part = 1
		case <-timer.C:
			part = verifyPart
		}
		timer.Stop()
	}
}

// nextVerify is the pause after a look that took a while.
func nextVerify(took time.Duration) time.Duration { return max(verifyEvery-took, verifyPause) }

// lowDiskPriority lets all others go first where the disk's scheduler knows of priorities.
func lowDiskPriority() {
	const process, bestEffort, lowest = 1, 2 << 13, 7
	_, _, _ = unix.Syscall(unix.SYS_IOPRIO_SET, process, 0, bestEffort|lowest) // where there are none, nothing is lost
}
