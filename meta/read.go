package meta

import (
	"errors"
	"fmt"
	"sort"
)

// snap is one version as a read sees it.
type snap struct {
	view kvView
	*version
}

// read runs fn over the applied version. If the store drops that version meanwhile, fn runs again over a later one: so
// it must only set its results.
func (db *DB) read(fn func(s snap) error) error {
	state, err := tryRead(db, fn)
	metDamage(db, state, err)
	return err
}

// tryRead is read, and returns the number of the state that was read, 0 if none was.
func tryRead(db *DB, fn func(s snap) error) (state uint64, err error) {
	db.life.RLock()
	defer db.life.RUnlock()
	if db.closed {
		return 0, ErrClosed
	}
	if err := db.Distrusted(); err != nil {
		return 0, err
	}
	for {
		v := db.cur.Load()
		view := db.store.view(v.head.Index)
		err := fn(snap{view, v})
		view.close()
		if v.head.Index >= db.oldest.Load() {
			return db.State(), err
		}
	}
}

// metDamage ends the use of a state if err says that a read of it has met damage. No lock is held.
func metDamage(db *DB, state uint64, err error) {
	switch {
	case state == 0 || !errors.Is(err, ErrDamaged):
	case db.opts.Damaged != nil:
		db.opts.Damaged(state, err)
	default:
		db.Distrust(state, err)
	}
}

func (s snap) load(key []byte, r record) error {
	raw, err := s.view.get(key)
	if err != nil {
		return fmt.Errorf("meta: read key %x: %w", key, err)
	}
	if raw == nil {
		return ErrNotFound
	}
	if err := decodeRecord(raw, r); err != nil {
		return fmt.Errorf("meta: record %x: %w", key, err)
	}
	return nil
}

// each calls fn with the pairs from `from` up to the end of prefix until it returns false.
func (s snap) each(prefix, from []byte, fn func(key, value []byte) (bool, error)) (err error) {
	cur := s.view.scan(prefix, from)
	defer func() {
		if serr := cur.sure(); serr != nil {
			err = fmt.Errorf("meta: scan keys %x from %x: %w", prefix, from, serr) // more than what fn makes of half of them
		}
		cur.close()
	}()
	for cur.next() {
		value, err := cur.value()
		if err != nil {
			return fmt.Errorf("meta: scan key %x: %w", cur.key(), err)
		}
		if more, err := fn(cur.key(), value); err != nil || !more {
			return err
		}
	}
	return nil
}

// sees reports whether a viewer sees the inode behind a reserved name.
func (s snap) sees(d dirent, viewer Lease) (Inode, bool, error) {
	var i Inode
	if err := s.load(inodeKey(d.Ino), &i); err != nil {
		return i, false, err
	}
	return i, !d.Reserved || i.Reserved == viewer && s.cl.alive(viewer), nil
}

// Index is the last applied log index.
func (db *DB) Index() uint64 { return db.cur.Load().head.Index }

// Time is the time of the last applied entry.
func (db *DB) Time() int64 { return db.cur.Load().head.Time }

// View is the number of the present view.
func (db *DB) View() uint64 { return db.cur.Load().head.View }

// StatFS counts inodes and the bytes of live contents.
func (db *DB) StatFS() (files uint64, bytes uint64) {
	h := &db.cur.Load().head
	return h.Files, h.Bytes
}

// Digest is the index and a digest of the whole replicated state at it, equal on all nodes.
func (db *DB) Digest() (index uint64, sum [16]byte) {
	h := &db.cur.Load().head
	return h.Index, h.digest()
}

// Lookup finds a name.
func (db *DB) Lookup(parent Ino, name string, viewer Lease) (Inode, error) {
	var out Inode
	err := db.read(func(s snap) error {
		var d dirent
		if err := s.load(direntKey(parent, name), &d); err != nil {
			return err
		}
		i, visible, err := s.sees(d, viewer)
		if err == nil && !visible {
			err = ErrNotFound
		}
		out = i
		return err
	})
	return out, err
}

