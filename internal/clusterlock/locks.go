package clusterlock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/filelock"
	"github.com/rdmcfs/rdmcfs/meta"
)

// Errors of a request for a lock.
var (
	// ErrInterrupted says that the caller was interrupted; the request is withdrawn.
	ErrInterrupted = errors.New("clusterlock: interrupted")
	// ErrLost says that locks of this open file have ended with an incarnation of the node.
	ErrLost = errors.New("clusterlock: the locks of this open file were lost when the node was taken for down")
	// ErrEnded says that an incarnation is not up any more.
	ErrEnded = errors.New("clusterlock: the incarnation has ended")
	// ErrTooMany says that the file has too many locks.
	ErrTooMany = errors.New("clusterlock: the file has too many locks")
	// errUnsure says that no quorum has confirmed in time that the node is up.
	errUnsure = errors.New("clusterlock: no quorum has confirmed that this node is up")
)

const (
	// retryPause is the pause between attempts to bring what can't fail to the log.
	retryPause = 100 * time.Millisecond
	// confirmPatience is for how long a lock that is granted waits for a quorum.
	confirmPatience = 25 * time.Second
	// orderPatience is for how long a request waits for unlocks of its file that the log has not taken yet.
	orderPatience = 25 * time.Second
	// withdrawPatience is for how long an interrupted caller waits until it is known that it does not hold the lock.
	withdrawPatience = 10 * time.Second
	// delegationsMax is how many delegations a node keeps: beyond, it gives back those that nobody uses.
	delegationsMax = 1024
)

// Log is the log as the locks of a node see it.
type Log interface {
	// Self is the node's present lease.
	Self() meta.Lease
	// FileLocks is what the applied state has of the locks of a file.
	FileLocks(ino meta.Ino) (meta.FileLocks, error)
	// Alive reports whether the applied state has an incarnation up.
	Alive(l meta.Lease) bool
	// Propose returns when the outcome is known: with an error, the operation was not applied and will not be, or its
	// incarnation has ended.
	Propose(ctx context.Context, op meta.Op) (meta.Result, error)
	// Confirm returns nil if a quorum says, after the call began, that an incarnation is up, and ErrEnded if it is not.
	// The applied state then has all that was acknowledged anywhere before the call.
	Confirm(ctx context.Context, l meta.Lease) error
	// Publish brings what programs of this node have written into a file to the log. It may fail.
	Publish(ctx context.Context, ino meta.Ino)
}

// openFile is an open file of a mount.
type openFile struct{ space, handle uint64 }

// Locks are the file locks of a node's programs. All methods are safe for concurrent use.
type Locks struct {
	log   Log
	local func(file uint64) bool // of files that no other node can know
	ctx   context.Context
	stop  context.CancelFunc
	work  workers
	rounds

	mu    sync.Mutex
	lease meta.Lease // under which all below is
	own   filelock.Table
	files map[uint64]*file
	next  uint64                    // number of the last request
	asked map[uint64]*wait          // by number of the request
	waits map[filelock.Ticket]*wait // in the table
	lost  map[openFile]lostLock
}

// lostLock is what an open file had when its incarnation ended.
type lostLock struct {
	ino       uint64
	lease     meta.Lease
	exclusive bool
}

// file is a file about whose locks this node has something to do with the log.
type file struct {
	ino       uint64
	delegated uint64 // number of the delegation; 0: the log decides
	recalled  bool   // it is to be given back
	returning bool   // it is on its way back: from now on the log decides
	asking    int    // requests to the log that have no answer yet
	idle      chan struct{}
	queue     []*change // what the log is to take, in order
	over      bool      // the incarnation has ended
}

// change is an UnlockFile that the log is to take. It can't fail.
type change struct {
	op   *meta.UnlockFile
	w    *wait // the request that it withdraws, if any
	done chan struct{}
}

