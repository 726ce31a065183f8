package meta

import (
	"strings"
	"syscall"
)

// A file that loses its last name stays for a while if the policy of the directory says so (Policy.KeepRemoved). Its
// inode goes, as of any removed file. What is kept of it:
//
//   - a row of tableRemoved, by the log index of the removal: an entry removes one file at most;
//   - a row of tableKept, under which Expire finds it, with that index in the place of a content;
//   - its content, in the state ContentRemoved. Nodes hold it and are owed it like any other;
//   - its extended attributes, under the number of its inode, which no other inode ever gets.

// Bounds of what is kept.
const (
	// KeepRemovedMax bounds Policy.KeepRemoved: ten years.
	KeepRemovedMax = uint64(10*365*24*3600) * 1e9
	// RemovedMax is how many removed files are kept in all. If there are more, those that expire first go.
	RemovedMax = 1 << 16
	// removedBatch is how many rows go at once when there are too many files: a look for the first one passes all that
	// went before.
	removedBatch = 256
	// removedPathMax bounds the path of a file that is kept: what no program can name is not kept.
	removedPathMax = 4095
	// removedXattrsMax bounds the names and values of all extended attributes of a file that is kept: Undelete, which is
	// a small entry, writes them again.
	removedXattrsMax = 1 << 20
)

// RemovedFrom begins the reason of the content of a removed file. The path follows.
const RemovedFrom = "removed: "

// removedRecord is what is stored of a removed file; the index is in its key.
type removedRecord struct{ RemovedFile }

func (r *removedRecord) code(c *fields) {
	c.str(&r.Path)
	c.node(&r.Node)
	c.I64(&r.Removed)
	c.I64(&r.Expires)
	r.Inode.code(c)
}

// removedID stands for the removed file of a log index where a content stands otherwise. No content is of node 0.
func removedID(index uint64) ContentID { return ContentID{Seq: index} }

// ofRemoved reports whether an id stands for a removed file.
func ofRemoved(id ContentID) bool { return id.Node == 0 }

// removals is the part of apply that keeps removed files, brings them back and gives them up.
type removals struct{ *tx }

// take keeps a file that has lost its last name, if it is to be kept, and reports whether it is.
func (r removals) take(dir *Inode, name string, i *Inode) bool {
	p := r.cl.policy(dir.Policy)
	if p == nil || p.KeepRemoved == 0 || i.Kind != KindFile || i.Version == 0 {
		return false
	}
	path, fits := r.pathOf(dir, name)
	if !fits || !r.xattrsFit(i) {
		return false
	}
	c := r.contentRec(i.Content)
	if c == nil && !i.Content.IsZero() {
		return false
	}
	f := removedRecord{RemovedFile{Index: r.head.Index, Path: path, Node: r.entry.Node, Removed: r.now,
		Expires: r.now + int64(p.KeepRemoved), Inode: *i}}
	if c != nil {
		c.State, c.Reason = ContentRemoved, RemovedFrom+path
		contents{r.tx}.keep(c)
	}
	contents{r.tx}.prune(i.Ino, 0)
	r.save(removedKey(f.Index), &f)
	r.set(keptKey(f.Expires, removedID(f.Index)), present)
	r.head.Removed++
	r.makeRoom()
	return true
}

// pathOf is the path of a name in a directory, from the root, and whether it is short enough.
func (r removals) pathOf(dir *Inode, name string) (string, bool) {
	parts, size := []string{name}, len(name)+1
	for at := dir; at != nil && at.Ino != RootIno; at = r.inode(at.Parent) {
		parts = append(parts, at.Name)
		if size += len(at.Name) + 1; size > removedPathMax {
			return "", false
		}
	}
	var b strings.Builder
	for n := len(parts) - 1; n >= 0; n-- {
		b.WriteString("/" + parts[n])
	}
	return b.String(), true
}

// xattrsFit reports whether the extended attributes of a file are few enough for it to be kept.
func (r removals) xattrsFit(i *Inode) bool {
	if i.Xattrs == 0 {
		return true
	}
	size := 0
	prefix := key64(tableXattr, uint64(i.Ino))
	r.scan(prefix, func(key, value []byte) bool {
		size += len(key) - len(prefix) + len(value)
		return size <= removedXattrsMax
	})
	return size <= removedXattrsMax
}

// at loads the removed file of a log index; nil when there is none.
func (r removals) at(index uint64) *removedRecord {
	f := new(removedRecord)
	if !r.load(removedKey(index), f) {
		return nil
	}
	f.Index = index
	return f
}