// Inode reads an inode by number.
func (db *DB) Inode(ino Ino) (Inode, error) {
	var out Inode
	err := db.read(func(s snap) error {
		out = Inode{}
		return s.load(inodeKey(ino), &out)
	})
	return out, err
}

// ReadDir lists a directory.
func (db *DB) ReadDir(dir Ino, after string, limit int, viewer Lease) ([]Dirent, error) {
	var out []Dirent
	err := db.read(func(s snap) error {
		out = nil
		var i Inode
		if err := s.load(inodeKey(dir), &i); err != nil {
			return err
		}
		from := direntKey(dir, after)
		if after != "" {
			from = append(from, 0)
		}
		return s.each(key64(tableDirent, uint64(dir)), from, func(key, value []byte) (bool, error) {
			var d dirent
			if err := decodeRecord(value, &d); err != nil {
				return false, fmt.Errorf("meta: record %x: %w", key, err)
			}
			visible := true
			if d.Reserved {
				var err error
				if _, visible, err = s.sees(d, viewer); err != nil {
					return false, err
				}
			}
			if visible {
				out = append(out, Dirent{string(key[9:]), d.Ino, d.Kind})
			}
			return len(out) < limit, nil
		})
	})
	return out, err
}

// Xattr reads an extended attribute.
func (db *DB) Xattr(ino Ino, name string) ([]byte, error) {
	return db.value(keyName(tableXattr, ino, name))
}

// value reads raw bytes.
func (db *DB) value(key []byte) ([]byte, error) {
	var out []byte
	err := db.read(func(s snap) error {
		raw, err := s.view.get(key)
		if err != nil {
			return fmt.Errorf("meta: read key %x: %w", key, err)
		}
		if raw == nil {
			return ErrNotFound
		}
		out = append([]byte{}, raw[1:]...)
		return nil
	})
	return out, err
}

// Xattrs lists the names of the extended attributes of an inode.
func (db *DB) Xattrs(ino Ino) ([]string, error) {
	var out []string
	err := db.read(func(s snap) error {
		out = nil
		var i Inode
		if err := s.load(inodeKey(ino), &i); err != nil || i.Xattrs == 0 {
			return err
		}
		prefix := key64(tableXattr, uint64(ino))
		return s.each(prefix, prefix, func(key, _ []byte) (bool, error) {
			out = append(out, string(key[9:]))
			return true, nil
		})
	})
	return out, err
}

// Content reads the record of a live content.
func (db *DB) Content(id ContentID) (Content, error) {
	var out contentRecord
	err := db.read(func(s snap) error {
		out = contentRecord{}
		return s.load(keyContent(tableContent, id), &out)
	})
	return out.Content, err
}

// InlineBytes reads the bytes of an inline content.
func (db *DB) InlineBytes(id ContentID) ([]byte, error) {
	return db.value(keyContent(tableInline, id))
}

// Versions lists the live contents of an inode, newest first. An inode that is gone may still have kept ones.
func (db *DB) Versions(ino Ino) ([]Content, error) {
	var out []Content
	err := db.read(func(s snap) error {
		out = nil
		var i Inode
		err := s.load(inodeKey(ino), &i)
		if err != nil && err != ErrNotFound {
			return err
		}
		gone := err == ErrNotFound
		if !i.Content.IsZero() {
			if out, err = s.appendContent(out, i.Content); err != nil {
				return err
			}
		}
		prefix := key64(tableVersion, uint64(ino))
		err = s.each(prefix, prefix, func(key, _ []byte) (bool, error) {
			var err error
			out, err = s.appendContent(out, tailContent(key))
			return true, err
		})
		if err == nil && gone && len(out) == 0 {
			err = ErrNotFound
		}
		return err
	})
	sort.SliceStable(out, func(a, b int) bool { return out[a].Version > out[b].Version })
	return out, err
}

func (s snap) appendContent(out []Content, id ContentID) ([]Content, error) {
	var r contentRecord
	if err := s.load(keyContent(tableContent, id), &r); err != nil {
		return out, err
	}
	return append(out, r.Content), nil
}