// wait is a request that has no answer yet. answer is set before done is closed.
type wait struct {
	ino    uint64
	want   filelock.Lock
	test   bool
	number uint64 // of the request; 0 while it waits in this node's table
	ticket filelock.Ticket
	asked  chan struct{} // closed when the log has the request, or will not get it
	done   chan struct{}
	answer answer
	err    error // with answerFailed

	had       bool // the owner held something of that before
	abandoned bool // the caller has gone: what is granted is given back
}

type answer uint8

const (
	answerAgain answer = iota + 1 // somebody else decides now: ask again
	answerGranted
	answerRefused
	answerDeadlock
	answerLost
	answerFailed
)

// New makes the locks of a node. local tells files that no other node can know, about which nobody is asked.
func New(log Log, local func(file uint64) bool) *Locks {
	t := &Locks{log: log, local: local, files: map[uint64]*file{}, asked: map[uint64]*wait{},
		waits: map[filelock.Ticket]*wait{}, lost: map[openFile]lostLock{}}
	t.ctx, t.stop = context.WithCancel(context.Background())
	return t
}

// Close ends the work. What the log has not taken yet is left to the fence of this incarnation.
func (t *Locks) Close() {
	t.stop()
	t.work.close()
}

// workers are goroutines that end with the locks of a node.
type workers struct {
	mu     sync.Mutex
	closed bool
	group  sync.WaitGroup
}

// Go starts a goroutine, unless the end has come.
func (w *workers) Go(do func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.group.Go(do)
	}
}

func (w *workers) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.group.Wait()
}

// enterLocked notes that a new incarnation has begun.
func (t *Locks) enterLocked() {
	if self := t.log.Self(); self != t.lease {
		t.loseLocked()
		t.lease = self
	}
}

// loseLocked ends all that the incarnation had, except what has nothing to do with the log.
func (t *Locks) loseLocked() {
	kept := map[uint64]*file{}
	for ino, f := range t.files {
		if t.local(ino) {
			kept[ino] = f
			continue
		}
		for _, l := range t.own.Held(ino) {
			by := openFile{l.Owner.Space, l.Handle}
			t.lost[by] = lostLock{ino, t.lease, l.Mode == filelock.Exclusive || t.lost[by].exclusive}
		}
		f.end()
	}
	asked, waits := t.asked, t.waits
	t.own.Keep(t.local)
	t.files, t.asked, t.waits = kept, map[uint64]*wait{}, map[filelock.Ticket]*wait{}
	for _, w := range asked {
		w.finish(answerLost)
	}
	for ticket, w := range waits {
		if t.local(w.ino) {
			t.waits[ticket] = w
		} else {
			w.finish(answerLost)
		}
	}
}

// end ends the work of a file: the incarnation has ended.
func (f *file) end() {
	f.over = true
	for _, c := range f.queue {
		close(c.done)
	}
	f.queue = nil
	f.rest()
}

func (w *wait) finish(a answer) {
	select {
	case <-w.done:
	default:
		w.answer = a
		close(w.done)
	}
}

func (w *wait) finished() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

func (t *Locks) fileLocked(ino uint64) *file {
	f := t.files[ino]
	if f == nil {
		f = &file{ino: ino}
		t.files[ino] = f
	}
	return f
}

// forgetLocked forgets a file that this node has nothing to do with.
func (t *Locks) forgetLocked(f *file) {
	if f.delegated == 0 && f.asking == 0 && f.idle == nil && len(t.own.Held(f.ino)) == 0 && t.files[f.ino] == f {
		delete(t.files, f.ino)
	}
}

// decides reports whether the node's own table decides about a file.
func (f *file) decides() bool { return f.delegated != 0 && !f.recalled }

// rest says that nothing is on its way to the log any more.
func (f *file) rest() {
	if f.idle != nil {
		close(f.idle)
		f.idle = nil
	}
}

// wakeLocked answers requests that waited in the table.
func (t *Locks) wakeLocked(granted []filelock.Ticket) {
	for _, ticket := range granted {
		w := t.waits[ticket]
		delete(t.waits, ticket)
		w.finish(answerGranted)
	}
}
