package demo

import (
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

const (
	// nodeBytes is what a node takes on the disk in addition to the file: the reserve of its database, its log.
	nodeBytes = 384 << 20
	// freeBytes is what nodes want to stay free: below that they take no contents.
	freeBytes = 512 << 20
)

// checkRoom refuses a demo that the disk of dir has no room for, with ENOSPC.
func (d *demo) checkRoom(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("demo: statfs %s: %w", dir, err)
	}
	size, copies := d.opts.Size, d.opts.Nodes+1
	if d.opts.File != "" {
		fi, err := os.Stat(d.opts.File)
		if err != nil {
			return fmt.Errorf("demo: %w", err)
		}
		size, copies = fi.Size(), d.opts.Nodes
	}
	need, free := roomFor(size, d.opts.Nodes, copies), int64(st.Bavail)*st.Frsize
	if need > free {
		return fmt.Errorf("demo: %d nodes and %d copies of %d MiB take %d MiB in %s, where %d MiB are free: choose a "+
			"smaller --size or --file, or fewer --nodes: %w",
			d.opts.Nodes, copies, size>>20, need>>20, dir, free>>20, unix.ENOSPC)
	}
	return nil
}

// roomFor is how many bytes must be free for so many copies and nodes.
func roomFor(size int64, nodes, copies int) int64 {
	fixed := int64(nodes)*nodeBytes + freeBytes
	if size > (math.MaxInt64-fixed)/int64(copies) {
		return math.MaxInt64
	}
	return size*int64(copies) + fixed
}
