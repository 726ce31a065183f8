// Package newnames is where a node gives the new names of directories by itself (docs/decisions/049). It stands between
// the mounts of the node and the log: a file that is made in a directory whose names are delegated to this node is
// pending until its first publish, and the log hears of it then.
package newnames

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
)

// Log orders an operation, and returns its result once this node has applied it. Of an operation whose outcome is not
// known, later ones are not ordered before it is.
type Log func(ctx context.Context, op meta.Op) (meta.Result, error)

// State is the namespace as this node has applied it.
type State interface {
	meta.Reader
	NamesHolder(dir meta.Ino) (meta.Lease, error)
	NamesHeld(l meta.Lease, after meta.Ino, limit int) ([]meta.Ino, error)
	NameTaken(dir meta.Ino, name string) (bool, error)
}

// Config is what a Holder needs. All fields are required.
type Config struct {
	State State
	Self  func() meta.Lease // this node's present incarnation
	Log   Log               // of what no caller waits for
	Now   func() time.Time
	// Awake is how long the machine has run, with the time that it slept. A clock that stands still in a simulation is
	// as good: the longer of this and of the monotonic clock counts.
	Awake func() time.Duration
	// Settle waits, for a bounded time, until the outcome of all that this node has proposed is known. Settled reports
	// whether it is.
	Settle  func(ctx context.Context) error
	Settled func() bool
	// Confirm returns nil if a quorum says, after the call began, that an incarnation is up, and that it will not be
	// fenced for its silence for another 3 s. It is bounded.
	Confirm func(ctx context.Context, l meta.Lease) error
	// Changed shows the mounts what has changed of pending files, as Applied does with what the log has changed.
	Changed func(events []meta.Event)
	Logger  *slog.Logger
}

const (
	// askWithin is how soon a second name in a directory comes after the first, if more are to be expected.
	askWithin = 10 * time.Second
	// askAgain is how long a directory is not asked for after a recall: several nodes make names there.
	askAgain = time.Minute
	// freshFor is how long after the begin of a confirmation pending files are made without another one. It is less than
	// the 3 s that it holds. confirmAfter is when the next one begins.
	freshFor     = 1500 * time.Millisecond
	confirmAfter = 500 * time.Millisecond
	// numbersLow is when more inode numbers are asked for.
	numbersLow = meta.NamesBlock / 4
	// rememberedMax bounds the directories of which this node remembers a name or a recall.
	rememberedMax = 1024
	// recallEvery is how often a recall is repeated while nothing happens. recallFor and recallForPublish are how long
	// it is waited for, and for what is under way of a pending file that an operation concerns. A holder that does not
	// answer is fenced after 3 s; one that can't return is not waited for.
	recallEvery      = time.Second
	recallFor        = 8 * time.Second
	recallForPublish = 20 * time.Second
	// heldIdle is after how long without a new file a directory is returned together with another one.
	heldIdle = 10 * time.Second
	// reservesMax is how many pending files are reserved at a time when a directory is given back.
	reservesMax = 64
	// retryEvery is the pause between attempts to give a directory back.
	retryEvery = time.Second
)

// name is a place in the tree.
type name struct {
	dir  meta.Ino
	name string
}

// pending is a file that the log does not know yet. Either publishes of it are ordered, or its reservation: each has
// the log answer before the other begins.
type pending struct {
	at         name
	rec        meta.Inode
	publishing int            // publishes that are being ordered
	reserving  bool           // its reservation is being ordered
	idle       chan struct{}  // closed when nothing is; nil if nothing is
	session    meta.ContentID // of the last publish
}

// beginLocked notes that something of the file is being ordered.
func (p *pending) beginLocked() {
	if p.idle == nil {
		p.idle = make(chan struct{})
	}
}

// endLocked notes that one thing less is being ordered.
func (p *pending) endLocked() {
	if p.publishing == 0 && !p.reserving {
		close(p.idle)
		p.idle = nil
	}
}

// Holder has the pending files of a node. All methods may be called at the same time.
type Holder struct {
	cfg      Config
	ctx      context.Context
	work     sync.WaitGroup
	askAgain time.Duration

	mu        sync.Mutex
	byName    map[meta.Ino]map[string]*pending // by directory
	byIno     map[meta.Ino]*pending
	busy      map[name]int     // names that operations under way may make
	busyDirs  map[meta.Ino]int // directories that operations under way may remove
	returning map[meta.Ino]bool
	made      map[meta.Ino]time.Time // when this node last made a name in a directory, here or by the log
	recalled  map[meta.Ino]time.Time // when a directory was last recalled, from whomever
	asked     map[meta.Ino]time.Time // when this node last recalled a directory
	asking    bool
	trust     trust
	numbers   numbers
	changed   chan struct{} // closed and replaced at each change of who holds what
	count     atomic.Int64  // of byIno
}

