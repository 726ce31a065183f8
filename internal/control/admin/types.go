package admin

import "time"

// Status is what a node knows of itself and the cluster at AppliedIndex.
type Status struct {
	Version     string    `json:"version"`
	Cluster     string    `json:"cluster"`
	Generation  uint32    `json:"generation"`
	Format      uint64    `json:"format"` // that the cluster uses
	Node        uint32    `json:"node"`
	Name        string    `json:"name"`
	Listen      string    `json:"listen"`
	State       string    `json:"state"` // starting, rebuilding, serving, cut-off, stopping
	Incarnation uint32    `json:"incarnation"`
	Started     time.Time `json:"started"`
	Leader      uint32    `json:"leader"` // 0 = none known
	Quorum      bool      `json:"quorum"` // a quorum of voters answers this node; false too while it rebuilds
	// ChangesRefused is why changes fail at this node's mounts though there is a quorum, as far as this node knows.
	ChangesRefused string `json:"changes_refused,omitempty"`

	Voters       []uint32 `json:"voters"`
	AppliedIndex uint64   `json:"applied_index"`
	CommitIndex  uint64   `json:"commit_index"`
	Digest       string   `json:"digest"` // of the namespace at DigestIndex; equal on all nodes at an equal index
	DigestIndex  uint64   `json:"digest_index"`
	Files        uint64   `json:"files"`
	Bytes        uint64   `json:"bytes"`
	// RemovedKept is how many removed files are kept in the cluster. If there are more than RemovedMost, those that
	// expire first go before their time.
	RemovedKept uint64 `json:"removed_kept,omitempty"`
	RemovedMost uint64 `json:"removed_most,omitempty"`

	Nodes       []Node        `json:"nodes"`
	Transfers   []Transfer    `json:"transfers"`
	Damaged     []Damage      `json:"damaged,omitempty"` // of the nodes where something is
	Unpublished []Unpublished `json:"unpublished"`
	Unresolved  []Unresolved  `json:"unresolved"`
	Mounts      []Mount       `json:"mounts"`
	Passthrough Feature       `json:"passthrough"`
	Fabric      string        `json:"fabric"`
	// ControlRings counts connections of calls and of the log that go over RDMA.
	ControlRings int      `json:"control_rings"`
	Space        Space    `json:"space"`
	Warnings     []string `json:"warnings"` // each a sentence that says what to do
}

// Node is one member as this node's log and its own connections see it.
type Node struct {
	ID          uint32            `json:"id"`
	Name        string            `json:"name"`
	Addr        string            `json:"addr"`
	Labels      map[string]string `json:"labels,omitempty"`
	State       string            `json:"state"` // joined, up, down, evicted
	Reason      string            `json:"reason,omitempty"`
	Voter       bool              `json:"voter"`
	Incarnation uint32            `json:"incarnation"`
	OwedCount   int               `json:"owed_count"`
	OwedBytes   int64             `json:"owed_bytes"`
	OwedReason  string            `json:"owed_reason,omitempty"`
	BehindIndex uint64            `json:"behind_index"`      // log entries it has not shown yet; 0 = in step, or Unheard
	Unheard     bool              `json:"unheard,omitempty"` // this node does not know how far that one is
	// BehindReason says which version of this node's it has not shown although the close waited as long as it may.
	BehindReason string    `json:"behind_reason,omitempty"`
	LastSeen     time.Time `json:"last_seen,omitzero"`
	Connected    bool      `json:"connected"` // from this node
	// Draining: it takes no new files, and Needed is what still depends on it.
	Draining    bool  `json:"draining,omitempty"`
	NeededCount int   `json:"needed_count,omitempty"`
	NeededBytes int64 `json:"needed_bytes,omitempty"`
	// NoRoom says which content the node has refused of late for lack of space, and what it still takes; "" if it takes
	// contents.
	NoRoom string `json:"no_room,omitempty"`
	// Version is that of the node's program as of its last boot, and these are the formats that it knows.
	Version      string `json:"version,omitempty"`
	OldestFormat uint64 `json:"oldest_format"`
	NewestFormat uint64 `json:"newest_format"`
	// ClockAhead is by how much the node's clock is ahead of the cluster's time, in ns, negative if it is behind; 0 =
	// less than 10 s, or not known.
	ClockAhead time.Duration `json:"clock_ahead,omitempty"`
}

