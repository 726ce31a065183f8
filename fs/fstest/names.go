package fstest

import "github.com/rdmcfs/rdmcfs/meta"

// names is the namespace as a mount reads it, with something to do after a read.
type names struct {
	meta.Reader
	n *Node
}

// AfterRead makes a function run once, after the mount has read the namespace for an inode or name skip times and
// once more.
func (n *Node) AfterRead(skip int, f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.skip, n.after = skip, f
}

func (r names) Inode(ino meta.Ino) (meta.Inode, error) {
	rec, err := r.Reader.Inode(ino)
	r.n.wasRead()
	r.n.inodeWasRead(ino)
	return rec, err
}

func (r names) Lookup(parent meta.Ino, name string, self meta.Lease) (meta.Inode, error) {
	rec, err := r.Reader.Lookup(parent, name, self)
	r.n.wasRead()
	return rec, err
}

func (r names) Xattrs(ino meta.Ino) ([]string, error) {
	list, err := r.Reader.Xattrs(ino)
	r.n.mu.Lock()
	f := r.n.afterXattrs
	r.n.afterXattrs = nil
	r.n.mu.Unlock()
	if f != nil {
		f()
	}
	return list, err
}

// AfterXattrs makes a function run once, after the mount has read the names of the extended attributes of an inode.
func (n *Node) AfterXattrs(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.afterXattrs = f
}

func (n *Node) wasRead() {
	n.mu.Lock()
	f := n.after
	if f != nil && n.skip > 0 {
		n.skip--
		f = nil
	} else {
		n.after = nil
	}
	n.mu.Unlock()
	if f != nil {
		f()
	}
}

// AfterInode makes a function run once, after the mount has read the record of an inode.
func (n *Node) AfterInode(ino meta.Ino, f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.inode, n.afterInode = ino, f
}

func (n *Node) inodeWasRead(ino meta.Ino) {
	n.mu.Lock()
	f := n.afterInode
	if ino != n.inode {
		f = nil
	} else {
		n.afterInode = nil
	}
	n.mu.Unlock()
	if f != nil {
		f()
	}
}