// trust is until when it is certain that an incarnation has not been fenced.
type trust struct {
	lease meta.Lease
	began time.Time // the last confirmation
	awake time.Duration
	under bool // the next one is under way
}

// numbers are inode numbers that are left: those of a block, and a whole block to go on with.
type numbers struct{ next, end, more meta.Ino }

// take gives a number; 0: none is left.
func (n *numbers) take() (ino meta.Ino) {
	if n.next == n.end && n.more != 0 {
		n.next, n.end, n.more = n.more, n.more+meta.NamesBlock, 0
	}
	if n.next == n.end {
		return 0
	}
	n.next++
	return n.next - 1
}

// low reports whether it is time to ask for more.
func (n *numbers) low() bool { return n.more == 0 && n.end-n.next < numbersLow }

// New makes a Holder without pending files. Its work in the background ends with ctx.
func New(ctx context.Context, cfg Config) *Holder {
	return &Holder{
		cfg: cfg, ctx: ctx, askAgain: askAgain,
		byName: map[meta.Ino]map[string]*pending{}, byIno: map[meta.Ino]*pending{},
		busy: map[name]int{}, busyDirs: map[meta.Ino]int{}, returning: map[meta.Ino]bool{},
		made: map[meta.Ino]time.Time{}, recalled: map[meta.Ino]time.Time{}, asked: map[meta.Ino]time.Time{},
		changed: make(chan struct{}),
	}
}

// Wait waits until the work in the background has ended.
func (h *Holder) Wait() { h.work.Wait() }

// Pending is how many files the log does not know yet.
func (h *Holder) Pending() int { return int(h.count.Load()) }

// Propose orders an operation by log, or answers it here.
func (h *Holder) Propose(ctx context.Context, op meta.Op, log Log) (meta.Result, error) {
	switch op := op.(type) {
	case *meta.Create:
		if res, ok := h.create(op); ok {
			return res, nil
		}
	case *meta.Unlink:
		if res, ok := h.unlink(op); ok {
			return res, nil
		}
	case *meta.Publish:
		if res, ok, err := h.publish(ctx, op, log); ok {
			return res, err
		}
	}
	return h.order(ctx, op, log)
}

// create makes a pending file, if the directory's names are this node's to give.
func (h *Holder) create(op *meta.Create) (res meta.Result, ok bool) {
	lease := h.cfg.Self()
	if op.Kind != meta.KindFile || lease.Incarnation == 0 {
		return res, false
	}
	h.mu.Lock()
	p, made := h.createLocked(op, lease)
	h.mu.Unlock()
	switch {
	case p == nil:
		return res, false
	case made:
		h.cfg.Changed([]meta.Event{{Kind: meta.EventName, Ino: p.at.dir, Name: p.at.name, Node: lease.Node}})
	case op.Excl:
		return meta.Result{Errno: syscall.EEXIST, Index: h.cfg.State.Index()}, true
	}
	return meta.Result{Ino: p.rec.Ino, Existed: !made, Inode: p.rec, Index: h.cfg.State.Index()}, true
}

// createLocked is the pending file of a name, made if there is none. It is nil if the log is to decide. What was under
// way in its place until just now may have an outcome that is not known: so that is asked here.
func (h *Holder) createLocked(op *meta.Create, lease meta.Lease) (p *pending, made bool) {
	at := name{op.Parent, op.Name}
	if h.busy[at] > 0 || h.busyDirs[at.dir] > 0 || h.returning[at.dir] || !h.cfg.Settled() {
		return nil, false
	}
	if p = h.byName[at.dir][at.name]; p != nil {
		return p, false
	}
	if holder, err := h.cfg.State.NamesHolder(at.dir); err != nil || holder != lease || !h.trustedLocked(lease) {
		return nil, false
	}
	if taken, err := h.cfg.State.NameTaken(at.dir, at.name); err != nil || taken {
		return nil, false
	}
	dir, err := h.cfg.State.Inode(at.dir)
	if err != nil {
		return nil, false
	}
	rec, err := meta.NewFile(h.cfg.State, dir, op, lease, h.cfg.Now().UnixNano())
	if err != nil {
		return nil, false
	}
	rec.Ino = h.numbers.take()
	if h.numbers.low() {
		h.askLocked(0)
	}
	if rec.Ino == 0 {
		return nil, false
	}
	p = &pending{at: at, rec: rec}
	if h.byName[at.dir] == nil {
		h.byName[at.dir] = map[string]*pending{}
	}
	h.byName[at.dir][at.name], h.byIno[rec.Ino] = p, p
	h.count.Add(1)
	remember(h.made, at.dir, h.cfg.Now())
	return p, true
}

