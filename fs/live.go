package fs

import (
	"context"
	"sync"
	"syscall"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
)

// live is a staged file and all that is open on it: one for each inode and node while somebody may write.
type live struct {
	node      *node
	fineTimes bool          // see unchanged
	ready     chan struct{} // closed when stage or err is set
	err       syscall.Errno
	bootAt    int64 // when it began: see bootAt
	stage     Staged
	base      replicate.ContentReader // what stage was made from, pinned; nil when it began empty

	backing    *backing
	taken      *version // whose handles read the staged bytes from now on; nil if nobody read the file before
	stageReads stageReads

	// Protected by nodeTable.mu.
	users users
	// superseded: a commit of another member is newer than what this file began with or published last.
	superseded bool
	graceOver  bool // a whole releaseGrace went by since: somebody really has it open

	settleOnce sync.Once
	settled    chan struct{} // closed when the file is no longer what its node's opens share

	mu        sync.Mutex
	reserved  bool           // no version was ever published
	lease     meta.Lease     // under which its name was reserved
	unlinked  bool           // the reserved name was removed by a program, perhaps of another node
	mayMap    bool           // a handle could be mapped for writing: times prove nothing
	dirty     uint64         // counts writes through the daemon, at least
	published state          // what was published last
	current   meta.ContentID // the content of that
	attrs     pendingAttrs
	sums      *leafSums // of the published bytes; nil when unknown
	kept      string    // why the bytes have to be kept when the last handle goes; "" = they need not
	rounds    rounds
	deferred  bool // a FLUSH of a file that is not finished was answered without a publish
	parts     parts
	unknown   bool               // the last publish may still have happened
	outcome   <-chan meta.Result // of that, if somebody will know: see UnknownError
	guard     lockGuard
	tmp       *tmpfile   // an O_TMPFILE without a name
	linked    meta.Inode // what it became when it got one
	parent    meta.Ino   // where a reserved file was created
	name      string
}

// state is what distinguishes a changed staged file from an unchanged one without reading it.
type state struct {
	valid bool
	size  int64
	mtime int64
	ctime int64
	dirty uint64
	at    int64 // when it was sampled, nanoseconds since 1970
}

// isVersionLocked reports whether a frozen live file holds rec's bytes. nodeTable.mu is held.
func (l *live) isVersionLocked(rec meta.Inode) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.published.valid && l.current == rec.Content && l.published.size == rec.Size
}

func sample(st StageStat, dirty uint64) state {
	return state{valid: true, size: st.Size, mtime: st.Mtime, ctime: st.Ctime, dirty: dirty, at: time.Now().UnixNano()}
}

// touched counts a change made through the daemon.
func (l *live) touched() {
	l.mu.Lock()
	l.dirty++
	l.mu.Unlock()
}

func (l *live) isReady() bool {
	select {
	case <-l.ready:
		return true
	default:
		return false
	}
}

// awaitReady waits until a live file is prepared; false if ctx ends before.
func (l *live) awaitReady(ctx context.Context) bool {
	if l.isReady() {
		return true // most often, and then nobody need watch ctx
	}
	select {
	case <-l.ready:
		return true
	case <-ctx.Done():
		return false
	}
}

// mapsUnseen reports whether stores may reach the file without any request: attributes must not stay cached then.
func (l *live) mapsUnseen() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mayMap
}

// thawsLocked reports whether a program may change a frozen file in place: it is the newest version, and all of it is
// published. nodeTable.mu is held.
func (l *live) thawsLocked() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.superseded && l.published.valid && !l.unknown && l.kept == ""
}

// isPublishing reports whether a publish of it is under way.
func (l *live) isPublishing() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rounds.cur != nil
}

// publishedLocked reports whether a live file was published as that content. nodeTable.mu is held.
func (l *live) publishedLocked(id meta.ContentID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.published.valid && l.current == id
}
