package meta

import (
	"syscall"

	"github.com/rdmcfs/rdmcfs/internal/filelock"
)

// Entry is what is proposed: one operation with its identity for exactly-once application.
// The consensus layer adds index and leader time.
type Entry struct {
	Node        NodeID
	Incarnation uint32
	Seq         uint64 // of the proposal within the incarnation, from 1
	Acked       uint64 // all proposals <= Acked are known answered to the proposer; their results are dropped
	Generation  uint32 // of the cluster; others are refused
	// Format is the cluster's, as the proposer knows it: the entry has the operations and fields of that format. 0 is
	// the first.
	Format uint64
	Op     Op
}

// Op is one of the operation types below. Each carries its preconditions; apply answers an errno.
type Op interface{ opcode() uint8 }

// Audit notes a command that is about to change the cluster, or, with Of, how one has ended that was noted by the entry
// of that log index. Texts are in UTF-8 and of at most AuditTextMax bytes. ENOENT: no command of this node that is
// still running was noted there.
type Audit struct {
	Of         uint64
	UID, Login uint32 // whose command it is, and who had logged in; NoLogin if not known
	Command    string // as it was typed
	Outcome    string // with Of: an error, "" if there was none
}

// Cred identifies the caller, who owns what is made.
type Cred struct{ UID, GID uint32 }

// Create makes a name with a new inode. A file is made reserved: seen by its writer only, until the first
// publish; others get EEXIST when Excl, else ENOENT. If the name exists: EEXIST when Excl or not a file,
// else the existing inode is answered with Result.Existed.
type Create struct {
	Parent Ino
	Name   string
	Kind   Kind
	Mode   uint32
	Cred   Cred
	Rdev   uint32
	Target string
	Excl   bool
	Btime  int64 // when the file was made, if it was made before; else 0
}

// Reserve makes the reserved name of a file that a holder of the directory's new names has made (DelegateNames). It
// answers Result.Existed if the file is there by now. ESTALE: the incarnation has ended.
type Reserve struct {
	Incarnation uint32
	Parent      Ino
	Name        string
	Ino         Ino
	Made        Made
	Btime       int64 // when the file was made
}

// DelegateNames asks that the new names of a directory are the proposer's to give, until the names are returned or its
// incarnation ends. Then names that others put there are answered EREMOTE. Directories that the holder makes there are
// delegated to it, too. With Numbers, Result.Ino is the first of NamesBlock inode numbers for the files that it makes
// by itself. With Dir 0 it asks for numbers only. EBUSY: another node has the names.
type DelegateNames struct {
	Dir     Ino
	Numbers bool // without it no numbers come with the directory
}

// NamesBlock is how many inode numbers come with DelegateNames.
const NamesBlock = 1 << 12

// ReturnNames gives the new names of directories back, of those that are delegated to the proposer.
type ReturnNames struct{ Dirs []Ino }

// RecallNames asks the holder of a directory's new names to return them: it sees EventNamesRecalled. Result.Existed
// says whether there is one.
type RecallNames struct{ Dir Ino }

// Link adds a name for a file that has a published version.
type Link struct {
	Ino    Ino
	Parent Ino
	Name   string
}

// Unlink removes a name of something that is not a directory.
type Unlink struct {
	Parent Ino
	Name   string
	Ino    Ino // precondition when not zero
	// GiveBack removes a reserved name only: ESTALE once its file has a version.
	GiveBack bool
}

// Rmdir removes an empty directory.
type Rmdir struct {
	Parent Ino
	Name   string
}

// Rename moves a name. Flags are the flags of renameat2: RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_WHITEOUT. The last
// one leaves a whiteout at the old name, which overlayfs asks for: a character device of number 0, owned by Cred.
type Rename struct {
	OldParent Ino
	OldName   string
	NewParent Ino
	NewName   string
	Flags     uint32
	Cred      Cred // with RenameWhiteout only
}

// AttrMask says which fields of an AttrPatch count.
type AttrMask uint16

// Fields of AttrPatch.
const (
	AttrMode AttrMask = 1 << iota
	AttrUID
	AttrGID
	AttrAtime
	AttrMtime
	AttrCtime
	AttrKillPriv // clear setuid, and setgid of group-executables
)

// AttrPatch is a change of attributes.
type AttrPatch struct {
	Mask         AttrMask
	Mode         uint32
	UID, GID     uint32
	Atime, Mtime int64
	Ctime        int64
	SetXattr     map[string][]byte
	DelXattr     []string
}