// unlink forgets a pending file. One of which something is being ordered is for the log to remove, and so is one of
// which that has just ended with an outcome that is not known.
func (h *Holder) unlink(op *meta.Unlink) (res meta.Result, ok bool) {
	if h.count.Load() == 0 {
		return res, false
	}
	h.mu.Lock()
	p := h.byName[op.Parent][op.Name]
	if p == nil || p.publishing > 0 || p.reserving {
		h.mu.Unlock()
		return res, false
	}
	if !h.cfg.Settled() {
		h.mu.Unlock()
		return res, false
	}
	res.Index = h.cfg.State.Index()
	if op.Ino != 0 && op.Ino != p.rec.Ino {
		h.mu.Unlock()
		res.Errno = syscall.ESTALE
		return res, true
	}
	h.dropLocked(p)
	h.mu.Unlock()
	h.cfg.Changed(p.gone(false))
	res.Ino, res.Removed = p.rec.Ino, p.rec.Ino
	return res, true
}

// dropLocked forgets a pending file: the log knows it now, or it is gone.
func (h *Holder) dropLocked(p *pending) {
	if h.byIno[p.rec.Ino] != p {
		return
	}
	h.count.Add(-1)
	delete(h.byIno, p.rec.Ino)
	delete(h.byName[p.at.dir], p.at.name)
	if len(h.byName[p.at.dir]) == 0 {
		delete(h.byName, p.at.dir)
	}
}

// gone says that a pending file is gone: a program removed it, or it lost its name.
func (p *pending) gone(lost bool) []meta.Event {
	rec := p.rec
	return []meta.Event{
		{Kind: meta.EventName, Ino: p.at.dir, Name: p.at.name, Node: rec.Reserved.Node},
		{Kind: meta.EventRemoved, Ino: rec.Ino, Inode: &rec, Node: rec.Reserved.Node, Lost: lost},
	}
}

// publish orders the publish of a pending file: it brings name and number.
func (h *Holder) publish(ctx context.Context, op *meta.Publish, log Log) (res meta.Result, ok bool, err error) {
	if op.LinkName != "" || h.count.Load() == 0 {
		return res, false, nil
	}
	p, err := h.beginPublish(ctx, op)
	if p == nil {
		return res, err != nil, err
	}
	first := *op
	first.LinkParent, first.LinkName = p.at.dir, p.at.name
	first.Made, first.Btime = p.made(), p.rec.Btime
	res, err = log(ctx, &first)
	h.mu.Lock()
	defer h.mu.Unlock()
	p.publishing--
	p.endLocked()
	switch {
	case err == nil && res.Errno == 0:
		h.dropLocked(p) // perhaps it is gone again: then no name of it has been applied that is still there
	case err == nil && p.session == op.Session:
		p.session = meta.ContentID{} // refused: its end says nothing of the file
	}
	return res, true, err
}

// beginPublish waits until a pending file is not being reserved, and until it is known what became of earlier attempts:
// a program may remove the file before this one is ordered. It is nil if the log knows the file.
func (h *Holder) beginPublish(ctx context.Context, op *meta.Publish) (*pending, error) {
	for {
		if err := h.cfg.Settle(ctx); err != nil {
			return nil, err
		}
		h.mu.Lock()
		p := h.byIno[op.Ino]
		if p == nil {
			h.mu.Unlock()
			return nil, nil
		}
		if !p.reserving {
			p.publishing++
			p.session = op.Session
			p.beginLocked()
			h.mu.Unlock()
			return p, nil
		}
		idle := p.idle
		h.mu.Unlock()
		select {
		case <-idle:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// made is what the log is told of the file's creation.
func (p *pending) made() *meta.Made {
	return &meta.Made{Mode: p.rec.Mode, Cred: meta.Cred{UID: p.rec.UID, GID: p.rec.GID}, Policy: p.rec.Policy}
}
