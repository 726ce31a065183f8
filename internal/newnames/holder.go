// Package newnames is where a node gives the new names of directories by itself (docs/decisions/049). It stands between
// the mounts of the node and the log: a file that is made in a directory whose names are delegated to this node is
// pending until its first publish, and the log hears of it then.
package newnames

import (
	"context"
	"log/slog"
	"sync"
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
	NameTaken(dir meta.Ino, name string) (bool, error)
}

// Config is what a Holder needs. All fields are required.
type Config struct {
	State State
	Self  func() meta.Lease // this node's present incarnation
	Log   Log               // of what no caller waits for
	Now   func() time.Time
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
	// recallEvery is how often a recall is repeated while nothing happens, and recallFor how long it is waited for. A
	// holder that does not answer is fenced long before that.
	recallEvery = time.Second
	recallFor   = 30 * time.Second
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

// pending is a file that the log does not know yet.
type pending struct {
	at         name
	rec        meta.Inode
	publishing int           // publishes that are being ordered
	idle       chan struct{} // closed when none is; nil if none is
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
	touched   map[meta.Ino]int64     // when the last pending file was made in a directory, ns
	made      map[meta.Ino]time.Time // when this node last made a name by the log
	recalled  map[meta.Ino]time.Time
	asking    bool
	confirmed time.Time  // when the last confirmation began
	under     meta.Lease // that it was about
	inConfirm bool
	next, end meta.Ino      // inode numbers that are left
	changed   chan struct{} // closed and replaced at each change of who holds what
}

// New makes a Holder without pending files. Its work in the background ends with ctx.
func New(ctx context.Context, cfg Config) *Holder {
	return &Holder{
		cfg: cfg, ctx: ctx, askAgain: askAgain,
		byName: map[meta.Ino]map[string]*pending{}, byIno: map[meta.Ino]*pending{},
		busy: map[name]int{}, busyDirs: map[meta.Ino]int{}, returning: map[meta.Ino]bool{},
		touched: map[meta.Ino]int64{}, made: map[meta.Ino]time.Time{}, recalled: map[meta.Ino]time.Time{},
		changed: make(chan struct{}),
	}
}

// Wait waits until the work in the background has ended.
func (h *Holder) Wait() { h.work.Wait() }

// Pending is how many files the log does not know yet.
func (h *Holder) Pending() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.byIno)
}

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

// createLocked is the pending file of a name, made if there is none. It is nil if the log is to decide.
func (h *Holder) createLocked(op *meta.Create, lease meta.Lease) (p *pending, made bool) {
	at := name{op.Parent, op.Name}
	if h.busy[at] > 0 || h.busyDirs[at.dir] > 0 || h.returning[at.dir] {
		return nil, false
	}
	if p = h.byName[at.dir][at.name]; p != nil {
		return p, false
	}
	if holder, err := h.cfg.State.NamesHolder(at.dir); err != nil || holder != lease || !h.isFreshLocked(lease) {
		return nil, false
	}
	if taken, err := h.cfg.State.NameTaken(at.dir, at.name); err != nil || taken {
		return nil, false
	}
	dir, err := h.cfg.State.Inode(at.dir)
	if err != nil || h.next == h.end {
		h.askNumbersLocked()
		return nil, false
	}
	rec, err := meta.NewFile(h.cfg.State, dir, op, h.next, lease, h.cfg.Now().UnixNano())
	if err != nil {
		return nil, false
	}
	h.next++
	if h.end-h.next < numbersLow {
		h.askNumbersLocked()
	}
	p = &pending{at: at, rec: rec}
	if h.byName[at.dir] == nil {
		h.byName[at.dir] = map[string]*pending{}
	}
	h.byName[at.dir][at.name], h.byIno[rec.Ino] = p, p
	h.touched[at.dir] = rec.Ctime
	return p, true
}

// unlink forgets a pending file. One that is being published is for the log to remove.
func (h *Holder) unlink(op *meta.Unlink) (res meta.Result, ok bool) {
	h.mu.Lock()
	p := h.byName[op.Parent][op.Name]
	if p == nil || p.publishing > 0 {
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
	h.touched[p.at.dir] = h.cfg.Now().UnixNano()
	h.mu.Unlock()
	h.cfg.Changed(goneEvents(p))
	res.Ino, res.Removed = p.rec.Ino, p.rec.Ino
	return res, true
}

// dropLocked forgets a pending file: the log knows it now, or it is gone.
func (h *Holder) dropLocked(p *pending) {
	if h.byIno[p.rec.Ino] != p {
		return
	}
	delete(h.byIno, p.rec.Ino)
	delete(h.byName[p.at.dir], p.at.name)
	if len(h.byName[p.at.dir]) == 0 {
		delete(h.byName, p.at.dir)
		delete(h.touched, p.at.dir)
	}
}

// goneEvents say that a pending file is gone.
func goneEvents(p *pending) []meta.Event {
	rec := p.rec
	return []meta.Event{
		{Kind: meta.EventName, Ino: p.at.dir, Name: p.at.name, Node: rec.Reserved.Node},
		{Kind: meta.EventRemoved, Ino: rec.Ino, Inode: &rec, Node: rec.Reserved.Node},
	}
}

// publish orders the publish of a pending file: it brings name and number.
func (h *Holder) publish(ctx context.Context, op *meta.Publish, log Log) (res meta.Result, ok bool, err error) {
	if op.LinkName != "" {
		return res, false, nil
	}
	h.mu.Lock()
	p := h.byIno[op.Ino]
	if p == nil {
		h.mu.Unlock()
		return res, false, nil
	}
	if p.publishing++; p.publishing == 1 {
		p.idle = make(chan struct{})
	}
	h.mu.Unlock()
	res, err = log(ctx, p.named(op))
	h.mu.Lock()
	defer h.mu.Unlock()
	if p.publishing--; p.publishing == 0 {
		close(p.idle)
	}
	return res, true, err
}

// named is the first publish of a pending file.
func (p *pending) named(op *meta.Publish) *meta.Publish {
	first := *op
	first.LinkParent, first.LinkName = p.at.dir, p.at.name
	if first.Attr.Mask&meta.AttrMode == 0 {
		first.Attr.Mode = p.rec.Mode
	}
	if first.Attr.Mask&meta.AttrUID == 0 {
		first.Attr.UID = p.rec.UID
	}
	if first.Attr.Mask&meta.AttrGID == 0 {
		first.Attr.GID = p.rec.GID
	}
	first.Attr.Mask |= meta.AttrMode | meta.AttrUID | meta.AttrGID
	return &first
}
