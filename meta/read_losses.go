package meta

import (
	"fmt"
	"slices"
)

// Losses answers what a state knows of bytes that nodes have lost.
type Losses struct{ DB *DB }

// Nowhere lists live contents that were lost and that no node is believed to hold any more, at most limit. It looks at
// what is owed by rows, up to nowhereRows of them.
func (l Losses) Nowhere(limit int) ([]Content, error) {
	var out []Content
	err := l.DB.read(func(s snap) error {
		out = nil
		rows, seen := 0, map[ContentID]bool{}
		return s.each([]byte{tableOwed}, []byte{tableOwed}, func(key, value []byte) (bool, error) {
			var r owedRecord
			if err := decodeRecord(value, &r); err != nil {
				return false, fmt.Errorf("meta: record %x: %w", key, err)
			}
			if rows++; r.Reason != OwedLost || seen[r.Content] {
				return rows < nowhereRows, nil
			}
			seen[r.Content] = true
			var rec contentRecord
			if err := s.load(keyContent(tableContent, r.Content), &rec); err != nil {
				return false, err
			}
			if !s.heldByAny(&rec) {
				out = append(out, rec.Content)
			}
			return len(out) < limit && rows < nowhereRows, nil
		})
	})
	return out, err
}

// HasEvicted reports whether a node was ever evicted.
func (l Losses) HasEvicted() bool {
	return slices.ContainsFunc(l.DB.cur.Load().cl.nodes, func(n *nodeRecord) bool {
		return n != nil && n.State == NodeEvicted
	})
}

// HeldByNobody lists live contents that no node is believed to hold, whatever the reason, at most limit. It looks at
// all contents, so its time grows with their number.
func (l Losses) HeldByNobody(limit int) ([]Content, error) {
	var out []Content
	err := l.DB.read(func(s snap) error {
		out = nil
		return s.each([]byte{tableContent}, []byte{tableContent}, func(key, value []byte) (bool, error) {
			var rec contentRecord
			if err := decodeRecord(value, &rec); err != nil {
				return false, fmt.Errorf("meta: record %x: %w", key, err)
			}
			if rec.State != ContentRetired && !s.heldByAny(&rec) {
				out = append(out, rec.Content)
			}
			return len(out) < limit, nil
		})
	})
	return out, err
}

// IsLost reports whether a node has told the log that it has lost a content.
func (l Losses) IsLost(node NodeID, c Content) (bool, error) {
	lost := false
	err := l.DB.read(func(s snap) error {
		return s.owedRows(node, c.Published-1, func(o Owed) (bool, error) {
			lost = o.Content == c.ID && o.Reason == OwedLost
			return false, nil
		})
	})
	return lost, err
}

// nowhereRows bounds what Nowhere reads.
const nowhereRows = 4096

func (s snap) heldByAny(rec *contentRecord) bool {
	for _, n := range s.cl.nodes {
		if s.cl.believes(n, rec) {
			return true
		}
	}
	return false
}