// Transfer is one session that runs now, or in a transfer-end the last state of one.
type Transfer struct {
	Session   string           `json:"session"`
	Path      string           `json:"path"`
	SizeBytes int64            `json:"size_bytes"`
	Writer    uint32           `json:"writer"`
	Epoch     uint32           `json:"epoch"`
	CatchUp   bool             `json:"catch_up"`
	Started   time.Time        `json:"started"`
	Members   []TransferMember `json:"members"`
	// how blocks go; nil before there is a group, and where none is needed
	Choice  *Choice   `json:"choice,omitempty"`
	Phase   string    `json:"phase,omitempty"` // announcing, sending, voting, proposing, visible
	Ended   time.Time `json:"ended,omitzero"`
	Outcome string    `json:"outcome,omitempty"` // once ended: published, delivered, repeated, unknown, failed
	Reason  string    `json:"reason,omitempty"`  // why it failed or another session follows
}

// Choice is how the blocks of a transfer go, and why.
type Choice struct {
	Algorithm  string   `json:"algorithm"`
	BlockBytes int      `json:"block_bytes"`
	Window     int      `json:"window"`  // blocks that a member keeps to relay from, if memory allows
	Reasons    []string `json:"reasons"` // a sentence for each part of the choice
}

// TransferMember is the progress of one receiving member.
type TransferMember struct {
	Node        uint32 `json:"node"`
	Name        string `json:"name"`
	Bytes       int64  `json:"bytes"`         // the most that it has had; never falls
	BytesPerSec int64  `json:"bytes_per_sec"` // over the last seconds; 0 once ended
	State       string `json:"state"`         // waiting, receiving, syncing, stored, ejected
	Reason      string `json:"reason,omitempty"`
	Behind      bool   `json:"behind,omitempty"` // it had not shown the version when the close returned
}

// Damage is what failed a check at a node and is not mended yet.
type Damage struct {
	Node  uint32   `json:"node"`
	Name  string   `json:"name"`
	Count int      `json:"count"` // contents
	Lost  int      `json:"lost"`  // of these, contents that no node holds any more
	Names []string `json:"names"` // some of their files
}

// Unpublished is staged content that no version names: its writer failed, was killed or lost its quorum.
type Unpublished struct {
	ID        string    `json:"id"`
	Path      string    `json:"path"`
	SizeBytes int64     `json:"size_bytes"`
	Modified  time.Time `json:"modified"`
	Reason    string    `json:"reason"`
}

// Unresolved is a proposal whose outcome this node does not know yet.
type Unresolved struct {
	Seq   uint64    `json:"seq"`
	What  string    `json:"what"`
	Since time.Time `json:"since"`
}

// Mount is one mount point of this node.
type Mount struct {
	Dir         string `json:"dir"`
	State       string `json:"state"` // mounting, mounted, unmounting
	ReadOnly    bool   `json:"read_only"`
	Passthrough bool   `json:"passthrough"`
}

// Feature reports whether an optional ability is on, and if not, why not and what that costs.
type Feature struct {
	On   bool   `json:"on"`
	Why  string `json:"why,omitempty"`
	Cost string `json:"cost,omitempty"`
}

// Space is the disk under the data directory.
type Space struct {
	TotalBytes   uint64 `json:"total_bytes"`
	FreeBytes    uint64 `json:"free_bytes"`
	ReserveBytes uint64 `json:"reserve_bytes"`
	State        string `json:"state"` // ok, content-refused, changes-refused
}

// Event is one line of a watch. Exactly one of the pointers is set, by Kind.
type Event struct {
	Time     time.Time `json:"time"`
	Kind     string    `json:"kind"` // transfer, transfer-end, node, version, message; change, position
	Transfer *Transfer `json:"transfer,omitempty"`
	Node     *Node     `json:"node,omitempty"`
	Version  *Version  `json:"version,omitempty"`
	Message  string    `json:"message,omitempty"`

	// Of a watch of changes. A watch after Position gets what is not reported up to here.
	Change   *Change `json:"change,omitempty"`
	Position uint64  `json:"position,omitempty"` // index of the log, the same at all nodes
}