// makeRoom gives those files up that expire first while there are too many.
func (r removals) makeRoom() {
	if r.head.Removed <= RemovedMax {
		return
	}
	budget := removedBatch
	var first []*removedRecord
	r.scan([]byte{tableKept}, func(key, _ []byte) bool {
		id := tailContent(key)
		if !ofRemoved(id) {
			return true
		}
		if f := r.at(id.Seq); f != nil {
			first = append(first, f)
			budget -= f.rows()
		}
		return budget > 0
	})
	for _, f := range first {
		r.drop(f)
	}
}

// rows is about how many rows go with a removed file.
func (r *removedRecord) rows() int { return 1 + int(r.Inode.Xattrs) }

// expireRow gives up what a row of tableKept is about, and returns how many rows went. A row that is about nothing goes
// too: it would be due for ever.
func (r removals) expireRow(key []byte) int {
	rows, id := 1, tailContent(key)
	if ofRemoved(id) {
		if f := r.at(id.Seq); f != nil {
			rows = f.rows()
			r.drop(f)
		}
	} else if c := r.contentRec(id); c != nil {
		contents{r.tx}.retire(c)
	}
	r.del(key)
	return rows
}

// unlist takes a file off the lists of what is kept.
func (r removals) unlist(f *removedRecord) {
	r.del(removedKey(f.Index))
	r.del(keptKey(f.Expires, removedID(f.Index)))
	r.head.Removed--
}

// drop gives a kept file up.
func (r removals) drop(f *removedRecord) {
	r.unlist(f)
	r.discard(&f.Inode)
}

// discard deletes what only a removed inode needs: its extended attributes and its versions, except those that are kept
// until a time.
func (r removals) discard(i *Inode) {
	if i.Xattrs > 0 {
		r.scan(key64(tableXattr, uint64(i.Ino)), func(key, _ []byte) bool { r.del(key); return true })
	}
	if i.Kind == KindFile {
		contents{r.tx}.retireAll(i)
	}
}

// undelete brings a removed file back, or gives it up.
func (r removals) undelete(o *Undelete) (Result, syscall.Errno) {
	f := r.at(o.Removed)
	if f == nil {
		return Result{}, syscall.ENODATA
	}
	if o.Drop {
		r.drop(f)
		return Result{Ino: f.Inode.Ino, Version: f.Inode.Version}, ok
	}
	dir, errno := tree{r.tx}.dir(o.Parent, o.Name)
	if errno != ok {
		return Result{}, errno
	}
	if d, _ := (tree{r.tx}).entryOf(dir, o.Name); d.Ino != 0 {
		return Result{}, syscall.EEXIST
	}
	if id := f.Inode.Content; !id.IsZero() && r.contentRec(id) == nil {
		return Result{}, syscall.EIO
	}
	if errno := (delegations{r.tx}).mayName(dir); errno != ok {
		return Result{}, errno
	}
	i, errno := tree{r.tx}.newInode(dir, KindFile, 0, Cred{})
	if errno != ok {
		return Result{}, errno
	}
	i = r.again(f, i.Ino)
	tree{r.tx}.addName(dir, o.Name, i)
	r.unlist(f)
	r.emit(Event{Kind: EventPublished, Ino: i.Ino, Content: i.Content})
	return Result{Ino: i.Ino, Inode: *i, Version: i.Version}, ok
}

// again makes the inode of a removed file under a new number, with all that belongs to it. It has no name yet.
func (r removals) again(f *removedRecord, ino Ino) *Inode {
	i := f.Inode
	i.Ino, i.Nlink, i.Parent, i.Name, i.Ctime = ino, 0, 0, "", r.now
	if i.Xattrs > 0 {
		r.scan(key64(tableXattr, uint64(f.Inode.Ino)), func(key, value []byte) bool {
			r.set(keyName(tableXattr, ino, string(key[9:])), value)
			r.del(key)
			return true
		})
	}
	if c := r.contentRec(i.Content); c != nil {
		r.current(c, ino)
	}
	return &i
}

// current makes the content of a removed file that of its new inode. With PlaceCopies the number of the inode says
// which nodes are to hold the content: those that lack it are owed it.
func (r removals) current(c *contentRecord, ino Ino) {
	contents{r.tx}.unkeep(c)
	c.Ino, c.State, c.Reason = ino, ContentCurrent, ""
	if p := r.cl.policy(c.Policy); p != nil && p.Placement == PlaceCopies {
		for _, m := range r.cl.members(p, ino) {
			if contains(c.Placed, m) {
				continue
			}
			c.Placed, c.Owed = with(c.Placed, m), with(c.Owed, m)
			publications{r.tx}.owe(m, &c.Content, OwedJoined)
		}
	}
	r.saveContent(c)
}
