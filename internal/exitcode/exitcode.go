// Package exitcode names the exit codes of rdmcfs. They are part of the interface: scripts rely on them, tests check
// them, docs/CLI.md lists them. A code is never given another meaning.
package exitcode

// The exit codes.
const (
	// OK is success: what was asked for is so.
	OK = 0
	// Failure is any error without a code of its own.
	Failure = 1
	// Usage is a command line that makes no sense. Nothing was done.
	Usage = 2
	// NotRunning is a data directory on which no daemon answers.
	NotRunning = 3
	// Timeout is a wait that ended before what was waited for.
	Timeout = 4
	// Unavailable is a cluster without a quorum, or a node that is still starting.
	Unavailable = 5
	// NotFound is a file, version, node or mount that does not exist.
	NotFound = 6
	// Denied is a refused token, an evicted node, a version that does not know the cluster's format, or a right that the
	// operating system did not give.
	Denied = 7
	// Exists is something that is there already: a node in the data directory, a mount, a name, a daemon.
	Exists = 8
	// Busy is a mount that open files hold.
	Busy = 9
	// Full is a disk without enough space.
	Full = 10
	// Differs is a demo or check in which two nodes gave different bytes.
	Differs = 11
	// Problem is a doctor that found something that keeps rdmcfs from working.
	Problem = 12
	// Needed is a node that is not evicted, or not drained, because files depend on it.
	Needed = 13
	// Damaged is a scrub that found damage which could not be mended, or a file that is no whole backup.
	Damaged = 14
	// Faulty is a fsck that found something that does not heal by itself.
	Faulty = 15
	// Incomplete is a restore-backup that could not restore everything.
	Incomplete = 16
)

// Codes lists all codes in order, in the words of docs/CLI.md.
var Codes = []struct{ Name, Meaning string }{
	{"ok", "The request succeeded."},
	{"failure", "An error without a code of its own."},
	{"usage", "The command line makes no sense. Nothing was done."},
	{"not-running", "No daemon answers for this data directory."},
	{"timeout", "The time ran out first."},
	{"unavailable", "No quorum, now or without the node to be removed; still starting; no node answers."},
	{"not-found", "No such file, version, node or mount; or no node in the data directory."},
	{"denied", "A token, a clock or a version was refused, the node was evicted, or a right is missing."},
	{"exists", "It exists already, or something else is in its place."},
	{"busy", "Open files hold the mount."},
	{"full", "The disk lacks space, or what is printed does not fit where it goes."},
	{"differs", "`demo`, `bench`: two nodes gave different bytes."},
	{"problem", "`doctor`: something keeps rdmcfs from working here. `--fabric verbs`: no RDMA."},
	{"needed", "`evict`, `drain`: files depend on the node."},
	{"damaged", "`scrub`: damage stays. `backup`, `restore-backup`: the file is no whole backup."},
	{"faulty", "`fsck`: something is wrong that does not heal by itself."},
	{"incomplete", "`restore-backup`: not everything could be restored; it is listed."},
}