// Change is what is at a path after its name or its version has changed.
type Change struct {
	Path      string `json:"path"`
	What      string `json:"what"`                 // file, directory, symlink, special, or gone
	Inode     uint64 `json:"inode,omitempty"`      // 0: gone
	Version   uint64 `json:"version,omitempty"`    // of a file
	SizeBytes int64  `json:"size_bytes,omitempty"` // of a file
}

// WatchRequest narrows a watch.
type WatchRequest struct {
	Path     string        `json:"path,omitempty"`     // only transfers of this file or below this directory
	Interval time.Duration `json:"interval,omitempty"` // between progress events of one transfer; 0 = 500 ms

	// Changes asks for changes of names and versions instead, after a position if there is one, else from now on.
	Changes bool    `json:"changes,omitempty"`
	After   *uint64 `json:"after,omitempty"`
}

// MountRequest asks the node to mount its name space. The call returns when the mount answers.
type MountRequest struct {
	Dir     string            `json:"dir"`              // absolute
	Source  string            `json:"source,omitempty"` // what df and mount show in front of it; "rdmcfs" if empty
	Flags   []string          `json:"flags,omitempty"`  // of mount(2), as words of mount(8): a later one wins
	Options map[string]string `json:"options,omitempty"`
}

// UnmountRequest ends a mount. Without Dir all mounts of the node end.
type UnmountRequest struct {
	Dir  string `json:"dir,omitempty"`
	Lazy bool   `json:"lazy,omitempty"` // detach at once, although files are open
}

// MountWaitRequest waits until a mount has ended.
type MountWaitRequest struct {
	Dir string `json:"dir"`
}

// WhereRequest asks who holds a file's current version. Path is relative to the root of the name space.
type WhereRequest struct {
	Path string `json:"path"`
}

// Where answers WhereRequest.
type Where struct {
	Path      string   `json:"path"`
	Inode     uint64   `json:"inode"`
	Version   uint64   `json:"version"`
	Content   string   `json:"content"`
	SizeBytes int64    `json:"size_bytes"`
	Root      string   `json:"root"` // Merkle root of the BLAKE3 leaves, hex
	Policy    Policy   `json:"policy"`
	Holders   []Holder `json:"holders"`
}

// Holder is one member of a file's placement.
type Holder struct {
	Node   uint32 `json:"node"`
	Name   string `json:"name"`
	Holds  bool   `json:"holds"`
	Reason string `json:"reason,omitempty"` // why not
}

// VersionsRequest lists the kept versions of a file; what was removed below a directory; or, when Path is empty, losers
// of conflicts, versions of removed files, and what was never published here.
type VersionsRequest struct {
	Path string `json:"path,omitempty"`
	// Removed asks for files that were removed at Path or below it and are kept by policy, whatever is there now; for all
	// of them when Path is empty.
	Removed bool `json:"removed,omitempty"`
}

// VersionsMost is how many versions, or removed files, a list has at most, except those of one file.
const VersionsMost = 10_000

// Version is one kept version of a file.
type Version struct {
	Path      string    `json:"path"`
	Version   uint64    `json:"version"`
	Content   string    `json:"content"`
	SizeBytes int64     `json:"size_bytes"`
	Modified  time.Time `json:"modified"`
	Index     uint64    `json:"index"` // of the log at which it was published
	Writer    uint32    `json:"writer"`
	State     string    `json:"state"` // current, retained, conflict, orphan, removed, unpublished
	Reason    string    `json:"reason,omitempty"`
	Expires   time.Time `json:"expires,omitzero"`
	Displaced uint64    `json:"displaced,omitempty"` // by a restore: the version that was current before, which is kept

	// Of a removed file that is kept: when it was removed, and by which node. Then Index is that of the removal, and
	// Content the id of the removed file.
	Removed     time.Time `json:"removed,omitzero"`
	Remover     uint32    `json:"remover,omitempty"`
	RemoverName string    `json:"remover_name,omitempty"`
}

// AuditRow is a command that changed the cluster, or tried to.
type AuditRow struct {
	Index    uint64    `json:"index"` // of the log
	Time     time.Time `json:"time"`
	Node     uint32    `json:"node"` // on which it was typed
	NodeName string    `json:"node_name"`
	UID      *uint32   `json:"uid,omitempty"`   // whose it is
	Login    *uint32   `json:"login,omitempty"` // who had logged in, before any sudo
	Command  string    `json:"command"`
	Ended    bool      `json:"ended"` // false: it still runs, or its node ended before it did
	Error    string    `json:"error,omitempty"`
}

