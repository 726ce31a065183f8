package content

import (
	"fmt"
	"path/filepath"
	"strings"
)

// State is how far a content has come.
type State uint8

// The states of a content.
const (
	// Partial contents are being received or were when the process ended.
	Partial State = iota + 1
	// Undecided contents are whole and durable; the log has not decided yet.
	Undecided
	// Committed contents are live until deleted.
	Committed
)

// String names the state.
func (s State) String() string {
	switch s {
	case Partial:
		return "partial"
	case Undecided:
		return "undecided"
	case Committed:
		return "committed"
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// The suffixes of the files of a content.
const (
	suffixPart  = ".part"
	suffixNew   = ".new"
	suffixMeta  = ".meta"
	suffixFold  = ".fold"
	suffixAside = ".aside"
	suffixData  = ".data"
	suffixDelta = ".delta"
)

// heldDirs is the number of directories below held.
const heldDirs = 256

// shard is the directory of an id. Ids that differ only in the last byte share one: a writer numbers its
// contents in sequence, and files made together are synced faster in one directory.
func shard(id ID) int { return int(Checksum(id[:len(id)-1]) % heldDirs) }

func (sf *storeFiles) shardDir(id ID) string {
	return filepath.Join(sf.dir, "held", fmt.Sprintf("%02x", shard(id)))
}

// sidecarPath is where the sidecar of a content in a state lies.
func (sf *storeFiles) sidecarPath(id, base ID, state State) string {
	return filepath.Join(sf.shardDir(id), sidecarName(id, base, state))
}

func sidecarName(id, base ID, state State) string {
	name := id.String()
	if !base.IsZero() {
		name += "+" + base.String()
	}
	switch state {
	case Partial:
		name += suffixPart
	case Undecided:
		name += suffixNew
	case Committed:
		name += suffixMeta
	}
	return name
}

// foldPath is where the sidecar of a new form of a content lies while it is made.
func (sf *storeFiles) foldPath(id, base ID) string {
	return strings.TrimSuffix(sf.sidecarPath(id, base, Committed), suffixMeta) + suffixFold
}

// asidePath is where a copy of a content's data file lies while it is made.
func (sf *storeFiles) asidePath(id ID) string {
	return filepath.Join(sf.shardDir(id), id.String()+suffixAside)
}

// streamPath is where the stream of a content lies if it is not inline. A delta's names its base, so that the
// forms of one content over different bases do not meet.
func (sf *storeFiles) streamPath(id, base ID) string {
	return filepath.Join(sf.shardDir(id), streamName(id, base))
}

func streamName(id, base ID) string {
	if base.IsZero() {
		return id.String() + suffixData
	}
	return id.String() + "+" + base.String() + suffixDelta
}

// heldName is a parsed file name of a held directory.
type heldName struct {
	id, base ID
	suffix   string
}

// parseHeldName reads a file name of a held directory.
func parseHeldName(name string) (heldName, bool) {
	dot := strings.IndexByte(name, '.')
	if dot < 0 {
		return heldName{}, false
	}
	h := heldName{suffix: name[dot:]}
	first, second, delta := strings.Cut(name[:dot], "+")
	var err error
	if h.id, err = ParseID(first); err != nil || h.id.IsZero() {
		return heldName{}, false
	}
	if delta {
		if h.base, err = ParseID(second); err != nil || h.base.IsZero() {
			return heldName{}, false
		}
	}
	switch h.suffix {
	case suffixPart, suffixNew, suffixMeta, suffixFold, suffixAside:
		return h, true
	case suffixData:
		return h, !delta
	case suffixDelta:
		return h, delta
	}
	return heldName{}, false
}