// SetAttr changes attributes of an inode. XattrFlags is XATTR_CREATE, XATTR_REPLACE or 0, for patches of one
// extended attribute. Sizes change by Publish only.
type SetAttr struct {
	Ino        Ino
	Patch      AttrPatch
	XattrFlags uint32
}

// Votes are the members that hold a content, as of a view: bit i-1 of Bitmap is node i. apply discards
// the vote of a node whose incarnation began after View.
type Votes struct {
	View   uint64
	Bitmap []byte
}

// Publish makes a content the current version of a file. Exactly one publish or abort of a session counts.
type Publish struct {
	Ino     Ino
	Session ContentID // also the content's id; Size 0 carries it too, but the version's content is zero
	Base    ContentID // current content when the writer began; if it is no longer, the loser is kept (G7)
	Size    int64
	Holes   int64 // bytes of Size that take no room: what stat shows as blocks
	Root    [32]byte
	Votes   Votes
	Missing []Missed // members without a vote, and why; apply derives which members are owed, this only gives reasons
	Inline  []byte   // instead of votes: the bytes, at most MaxInline, where all nodes get them by the log
	Attr    AttrPatch
	// LinkParent and LinkName are set for a file that gets its name with this publish. Of an O_TMPFILE, Ino is zero,
	// and Attr gives mode and owner. Btime is when the file was made.
	LinkParent Ino
	LinkName   string
	Btime      int64
	// Hint is the path as the writer knew it, kept with an orphan.
	Hint string
	// Made is set for the first publish of a file that a holder of the directory's new names has made: Ino is its
	// number. ESTALE if the proposer does not hold the names and the file has not been reserved.
	Made *Made
}

// Made is what a file has from its creation, before Publish.Attr changes it.
type Made struct {
	Mode   uint32
	Cred   Cred
	Policy PolicyID
}

// MaxInline is the largest content that rides in its publish entry.
const MaxInline = 4096

// Missed is a member that did not vote.
type Missed struct {
	Node   NodeID
	Reason OwedReason
}

// Abort ends a session without a version.
type Abort struct{ Session ContentID }

// Join adds a node (proposed by a voter that checked the token), or replaces the node of that name when
// Replace is set: then all its content becomes owed. Result.Node is its number.
type Join struct {
	Name      string
	Addr      string
	Labels    map[string]string
	TokenHash [32]byte // consumed; zero for the first node
	Replace   bool
	// KeyHash is of the machine's key: it identifies a repeated join, whichever node is asked.
	KeyHash [32]byte
	Program Program // of the machine. EPROTONOSUPPORT: it does not know the cluster's format
}

// Boot begins a new incarnation of a node. A later boot fences the earlier one. Result.Incarnation and
// Result.View answer. Boot of another Store than the recorded one is refused unless the record has none
// (EEXIST: a copied or replaced data directory). EAGAIN: Next does not follow Result.Incarnation, which is the last. So
// what a dead process has sent, and what reaches the log late, does not end a later process.
type Boot struct {
	Node  NodeID
	Store [16]byte
	Addr  string
	Nonce uint64 // of a boot that is asked for again; its answer is the same
	// Program is what runs there from now on. EPROTONOSUPPORT: it does not know the cluster's format.
	Program Program
	// Next is the incarnation that is asked for. 0, as in entries of older programs: whatever comes next. A Program that
	// does not say its formats can't say it.
	Next uint64
}

// RaiseFormat makes the cluster use the next format, To. EBUSY: the program of Result.Node does not know it. EDOM: To
// is not the next one.
type RaiseFormat struct{ To uint64 }

// Down declares a node down at an incarnation and fences that incarnation: its later publishes are refused,
// its undecided sessions aborted, its reserved names freed. Proposed by the leader.
type Down struct {
	Node        NodeID
	Incarnation uint32
	Reason      string
}

// Evict removes a node for good, with whatever only it holds. EAGAIN: without it the voters that are up are no quorum.
type Evict struct {
	Node   NodeID
	Reason string
}

// EvictSpare removes a node for good unless it is the only one that is up and holds some content: EBUSY. The proposer
// looks through the contents first (DB.OnlyOn) and says up to which log index, and in which view; apply looks at what
// came later. EAGAIN: look again.
type EvictSpare struct {
	Node    NodeID
	Reason  string
	View    uint64
	Checked uint64
}

