package meta

import "github.com/rdmcfs/rdmcfs/internal/format"

// Kind is what an inode is.
type Kind uint8

// Kinds of inodes.
const (
	KindFile Kind = iota + 1
	KindDir
	KindSymlink
	KindFIFO
	KindSocket
	KindChar
	KindBlock
)

// Inode is the replicated record of one inode.
type Inode struct {
	Ino     Ino
	Kind    Kind
	Mode    uint32 // permission bits with setuid, setgid and sticky; no type bits
	UID     uint32
	GID     uint32
	Rdev    uint32
	Nlink   uint32 // 0 never occurs in the database: such an inode is removed
	Size    int64  // files: of the current version; symlinks: of the target
	Holes   int64  // bytes of Size that take no room, as the writer saw it
	Atime   int64  // nanoseconds since 1970, like all times
	Mtime   int64
	Ctime   int64
	Parent  Ino    // directories: the parent; others: the directory of Name
	Name    string // the name in Parent; of several hard links one that exists
	Target  string // symlinks
	Xattrs  uint32 // number of extended attributes
	Policy  PolicyID
	Version uint64    // files: number of the current version, from 1; 0 = reserved, nothing published yet
	Content ContentID // files: of the current version; zero for an empty file
	// Reserved names the writer while Version is 0: only that node and incarnation sees the file.
	Reserved Lease
	Btime    int64 // when it was made; it never changes. 0: not known
}

// Lease is a node's claim that ends with its incarnation.
type Lease struct {
	Node        NodeID
	Incarnation uint32
}

// Dirent is a name in a directory.
type Dirent struct {
	Name string
	Ino  Ino
	Kind Kind
}

// Content is the replicated record of the bytes of one version.
type Content struct {
	ID        ContentID
	Ino       Ino
	Version   uint64
	Base      ContentID // what it was made from (for delta transfers and conflict detection); zero = none
	Size      int64
	Holes     int64    // bytes of Size that take no room
	Root      [32]byte // Merkle root of the BLAKE3 leaves, see internal/content
	Mtime     int64
	Published uint64 // log index
	Policy    PolicyID
	State     ContentState
	Reason    string // why an orphan or a conflict loser was kept
	Expires   int64  // nanoseconds since 1970; 0 = when superseded
	Inline    bool   // the bytes are in the database (DB.InlineBytes), on every node
}

// ContentState says why a content is live.
type ContentState uint8

// States of a content.
const (
	ContentCurrent  ContentState = iota + 1
	ContentRetained              // an older version kept by policy
	ContentConflict              // lost against a later commit from the same base (G7)
	ContentOrphan                // its inode was removed elsewhere while it was written (G7)
	ContentRetired               // nothing names it; holders may delete it
	ContentRemoved               // of a removed file that is kept by policy
)

// PolicyID names a placement policy; 0 is the cluster's default.
type PolicyID uint32

// Policy says where files live and what close waits for.
type Policy struct {
	ID        PolicyID
	Placement Placement
	Copies    uint32            // for PlaceCopies
	Labels    map[string]string // for PlaceLabels: all must match
	MinCopies uint32            // 0 = min(2, members that are up)
	AckLocal  bool              // close returns when durable here; delivery goes on behind
	Retain    uint32            // older versions kept
	// KeepRemoved is how long files that are removed from a directory of this policy are kept, in nanoseconds; 0: not at
	// all. It counts at the removal, whatever the policy of the file.
	KeepRemoved uint64
	// SendRate caps what each node sends for the group of a file, in bytes a second; 0: no cap.
	SendRate uint64
	// Priority is the class of a file's group among the groups that share a node's link.
	Priority Priority
}

// Priority is a class of groups. While groups of several classes share a link, a lower class gets a small part of what
// the next higher one gets, and all that no higher one asks for.
type Priority uint64

// Classes.
const (
	PriorityNormal Priority = iota
	PriorityLow
	PriorityHigh
)

// SendRateMin is the least SendRate that is not 0, in bytes a second: 1 Mbit/s.
const SendRateMin = 125_000

// Placement is the rule of a policy.
type Placement uint8

// Placement rules.
const (
	PlaceAll    Placement = iota // every member
	PlaceCopies                  // Copies nodes by rendezvous order of the inode, distinct racks first
	PlaceLabels                  // the members whose labels match
)

// NodeState is the log's view of a node.
type NodeState uint8

// States of a node.
const (
	NodeJoined NodeState = iota + 1 // known, never booted
	NodeUp
	NodeDown
	NodeEvicted // its number is not used again
)

// Node is the replicated record of a member.
type Node struct {
	ID          NodeID
	Name        string
	Addr        string // host:port of its one port
	Labels      map[string]string
	State       NodeState
	Reason      string // for NodeDown and NodeEvicted
	Store       [16]byte
	Incarnation uint32
	BootView    uint64 // view number at which the current incarnation began
	JoinIndex   uint64
	DownIndex   uint64 // log index of the down entry, while down
	NextIno     uint64
	// Backlog: contents assigned to the node and published in these index ranges are owed to it as a whole.
	Backlog []IndexRange
	// Recheck: contents of PlaceCopies policies published at or below this index may be newly assigned to the
	// node because another was evicted; see placement.go.
	Recheck IndexRange
	Voter   bool
	Program Program // as of the last boot, or of the join
	// DrainIndex is the log index at which the node began to drain: it takes no contents published later. 0: it does
	// not drain.
	DrainIndex uint64
}

// Program is the program that a node runs.
type Program struct {
	Version string // of the release, for people
	Formats format.Range
}

// IndexRange is the log indexes lo < i <= hi.
type IndexRange struct{ Lo, Hi uint64 }

// Owed is one content owed to one node outside its backlog.
type Owed struct {
	Node    NodeID
	Content ContentID
	Reason  OwedReason
	Since   int64 // time of the entry that made the row; 0 from a backlog
	// Published is the index of the content's publish, the order in which OwedTo lists.
	Published uint64
	Size      int64
	// Unplaced says that a change of the members made the node one: only a Held that names the content settles it.
	Unplaced bool
}
