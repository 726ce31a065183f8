package sim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
)

// client is a program on a node: it does one thing after the other, for as long as its process and the work last.
type client struct {
	l *life
}

// filesMax is how many names the clients fight over.
const filesMax = 8

// startClients gives a process its programs.
func (w *world) startClients(l *life) {
	for range 1 + w.intn(2) {
		c := &client{l: l}
		w.after(w.between(0, 500*time.Millisecond), l, c.next)
	}
}

// next does the next thing.
func (c *client) next() {
	w := c.l.w
	if !w.flaky && w.opt.Crash == nil && !w.opt.Calm || w.oracle.closing {
		return
	}
	name := fmt.Sprintf("f%d", w.intn(filesMax))
	switch r := w.intn(100); {
	case r < 55:
		c.write(name)
	case r < 70:
		c.rename(name, fmt.Sprintf("f%d", w.intn(filesMax)))
	case r < 82:
		c.unlink(name)
	case r < 90:
		c.link(name, fmt.Sprintf("f%d", w.intn(filesMax)))
	default:
		c.chmod(name)
	}
}

// again goes on after a pause.
func (c *client) again() {
	w := c.l.w
	w.after(w.between(5*time.Millisecond, 400*time.Millisecond), c.l, c.next)
}

// write creates or opens a file and writes it anew.
func (c *client) write(name string) {
	l := c.l
	l.propose(&meta.Create{Parent: meta.RootIno, Name: name, Kind: meta.KindFile, Mode: 0o644, Excl: l.w.chance(4)}, func(res meta.Result, err error) {
		if err != nil || res.Errno != 0 {
			c.again()
			return
		}
		base := meta.ContentID{}
		if res.Existed {
			base = res.Inode.Content
		}
		// The program writes for a while; others may commit meanwhile (G7).
		l.w.after(l.w.between(0, 300*time.Millisecond), l, func() { c.close(res.Ino, name, base) })
	})
}

func (c *client) close(ino meta.Ino, name string, base meta.ContentID) {
	l := c.l
	f := l.w.newFile()
	p := replicate.Push{Ino: ino, Path: "/" + name, Base: base, Size: f.size}
	l.publish(p, f, func(out pushOutcome, err error) {
		l.w.oracle.closed(l, ino, base, out, err)
		switch {
		case errors.Is(err, errUnknown):
			l.w.stats.Unknown++
		case err != nil:
			l.w.stats.Failed++
		default:
			l.w.stats.Acked++
		}
		c.again()
	})
}

// newFile makes up the bytes of a file: nothing, a little, or blocks.
func (w *world) newFile() *file {
	w.seq++
	var tag [8]byte
	binary.BigEndian.PutUint64(tag[:], w.seq)
	switch w.intn(10) {
	case 0:
		return &file{}
	case 1, 2, 3, 4:
		data := tag[:]
		if w.chance(2) {
			data = append(make([]byte, meta.MaxInline), tag[:]...) // too large for the log
		}
		return &file{size: int64(len(data)), data: data, leaves: []content.Hash{content.Leaf(data)}}
	}
	f := &file{}
	for i := range 2 + w.intn(7) {
		f.leaves = append(f.leaves, content.Leaf(append(tag[:], byte(i))))
	}
	f.size = int64(len(f.leaves)) * content.BlockBytes
	return f
}

func (c *client) rename(from, to string) {
	if from == to {
		c.again()
		return
	}
	if _, err := c.l.db.Lookup(meta.RootIno, from, c.l.proposer.self); err != nil {
		c.again()
		return
	}
	op := &meta.Rename{OldParent: meta.RootIno, OldName: from, NewParent: meta.RootIno, NewName: to}
	c.l.propose(op, c.told)
}

// told notes the answer to a change of names.
func (c *client) told(res meta.Result, err error) {
	if err == nil && res.Errno == 0 {
		c.l.w.oracle.answered(c.l, res)
	}
	c.again()
}

func (c *client) unlink(name string) {
	if _, err := c.l.db.Lookup(meta.RootIno, name, c.l.proposer.self); err != nil {
		c.again()
		return
	}
	c.l.propose(&meta.Unlink{Parent: meta.RootIno, Name: name}, c.told)
}

func (c *client) link(from, to string) {
	i, err := c.l.db.Lookup(meta.RootIno, from, c.l.proposer.self)
	if err != nil || i.Version == 0 || from == to {
		c.again()
		return
	}
	c.l.propose(&meta.Link{Ino: i.Ino, Parent: meta.RootIno, Name: to}, c.told)
}

func (c *client) chmod(name string) {
	i, err := c.l.db.Lookup(meta.RootIno, name, c.l.proposer.self)
	if err != nil {
		c.again()
		return
	}
	c.l.propose(&meta.SetAttr{Ino: i.Ino, Patch: meta.AttrPatch{Mask: meta.AttrMode, Mode: 0o600 | uint32(c.l.w.intn(64))}}, c.told)
}