// RestoreRequest makes a kept version current again, brings a removed file back, or publishes unpublished content; or
// it drops the removed file or the unpublished content.
type RestoreRequest struct {
	Path    string `json:"path,omitempty"`
	Version uint64 `json:"version,omitempty"`
	Content string `json:"content,omitempty"` // a content id or an unpublished id, instead of Version
	As      string `json:"as,omitempty"`      // another path to bring it back under
	Drop    bool   `json:"drop,omitempty"`    // of unpublished content or a removed file: delete it instead
	Removed bool   `json:"removed,omitempty"` // of what was removed at Path: the last one, of Version if given
}

// ScrubRequest checks the contents that the node holds: all, or those of the file, or of the files below the directory,
// at Path.
type ScrubRequest struct {
	Path        string `json:"path,omitempty"`
	BytesPerSec int64  `json:"bytes_per_sec,omitempty"` // 0 = no bound
}

// ScrubResult is what a scrub found. Contents that no file needs any more are left out.
type ScrubResult struct {
	Contents  int   `json:"contents"`   // checked
	SizeBytes int64 `json:"size_bytes"` // of them
	Damaged   int   `json:"damaged"`    // of them
	Mended    int   `json:"mended"`     // of the damaged
	// List is the damaged ones, first those that still are, at most ScrubListMost.
	List []ScrubDamage `json:"list,omitempty"`
}

// ScrubListMost is how many damaged contents a ScrubResult lists.
const ScrubListMost = 1000

// ScrubDamage is one content that a scrub found damaged.
type ScrubDamage struct {
	Path      string `json:"path"`
	Version   uint64 `json:"version"`
	Content   string `json:"content"`
	State     string `json:"state"` // as in Version
	SizeBytes int64  `json:"size_bytes"`
	Blocks    int    `json:"blocks,omitempty"` // of 1 MiB that were damaged; 0: it was damaged as a whole
	Damage    string `json:"damage"`
	Mended    bool   `json:"mended"`
	Reason    string `json:"reason,omitempty"` // why it is not mended
}

// FsckRequest compares names, contents and nodes. Path narrows what is reported to a file, or to a directory and what
// is below it. Contents also reads all bytes on all nodes.
type FsckRequest struct {
	Path     string `json:"path,omitempty"`
	Contents bool   `json:"contents,omitempty"`
}

// FsckFinding is one thing that is wrong.
type FsckFinding struct {
	Kind string `json:"kind"` // a word of FsckKinds
	Text string `json:"text"` // a sentence, without the path and the node
	// Heals says that the cluster mends it without help.
	Heals     bool   `json:"heals"`
	Path      string `json:"path,omitempty"`
	Version   uint64 `json:"version,omitempty"`
	Content   string `json:"content,omitempty"`
	Node      uint32 `json:"node,omitempty"` // where it is wrong, if that is at one node
	Name      string `json:"name,omitempty"` // of that node
	Count     int    `json:"count,omitempty"`
	SizeBytes int64  `json:"size_bytes,omitempty"`
	// Paths are some of the files, if it is about several.
	Paths []string `json:"paths,omitempty"`
}

// Kinds of findings of a fsck.
const (
	FsckState       = "state"       // records of the names and contents do not fit together
	FsckDigest      = "digest"      // a node has another state, or did not say which
	FsckUnchecked   = "unchecked"   // a node could not be asked for what it has
	FsckLost        = "lost"        // no node holds a content
	FsckUnreachable = "unreachable" // the nodes that hold contents are down
	FsckOwed        = "owed"        // a node lacks contents, and the log says so
	FsckPolicy      = "policy"      // the nodes are too few for a policy
	FsckMissing     = "missing"     // a node lacks a content that the log says it has
	FsckDamaged     = "damaged"     // a content of a node failed its checks
	FsckUnneeded    = "unneeded"    // a node has contents that nothing needs
	FsckUnpublished = "unpublished" // a node has bytes that were never published
)