// Kept lists contents that are kept until a time: conflict losers and orphans.
func (db *DB) Kept(limit int) ([]Content, error) {
	var out []Content
	err := db.read(func(s snap) error {
		out = nil
		prefix := []byte{tableKept}
		return s.each(prefix, prefix, func(key, _ []byte) (bool, error) {
			if len(out) >= limit {
				return false, nil
			}
			var err error
			if id := tailContent(key); !ofRemoved(id) {
				out, err = s.appendContent(out, id)
			}
			return true, err
		})
	})
	return out, err
}

// Node reads the record of a node.
func (db *DB) Node(id NodeID) (Node, error) {
	var out Node
	err := db.read(func(s snap) error {
		n := s.cl.node(id)
		if n == nil {
			return ErrNotFound
		}
		var p progress
		if err := s.load(key32(tableProgress, uint32(id)), &p); err != nil && err != ErrNotFound {
			return err
		}
		out = n.Node
		out.NextIno = p.LastIno + 1
		return nil
	})
	return out, err
}

// Nodes lists the nodes that are not evicted, by number. NextIno is not filled in.
func (db *DB) Nodes() ([]Node, error) {
	var out []Node
	for _, n := range db.cur.Load().cl.nodes {
		if n != nil && n.State != NodeEvicted {
			out = append(out, n.Node)
		}
	}
	return out, nil
}

// Policy reads a policy; 0 is the cluster's default.
func (db *DB) Policy(id PolicyID) (Policy, error) {
	p := db.cur.Load().cl.policy(id)
	if p == nil {
		return Policy{}, ErrNotFound
	}
	return *p, nil
}

// Members is the placement of a policy for an inode over the present nodes.
func (db *DB) Members(policy PolicyID, ino Ino) ([]NodeID, error) {
	cl := db.cur.Load().cl
	p := cl.policy(policy)
	if p == nil {
		return nil, ErrNotFound
	}
	return cl.members(p, ino), nil
}

// PlaceNew says which nodes are to hold a new content, and how many of them must before it may be published: as apply
// counts. Nodes in full have no room for it. They are members all the same, and with PlaceCopies the next nodes stand
// in for them. While the inode has no number, 0, every node that the policy allows may turn out to be a member.
func (db *DB) PlaceNew(policy PolicyID, ino Ino, full []NodeID) (members []NodeID, needed int, err error) {
	cl := db.cur.Load().cl
	p := cl.policy(policy)
	if p == nil {
		return nil, 0, ErrNotFound
	}
	needed = cl.minVotes(p, cl.members(p, ino)) // the same for all inodes
	if ino == 0 {
		return cl.candidates(p), needed, nil
	}
	return cl.membersBeside(p, ino, full), needed, nil
}

// Holds reports whether the log believes that the node holds the content. All nodes hold the empty one.
func (db *DB) Holds(node NodeID, id ContentID) (bool, error) {
	if id.IsZero() {
		return true, nil
	}
	holds := false
	err := db.read(func(s snap) error {
		var r contentRecord
		if err := s.load(keyContent(tableContent, id), &r); err != nil {
			return err
		}
		holds = s.cl.believes(s.cl.node(node), &r)
		return nil
	})
	return holds, err
}

// Holders lists the nodes that the log believes to hold the content.
func (db *DB) Holders(id ContentID) ([]NodeID, error) {
	var out []NodeID
	err := db.read(func(s snap) error {
		out = nil
		var r contentRecord
		if err := s.load(keyContent(tableContent, id), &r); err != nil {
			return err
		}
		for _, n := range s.cl.nodes {
			if s.cl.believes(n, &r) {
				out = append(out, n.ID)
			}
		}
		return nil
	})
	return out, err
}

// Decided reports whether a session is over.
func (db *DB) Decided(session ContentID) (bool, error) {
	decided := false
	err := db.read(func(s snap) error {
		var failed error
		decided = s.cl.decided(session, func() *progress {
			p := new(progress)
			if err := s.load(key32(tableProgress, uint32(session.Node)), p); err != nil && err != ErrNotFound {
				failed = err
			}
			return p
		})
		return failed
	})
	return decided, err
}