// Drain makes a node take no new contents, and the others fetch what depends on it; Undo ends that. EBUSY: no other
// node takes contents.
type Drain struct {
	Node NodeID
	Undo bool
}

// Release asks that a node need not keep contents it is no longer assigned to (PlaceCopies). apply grants it for each
// content all of whose present members hold it; EventRetired with Node set says which.
type Release struct {
	Node     NodeID
	Contents []ContentID
}

// Held reports contents that a node now holds, and shrinks its backlog from below.
type Held struct {
	Node     NodeID
	Contents []ContentID
	UpTo     uint64 // all assigned contents published at or below are held, except owed rows; 0 = no change
	View     uint64 // as of which the node looked what it is assigned; an older one does not settle Node.Recheck
}

// Unheld reports contents that a node lost, or that it is to hold after a change of the members and that no node has;
// they become owed by a row each.
type Unheld struct {
	Node     NodeID
	Contents []ContentID
	Reason   OwedReason
}

// SetPolicy sets the policy of a directory for what is created under it (nil: inherit again), or the
// cluster's default when Dir is 0. Recursive work is the caller's.
type SetPolicy struct {
	Dir    Ino
	Policy *Policy
}

// Restore makes a kept version the current one again (a new version number, the same bytes).
type Restore struct {
	Ino     Ino
	Content ContentID
	// When the inode is gone the content comes back under this name.
	Parent Ino
	Name   string
	Cred   Cred
}

// Undelete brings a removed file back that is kept, under a new inode with all that the file had, or with Drop gives it
// up. ENODATA: it is not kept any more. EEXIST: the name is taken.
type Undelete struct {
	Removed uint64 // RemovedFile.Index
	Parent  Ino
	Name    string
	Drop    bool
}

// Expire retires what is kept and whose time is over by the entry's time. Proposed by the leader now and then.
type Expire struct{}

// AddToken stores a join token by its hash.
type AddToken struct {
	Hash    [32]byte
	Expires int64
	Replace bool // the token may replace a node of the same name
	// Uses is how many joins the token serves; 0 means 1. Join answers EALREADY once they are used up.
	Uses uint32
}

// SetVoters says which nodes vote from this entry on. Nobody proposes it: it is what each node makes of raft's own
// entry that changes the voters. While that change is joint, Outgoing are the voters before it, and each of the two
// lists decides by its own majority; otherwise it is empty. Number 0 is a vote that nobody casts any more: its store
// was replaced.
type SetVoters struct{ Voters, Outgoing []NodeID }

// LockFile asks for a lock of a file, for a program of the proposing node. What became of it is told by an
// EventLockAnswered, perhaps of a later entry. ESTALE: the incarnation has ended. ENOLCK: the file has too many locks.
type LockFile struct {
	Incarnation uint32
	Ino         Ino
	Lock        filelock.Lock // its owner's node is the proposer; Request numbers the request within the incarnation
	Wait        bool          // until it is free
	Test        bool          // take nothing: only make the log have the locks of the file
}

// ReturnLocks gives the decision about the locks of a file back to the log, with what programs of the node hold and
// wait for. It has no effect unless the file is delegated to the proposer under that number.
type ReturnLocks struct {
	Incarnation uint32
	Ino         Ino
	Number      uint64
	Held        []filelock.Lock
	Waiting     []filelock.Lock
}

// UnlockFile gives locks of a file back that the log has, or withdraws a request. Result.Existed says whether there was
// anything.
type UnlockFile struct {
	Incarnation uint32
	Ino         Ino
	What        LockScope
	Lock        filelock.Lock
}

// LockScope says which locks of a file are given back.
type LockScope uint8

// The scopes of UnlockFile.
const (
	ScopeRange      LockScope = iota + 1 // what the owner holds of a kind and range
	ScopeDescriptor                      // the record locks of the owner
	ScopeHandle                          // what was taken by the open file
	ScopeSpace                           // all of a mount
	ScopeRequest                         // none: the request ends if it waits
)

// Result answers one operation.
type Result struct {
	Index       uint64
	Errno       syscall.Errno
	Ino         Ino
	Existed     bool
	Inode       Inode // after the operation, where one inode is its object
	Version     uint64
	Owed        []NodeID // publish: the members that are owed
	Conflict    bool     // publish: the base had been superseded
	Orphan      bool     // publish: the inode was gone
	Node        NodeID
	Incarnation uint32
	View        uint64
	Removed     Ino  // unlink, rename: inode that lost its last name
	Duplicate   bool // answered from the exactly-once window
	// refused, this time not applied: the proposer's incarnation is not current; it may propose again under a new one
	Fenced bool
	// Expire: how many rows went whose time was over. It is not stored: a repeated proposal gets 0.
	Retired int
}