// FsckResult is what a fsck has looked at.
type FsckResult struct {
	Index     uint64     `json:"index"` // of the log, at which the names were checked
	Inodes    uint64     `json:"inodes"`
	Contents  uint64     `json:"contents"`
	SizeBytes int64      `json:"size_bytes"` // of the contents
	Findings  int        `json:"findings"`
	Left      int        `json:"left"` // of them, that do not heal by themselves
	Nodes     []FsckNode `json:"nodes"`
}

// FsckNode is what a fsck has looked at on one node.
type FsckNode struct {
	Node      uint32 `json:"node"`
	Name      string `json:"name"`
	Checked   bool   `json:"checked"`
	Digest    string `json:"digest"`     // same, differs, unknown
	Contents  int    `json:"contents"`   // that it was looked for
	SizeBytes int64  `json:"size_bytes"` // of them
	// UnneededCount contents are there that nothing needs; they are deleted by and by.
	UnneededCount int   `json:"unneeded_count,omitempty"`
	UnneededBytes int64 `json:"unneeded_bytes,omitempty"`
}

// Policy says where files under a directory live and what close waits for.
type Policy struct {
	Placement string            `json:"placement"` // all, copies, labels
	Copies    uint32            `json:"copies,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	MinCopies uint32            `json:"min_copies,omitempty"` // 0 = default
	AckLocal  bool              `json:"ack_local,omitempty"`
	Retain    uint32            `json:"retain,omitempty"`
	// KeepRemoved is how long files that are removed from the directory are kept. 0: they are not.
	KeepRemoved time.Duration `json:"keep_removed,omitempty"`
	// SendRate caps what each node sends for files of the directory, in bytes a second. 0: no cap.
	SendRate uint64 `json:"send_rate,omitempty"`
	Priority string `json:"priority,omitempty"` // low, high; normal is left out in answers
	// Unmet says why the nodes that take new files are too few for it now; an answer only.
	Unmet string `json:"unmet,omitempty"`
}

// PolicyRequest reads the policy of a path. Change changes some settings of it, Set all, and Inherit removes it: a
// request has one of them at most. With Recursive the same happens to each directory below: Change keeps the other
// settings of each.
type PolicyRequest struct {
	Path      string        `json:"path"`
	Set       *Policy       `json:"set,omitempty"`
	Change    *PolicyChange `json:"change,omitempty"`
	Inherit   bool          `json:"inherit,omitempty"`
	Recursive bool          `json:"recursive,omitempty"`
}

// PolicyChange is new values of some settings of a policy. The others stay.
type PolicyChange struct {
	// Placement is all, copies (with Copies) or labels (with Labels).
	Placement   string            `json:"placement,omitempty"`
	Copies      uint32            `json:"copies,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	MinCopies   *uint32           `json:"min_copies,omitempty"`
	AckLocal    *bool             `json:"ack_local,omitempty"`
	Retain      *uint32           `json:"retain,omitempty"`
	KeepRemoved *time.Duration    `json:"keep_removed,omitempty"`
	SendRate    *uint64           `json:"send_rate,omitempty"`
	Priority    *string           `json:"priority,omitempty"` // low, normal, high
}

// WaitRequest waits until nothing is owed any more: of a path, or at all.
type WaitRequest struct {
	Path    string        `json:"path,omitempty"`
	Nodes   []uint32      `json:"nodes,omitempty"` // to these only
	Timeout time.Duration `json:"timeout,omitempty"`
}

// WaitResult answers WaitRequest; Done is false when the time was up before.
type WaitResult struct {
	Done  bool   `json:"done"`
	Nodes []Node `json:"nodes"` // still owed something
	// Lost counts contents that no node has any more. They are owed for ever and not waited for, unless a path was
	// given.
	Lost int `json:"lost,omitempty"`
}

// TokenRequest makes a join token.
type TokenRequest struct {
	TTL     time.Duration `json:"ttl,omitempty"`     // 0 = 24 h
	Replace string        `json:"replace,omitempty"` // name of the node that the joiner may replace
}

// Token answers TokenRequest.
type Token struct {
	Token   string    `json:"token"`
	Expires time.Time `json:"expires"`
	Listen  string    `json:"listen"` // address to join at
}

