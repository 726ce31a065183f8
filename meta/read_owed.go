package meta

import (
	"bytes"
	"fmt"
	"sort"
)

// OwedTo lists what is owed to a node, in the order of publishing.
func (db *DB) OwedTo(node NodeID, after uint64, limit int) ([]Owed, error) {
	var out []Owed
	err := db.read(func(s snap) error {
		out = nil
		return s.owed(node, after, limit, func(o Owed) { out = append(out, o) })
	})
	if err != nil {
		return nil, err
	}
	sort.Slice(out, func(a, b int) bool { return out[a].Published < out[b].Published })
	return out[:min(limit, len(out))], nil
}

// owed finds what is owed from rows and from ranges, up to limit each, each in the order of publishing.
func (s snap) owed(id NodeID, from uint64, limit int, fn func(Owed)) error {
	n := s.cl.node(id)
	if n == nil {
		return ErrNotFound
	}
	if n.State == NodeEvicted || n.draining() {
		return nil // the rows of a node that is draining wait for the end of that
	}
	found := 0
	err := s.owedRows(id, from, func(o Owed) (bool, error) {
		fn(o)
		found++
		return found < limit, nil
	})
	if err != nil {
		return err
	}
	found = 0
	for _, r := range n.missed(s.head.Index).addRange(n.Recheck) {
		r.Lo = max(r.Lo, from)
		if r.Lo >= r.Hi || found >= limit {
			continue
		}
		err := s.owedInRange(n, r, func(o Owed) bool {
			fn(o)
			found++
			return found < limit
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// owedRows reads the owed rows of a node after a publish index.
func (s snap) owedRows(id NodeID, from uint64, fn func(Owed) (bool, error)) error {
	return s.each(key32(tableOwed, uint32(id)), owedKey(id, from+1), func(key, value []byte) (bool, error) {
		var r owedRecord
		if err := decodeRecord(value, &r); err != nil {
			return false, fmt.Errorf("meta: record %x: %w", key, err)
		}
		return fn(Owed{Node: id, Content: r.Content, Reason: r.Reason, Since: r.Since, Published: keyNumber(key, 5),
			Size: r.Size})
	})
}

// missed returns the ranges of publish indexes of which the node lacks everything assigned to it, apart from rows.
func (n *nodeRecord) missed(index uint64) seqSet {
	out := seqSet(n.Backlog)
	if n.State != NodeUp {
		out = out.addRange(IndexRange{n.DownIndex, index})
	}
	return out
}

// owedInRange finds what is owed without a row among the contents published in a range.
func (s snap) owedInRange(n *nodeRecord, r IndexRange, fn func(Owed) bool) error {
	reason := OwedJoined
	if n.State == NodeDown {
		reason = OwedDown
	}
	return s.published(r, func(rec *contentRecord) bool {
		return !s.cl.owes(n, rec) || fn(Owed{Node: n.ID, Content: rec.ID, Reason: reason, Published: rec.Published,
			Size:     rec.Size,
			Unplaced: !s.cl.assigned(n, rec)})
	})
}

// published walks over the live contents of a range of publish indexes.
func (s snap) published(r IndexRange, fn func(*contentRecord) bool) error {
	end := key64(tableIndex, r.Hi)
	return s.each([]byte{tableIndex}, key64(tableIndex, r.Lo+1), func(key, value []byte) (bool, error) {
		if bytes.Compare(key, end) > 0 {
			return false, nil
		}
		var rec contentRecord
		id := ContentIDFromBytes([16]byte(value))
		if err := s.load(keyContent(tableContent, id), &rec); err != nil {
			return false, err
		}
		return fn(&rec), nil
	})
}

// OwedCount counts what is owed to a node. It costs little even for a long backlog, except with PlaceCopies policies,
// whose contents are looked at one by one.
func (db *DB) OwedCount(node NodeID) (contents int, bytes int64, err error) {
	err = db.read(func(s snap) error {
		contents, bytes = 0, 0
		add := func(n int, size int64) { contents += n; bytes += size }
		n := s.cl.node(node)
		switch {
		case n == nil:
			return ErrNotFound
		case n.State == NodeEvicted || n.draining():
			return nil
		case s.head.HasCopies:
			return s.owed(node, 0, 1<<62, func(o Owed) { add(1, o.Size) })
		}
		missed := n.missed(s.head.Index)
		if err := s.countRows(n, missed, add); err != nil {
			return err
		}
		for _, r := range missed {
			if err := s.countRange(n, r, add); err != nil {
				return err
			}
		}
		return nil
	})
	return contents, bytes, err
}

// countRows counts the rows that lie outside of the missed ranges.
func (s snap) countRows(n *nodeRecord, missed seqSet, add func(int, int64)) error {
	return s.owedRows(n.ID, 0, func(o Owed) (bool, error) {
		if !missed.has(o.Published) {
			add(1, o.Size)
		}
		return true, nil
	})
}

// countRange counts the contents of a range that are for the node, whole buckets at once.
func (s snap) countRange(n *nodeRecord, r IndexRange, add func(int, int64)) error {
	const size = 1 << bucketBits
	// Buckets first <= b < last lie within the range: b holds the indexes b*size <= i < (b+1)*size.
	first, last := (r.Lo+size)>>bucketBits, (r.Hi+1)>>bucketBits
	if first >= last {
		return s.countEach(n, r, add)
	}
	if err := s.countEach(n, IndexRange{r.Lo, first*size - 1}, add); err != nil {
		return err
	}
	if err := s.countEach(n, IndexRange{last*size - 1, r.Hi}, add); err != nil {
		return err
	}
	for id, p := range s.cl.policies {
		if !p.eligible(n) {
			continue
		}
		end := bucketKey(id, last)
		err := s.each(key32(tableBucket, uint32(id)), bucketKey(id, first), func(key, value []byte) (bool, error) {
			if bytes.Compare(key, end) >= 0 {
				return false, nil
			}
			var b bucketRecord
			if err := decodeRecord(value, &b); err != nil {
				return false, fmt.Errorf("meta: record %x: %w", key, err)
			}
			add(int(b.Contents), int64(b.Bytes))
			return true, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (s snap) countEach(n *nodeRecord, r IndexRange, add func(int, int64)) error {
	if r.Lo >= r.Hi {
		return nil
	}
	return s.published(r, func(rec *contentRecord) bool {
		if s.cl.assigned(n, rec) {
			add(1, rec.Size)
		}
		return true
	})
}

// Believed lists the contents that the log believes the node holds, except inline ones, in the order of their ids,
// after a given one. It looks at up to limit records. next is where to go on; zero means that there are no more.
func (db *DB) Believed(node NodeID, after ContentID, limit int) (list []Content, next ContentID, err error) {
	err = db.read(func(s snap) error {
		list, next = nil, ContentID{}
		looked, last := 0, ContentID{}
		from := append(keyContent(tableContent, after), 0)
		return s.each([]byte{tableContent}, from, func(key, value []byte) (bool, error) {
			if looked == limit {
				next = last
				return false, nil
			}
			var rec contentRecord
			if err := decodeRecord(value, &rec); err != nil {
				return false, fmt.Errorf("meta: record %x: %w", key, err)
			}
			looked, last = looked+1, rec.ID
			if !rec.Inline && s.cl.believes(s.cl.node(node), &rec) {
				list = append(list, rec.Content)
			}
			return true, nil
		})
	})
	return list, next, err
}
