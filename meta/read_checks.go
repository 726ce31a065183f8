package meta

import "fmt"

// Copies is where the bytes of a content are, as far as the log knows.
type Copies struct {
	Content
	Holders []NodeID
	Lacking []Lacking // nodes that are to hold it
}

// Lacking is a node that is owed a content, and why.
type Lacking struct {
	Node   NodeID
	Reason OwedReason
}

// Copies describes the live contents whose bytes nodes hold, in the order of their ids, after a given one. It looks at
// up to limit records. next is where to go on; zero means that there are no more.
func (k Checks) Copies(after ContentID, limit int) (list []Copies, next ContentID, err error) {
	err = k.DB.read(func(s snap) error {
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
			if looked, last = looked+1, rec.ID; rec.Inline {
				return true, nil
			}
			c, err := s.copies(&rec)
			list = append(list, c)
			return true, err
		})
	})
	return list, next, err
}

func (s snap) copies(rec *contentRecord) (Copies, error) {
	out := Copies{Content: rec.Content}
	for _, n := range s.cl.nodes {
		if s.cl.believes(n, rec) {
			out.Holders = append(out.Holders, n.ID)
		}
	}
	p := s.cl.policy(rec.Policy)
	if p == nil {
		return out, nil
	}
	for _, id := range s.cl.members(p, rec.Ino) {
		if contains(out.Holders, id) {
			continue
		}
		reason, err := s.whyOwed(s.cl.node(id), rec)
		if err != nil {
			return out, err
		}
		if reason != 0 {
			out.Lacking = append(out.Lacking, Lacking{id, reason})
		}
	}
	return out, nil
}

// whyOwed is why a content is owed to a node; 0 if it is not: a node that another one's absence made a member takes no
// older contents.
func (s snap) whyOwed(n *nodeRecord, rec *contentRecord) (OwedReason, error) {
	if contains(rec.Owed, n.ID) {
		var row owedRecord
		if err := s.load(owedKey(n.ID, rec.Published), &row); err != nil && err != ErrNotFound {
			return 0, err
		}
		return row.Reason, nil
	}
	switch {
	case !s.cl.owes(n, rec):
		return 0, nil
	case n.State != NodeUp:
		return OwedDown, nil
	}
	return OwedJoined, nil
}

// Below reports whether one of the names of an inode is dir, or lies in or below it. known remembers directories from
// call to call.
func (k Checks) Below(ino, dir Ino, known map[Ino]bool) (bool, error) {
	if ino == dir || dir == RootIno {
		return true, nil
	}
	names, err := k.names(ino, linkMax)
	if err != nil {
		return false, err
	}
	for _, n := range names {
		if in, err := k.dirBelow(n.Ino, dir, known); in || err != nil {
			return in, err
		}
	}
	return false, nil
}

// belowMost bounds what Below remembers.
const belowMost = 1 << 16

// dirBelow is Below for a directory.
func (k Checks) dirBelow(at, dir Ino, known map[Ino]bool) (in bool, err error) {
	if len(known) > belowMost {
		clear(known)
	}
	var passed []Ino
	for range belowMost { // more than any path has: where directories lie in each other, this ends too
		var found bool
		if in, found = known[at]; found || at == dir || at == RootIno {
			in = in || at == dir
			break
		}
		passed = append(passed, at)
		i, err := k.DB.Inode(at)
		if err != nil {
			return false, err
		}
		at = i.Parent
	}
	for _, p := range passed {
		known[p] = in
	}
	return in, nil
}

// names lists (parent, name) pairs of an inode, at most limit. The root has none.
func (k Checks) names(ino Ino, limit int) ([]Dirent, error) {
	var out []Dirent
	err := k.DB.read(func(s snap) error {
		out = nil
		var i Inode
		if err := s.load(inodeKey(ino), &i); err != nil {
			return err
		}
		if ino != RootIno {
			out = append(out, Dirent{i.Name, i.Parent, i.Kind})
		}
		if i.Nlink < 2 || i.Kind == KindDir {
			return nil
		}
		prefix := key64(tableName, uint64(ino))
		return s.each(prefix, prefix, func(key, _ []byte) (bool, error) {
			if len(out) >= limit {
				return false, nil
			}
			parent, name := splitName(key)
			out = append(out, Dirent{name, parent, i.Kind})
			return true, nil
		})
	})
	return out, err
}
