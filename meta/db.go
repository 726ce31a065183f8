package meta

import (
	"errors"
	"io"
)

// ErrNotFound is returned by reads of what does not exist.
var ErrNotFound = errors.New("meta: not found")

// Reader is the read side of the namespace: the applied prefix of the log on this node. Reads never block on the
// network. Methods return ErrNotFound for what does not exist.
type Reader interface {
	// Index is the last applied log index.
	Index() uint64
	// Lookup finds a name. A reserved file is found only by its own writer: viewer is this node's lease.
	Lookup(parent Ino, name string, viewer Lease) (Inode, error)
	Inode(ino Ino) (Inode, error)
	// ReadDir lists up to limit entries in name order after the name `after` ("" = from the start).
	ReadDir(dir Ino, after string, limit int, viewer Lease) ([]Dirent, error)
	Xattr(ino Ino, name string) ([]byte, error)
	Xattrs(ino Ino) ([]string, error)
	Content(id ContentID) (Content, error)
	InlineBytes(id ContentID) ([]byte, error)
	// Versions lists the live contents of an inode, newest first.
	Versions(ino Ino) ([]Content, error)
	// Kept lists contents that are conflict losers or orphans.
	Kept(limit int) ([]Content, error)
	Node(id NodeID) (Node, error)
	Nodes() ([]Node, error) // by number, without evicted ones
	// grows with every change of a node record that affects votes or placement, and when a node holds less
	View() uint64
	// Generation is the cluster generation that entries must carry.
	Generation() uint32
	Policy(id PolicyID) (Policy, error)
	// Members is the placement of a policy for an inode over the current node records.
	Members(policy PolicyID, ino Ino) ([]NodeID, error)
	// PlaceNew says which nodes are to hold a new content, and how many of them must before it may be published. Nodes
	// in full have no room for it: with PlaceCopies others stand in for them, as for nodes that are not up.
	PlaceNew(policy PolicyID, ino Ino, full []NodeID) (members []NodeID, needed int, err error)
	// Holds reports whether the log believes that the node holds the content.
	Holds(node NodeID, id ContentID) (bool, error)
	// Holders lists the nodes that the log believes to hold the content.
	Holders(id ContentID) ([]NodeID, error)
	// OwedTo lists what is owed to a node, from explicit rows and backlog, in the order of publishing, after the
	// publish index `after` (Owed.Published of the last one seen; 0 = from the start), up to limit.
	OwedTo(node NodeID, after uint64, limit int) ([]Owed, error)
	OwedCount(node NodeID) (contents int, bytes int64, err error)
	// Believed lists the contents that the log believes the node holds, except inline ones, in the order of their ids,
	// after a given one. It looks at up to limit records. next is where to go on; zero means that there are no more.
	Believed(node NodeID, after ContentID, limit int) (list []Content, next ContentID, err error)
	// Decided reports whether the log has decided a session, by publish, abort or fence. A member may drop its vote
	// then; Content says whether it must keep the bytes.
	Decided(session ContentID) (bool, error)
	// FileLocks returns what the log has of the locks of a file, without those of ended incarnations.
	FileLocks(ino Ino) (FileLocks, error)
	// Freeing reports whether locks or reserved names of ended incarnations remain to be freed: an Expire frees more.
	Freeing() bool
	StatFS() (files uint64, bytes uint64)
	Digest() (index uint64, sum [16]byte)
}

// StateMachine is the apply side; internal/consensus drives it through a small adapter in internal/node.
type StateMachine interface {
	Reader
	// Apply applies one entry in one transaction together with its index. now is the leader's time in
	// nanoseconds. It is called from one goroutine with growing indexes. An entry at or below Index is ignored.
	Apply(index uint64, now int64, data []byte) (Result, []Event, error)
	// Sync makes everything applied so far durable and returns that index.
	Sync() (uint64, error)
	Synced() uint64
	// Format is the format that the cluster uses.
	Format() uint64
	// Time is the leader's time of the last proposal that was applied, in nanoseconds.
	Time() int64
	// Snapshot streams the whole state at the current index.
	Snapshot() (r io.ReadCloser, index uint64, err error)
	// Restore replaces the state by a snapshot, in a new directory switched by rename.
	Restore(r io.Reader) error
	io.Closer
}

// ErrClosed is returned by calls on a closed database.
var ErrClosed = errors.New("meta: database is closed")

// ErrNoSpace is returned by Apply, Open and Restore while the disk is too full to go on safely. Nothing was done; the
// same call works again once there is space.
var ErrNoSpace = errors.New("meta: the disk of the data directory is full; free space on it")
