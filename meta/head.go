package meta

import "github.com/rdmcfs/rdmcfs/internal/format"

// FirstGeneration is the cluster generation of a new cluster.
const FirstGeneration = 1

// head is the one record that every entry rewrites. It is replicated (equal on all nodes at equal index).
type head struct {
	Index         uint64
	Time          int64 // of the last entry; never goes back
	View          uint64
	Generation    uint32
	LastNode      NodeID
	LastPolicy    PolicyID
	DefaultPolicy PolicyID
	HasCopies     bool // a PlaceCopies policy exists or existed
	Freeing       bool // rows in tableFree
	Files         uint64
	Bytes         uint64
	Sum           sum128 // over all keys but the head
	Removed       uint64 // rows in tableRemoved
	Raised        uint64 // the cluster's format, once it is not the first
}

// format is the cluster's format.
func (h *head) format() uint64 { return max(h.Raised, format.First) }

// headReader is the part of a DB that reads what entries must carry.
type headReader struct{ db *DB }

// Format is the format that the cluster uses.
func (r headReader) Format() uint64 { return r.db.cur.Load().head.format() }

// Generation is the cluster generation that entries must carry.
func (r headReader) Generation() uint32 { return r.db.cur.Load().head.Generation }

func (h *head) code(c *fields) {
	c.V64(&h.Index)
	c.I64(&h.Time)
	c.V64(&h.View)
	c.V32(&h.Generation)
	c.node(&h.LastNode)
	c.V32((*uint32)(&h.LastPolicy))
	c.V32((*uint32)(&h.DefaultPolicy))
	c.Flag(&h.HasCopies)
	c.Flag(&h.Freeing)
	c.V64(&h.Files)
	c.V64(&h.Bytes)
	c.V64(&h.Sum.hi)
	c.V64(&h.Sum.lo)
	c.last64(&h.Removed, &h.Raised)
}

// builtinPolicy is the default of a new cluster: all nodes.
const builtinPolicy PolicyID = 1

// genesis is the state at index 0, the same on every node.
func genesis() (head, []kvWrite) {
	root := Inode{Ino: RootIno, Kind: KindDir, Mode: 0o755, Nlink: 2, Parent: RootIno, Policy: 0}
	policy := Policy{ID: builtinPolicy}
	writes := []kvWrite{
		{key: inodeKey(RootIno), value: encodeRecord(&root)},
		{key: key32(tablePolicy, uint32(builtinPolicy)), value: encodeRecord(&policy)},
	}
	h := head{Generation: FirstGeneration, LastPolicy: builtinPolicy, DefaultPolicy: builtinPolicy, Files: 1}
	for _, w := range writes {
		h.Sum.add(hashPair(w.key, w.value))
	}
	return h, append(writes, kvWrite{key: headKey, value: encodeRecord(&h)})
}