// Event reports one effect of an applied entry, in order, for invalidation and for the transfers.
type Event struct {
	Kind        EventKind
	Index       uint64
	Ino         Ino       // inode, or directory for EventName
	Name        string    // EventName
	Content     ContentID // EventPublished: new; EventRetired, EventDecided: which
	Prev        ContentID // EventPublished: superseded
	Node        NodeID    // node events, EventRetired (see there); the proposer otherwise
	Session     ContentID // EventDecided
	Commit      bool      // EventDecided: published (true) or aborted
	Incarnation uint32    // EventFenced
	Inode       *Inode    // EventRemoved: the record it went with

	// Lost says of EventRemoved that no program removed the file: it lost its name, as by a fence. It is not from the
	// log.
	Lost bool

	// EventLockAnswered: the request of (Node, Incarnation), and for LockDelegated the number of the delegation.
	Request, Number uint64
	Answer          LockAnswer
}

// LockAnswer is what became of a LockFile.
type LockAnswer uint8

// The answers. A request that waits has none.
const (
	LockGranted   LockAnswer = iota + 1 // held; of a test: the log has the locks of the file
	LockDelegated                       // the node decides the locks of this file
	LockRefused
	LockDeadlock
)

// EventKind is what an Event is about.
type EventKind uint8

// Kinds of events.
const (
	EventName          EventKind = iota + 1 // a name in directory Ino appeared, vanished or changed its inode
	EventInode                              // attributes of Ino changed
	EventPublished                          // Ino has a new current version
	EventRemoved                            // Ino has no name left
	EventDecided                            // a session was published or aborted
	EventFenced                             // all undecided sessions of (Node, Incarnation and before) are aborted
	EventRetired                            // Content may be deleted: by all when Node is zero, else by Node
	EventNode                               // the record of Node changed: view change
	EventOwed                               // rows of Node in the owed table or its backlog changed
	EventLockAnswered                       // a request for a lock was answered
	EventLockRecalled                       // (Node, Incarnation) is to give back the decision about the locks of Ino
	EventNamesRecalled                      // (Node, Incarnation) is to return the new names of directory Ino
	EventNamesReturned                      // nobody gives the new names of directory Ino by itself any more
)

func (*Create) opcode() uint8    { return 1 }
func (*Link) opcode() uint8      { return 2 }
func (*Rmdir) opcode() uint8     { return 4 }
func (*Rename) opcode() uint8    { return 5 }
func (*SetAttr) opcode() uint8   { return 6 }
func (*Abort) opcode() uint8     { return 8 }
func (*Join) opcode() uint8      { return 9 }
func (*Boot) opcode() uint8      { return 10 }
func (*Down) opcode() uint8      { return 11 }
func (*Evict) opcode() uint8     { return 12 }
func (*Held) opcode() uint8      { return 13 }
func (*Unheld) opcode() uint8    { return 14 }
func (*SetPolicy) opcode() uint8 { return 15 }
func (*Restore) opcode() uint8   { return 16 }
func (*Expire) opcode() uint8    { return 17 }
func (*AddToken) opcode() uint8  { return 18 }
func (*Release) opcode() uint8   { return 21 }
func (*Drain) opcode() uint8     { return 22 }

func (*EvictSpare) opcode() uint8  { return 23 }
func (*SetVoters) opcode() uint8   { return 25 }
func (*LockFile) opcode() uint8    { return 26 }
func (*ReturnLocks) opcode() uint8 { return 27 }
func (*UnlockFile) opcode() uint8  { return 28 }
func (*Undelete) opcode() uint8    { return 29 }

func (*Reserve) opcode() uint8       { return 30 }
func (*DelegateNames) opcode() uint8 { return 31 }
func (*ReturnNames) opcode() uint8   { return 32 }
func (*RecallNames) opcode() uint8   { return 33 }
func (*RaiseFormat) opcode() uint8   { return 35 }
func (*Audit) opcode() uint8         { return 36 }

func (o *Publish) opcode() uint8 {
	if o.Made != nil {
		return 34
	}
	return 7
}

func (o *Unlink) opcode() uint8 {
	if o.GiveBack {
		return 24
	}
	return 3
}