// EvictRequest removes a node for good. Without Lose it is refused (CodeNeeded) while the node has what no other node
// has.
type EvictRequest struct {
	Node   uint32 `json:"node"`
	Reason string `json:"reason,omitempty"`
	Lose   bool   `json:"lose,omitempty"`
}

// EvictResult says what was lost with the node.
type EvictResult struct {
	Lost        int    `json:"lost"`             // file versions of which it had the last copy that is up
	Unpublished int    `json:"unpublished"`      // files, as far as it could be asked
	Notice      string `json:"notice,omitempty"` // the same in words, and what is not known
}

// DrainRequest makes a node take no new files, and makes the others fetch what depends on it. Undo ends that; Look
// changes nothing.
type DrainRequest struct {
	Node uint32 `json:"node"`
	Undo bool   `json:"undo,omitempty"`
	Look bool   `json:"look,omitempty"`
}

// DrainState is how far a drain is. Nothing depends on the node when NeededCount and UnpublishedCount are 0.
type DrainState struct {
	Node        uint32   `json:"node"`
	Name        string   `json:"name"`
	Draining    bool     `json:"draining"`
	NeededCount int      `json:"needed_count"` // file versions that the others have not fetched yet
	NeededBytes int64    `json:"needed_bytes"`
	StuckCount  int      `json:"stuck_count"`      // of them, files that may be on no other node by their policy
	Needed      []string `json:"needed,omitempty"` // the first of them
	// NoRoom names the nodes that take files and have refused a content of late for lack of space, a sentence each.
	NoRoom []string `json:"no_room,omitempty"`
	// Unpublished files of the node are looked for when nothing else depends on it. OpenCount of them are open for
	// writing. Unasked says why the node could not be asked.
	UnpublishedCount int           `json:"unpublished_count"`
	OpenCount        int           `json:"open_count,omitempty"`
	Unpublished      []Unpublished `json:"unpublished,omitempty"` // the first of them
	Unasked          string        `json:"unasked,omitempty"`
	// Unmet are the policies that can't be met by the nodes that go on taking files, a sentence each. They are looked
	// for when unpublished files are.
	Unmet []string `json:"unmet,omitempty"`
}

// UpgradeRequest asks which versions the nodes run. With Finish the cluster uses the newest format that all of them
// know from then on.
type UpgradeRequest struct {
	Finish bool `json:"finish,omitempty"`
}

// Upgrade is how far an upgrade of the cluster is.
type Upgrade struct {
	Format uint64        `json:"format"` // that the cluster uses
	Common uint64        `json:"common"` // the newest one that all nodes know: more than Format if Finish can be asked for
	Newest uint64        `json:"newest"` // the newest one that any node knows: those that do not hold it back
	Nodes  []UpgradeNode `json:"nodes"`
}

// UpgradeNode is what runs on a node, as of its last boot.
type UpgradeNode struct {
	ID           uint32 `json:"id"`
	Name         string `json:"name"`
	State        string `json:"state"` // as in Node
	Version      string `json:"version,omitempty"`
	OldestFormat uint64 `json:"oldest_format"`
	NewestFormat uint64 `json:"newest_format"`
}

// Done answers requests whose answer has no content.
type Done struct{}

// Remaining is what a node that does not run has. After most voters were lost for good, the cluster goes on with what
// one node has: among the voters take the one with the highest term and, of those, the highest index, or another node
// whose last change is later.
type Remaining struct {
	Node       uint32          `json:"node"`
	Name       string          `json:"name"`
	Generation uint32          `json:"generation"`
	Votes      bool            `json:"votes"`
	Term       uint64          `json:"term,omitempty"` // only a voter knows it
	Index      uint64          `json:"index"`          // of the last change it knows
	Time       time.Time       `json:"time,omitzero"`  // of that
	Files      uint64          `json:"files"`          // at the last change that is in its state
	Bytes      uint64          `json:"bytes"`
	Signs      bool            `json:"signs"` // it has the signing key, without which no machine can join
	Nodes      []RemainingNode `json:"nodes"`
}

// RemainingNode is a member as that node knows it.
type RemainingNode struct {
	ID    uint32 `json:"id"`
	Name  string `json:"name"`
	Addr  string `json:"addr"`
	Voter bool   `json:"voter"`
}
