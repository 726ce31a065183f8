package sim

import (
	"errors"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
)

// end looks at a cluster that has settled.
func (o *oracle) end() {
	for _, l := range o.w.live() {
		o.state(l)
		o.enough(l)
		o.storeOf(l)
		for i := range o.acks {
			o.remembered(l, &o.acks[i])
		}
	}
}

// state holds that every node is at the same index with the same state.
func (o *oracle) state(l *life) {
	index, digest := l.db.Digest()
	if n := len(o.chosen); index != uint64(n) || digest != o.chosen[n-1].digest {
		o.w.fail("%s ends at %d with %x, the log at %d with %x", l.m.name, index, digest, n, o.chosen[n-1].digest)
	}
}

// remembered holds that what a close has acknowledged is there, or was superseded or removed in the log's order.
func (o *oracle) remembered(l *life, a *ack) {
	if a.orphan {
		if _, err := l.db.Content(a.id); a.size > 0 && err != nil {
			o.w.fail("%s: orphan %v is gone: %v", l.m.name, a.id, err)
		}
		return
	}
	i, err := l.db.Inode(a.ino)
	switch {
	case errors.Is(err, meta.ErrNotFound):
		if !o.removed[a.ino] {
			o.w.fail("%s: inode %x of acknowledged %v is gone, nobody removed it", l.m.name, uint64(a.ino), a.id)
		}
	case err != nil:
		o.w.fail("%s: inode %x: %v", l.m.name, uint64(a.ino), err)
	case i.Version < a.version:
		o.w.fail("%s: inode %x is at version %d, %d was acknowledged", l.m.name, uint64(a.ino), i.Version, a.version)
	case i.Version == a.version && a.size > 0 && i.Content != a.id:
		o.w.fail("%s: inode %x version %d is %v, acknowledged was %v", l.m.name, uint64(a.ino), i.Version, i.Content, a.id)
	}
}

// storeOf holds that a store has what it is to have, whole, and nothing else.
func (o *oracle) storeOf(l *life) {
	for _, id := range o.liveContents() {
		c, err := l.db.Content(id)
		if err != nil {
			continue
		}
		if holds, err := l.db.Holds(l.m.node, id); err != nil || !holds {
			continue // with copies, others hold it
		}
		b := l.store.blobs[storeID(id)]
		if b == nil || b.state != content.Committed || b.root != content.Hash(c.Root) {
			o.w.fail("%s does not hold %v at the end", l.m.name, id)
		}
	}
	for _, id := range l.store.sorted(l.store.blobs) {
		if !o.live[metaID(id)] {
			o.w.fail("%s still stores %v (%v), which nobody wants", l.m.name, metaID(id), l.store.blobs[id].state)
		}
	}
}

// enough holds that as many nodes hold a content as its policy asks for.
func (o *oracle) enough(l *life) {
	for _, id := range o.liveContents() {
		c, err := l.db.Content(id)
		if err != nil {
			continue
		}
		p, err := l.db.Policy(c.Policy)
		holders, herr := l.db.Holders(id)
		want := 0
		for _, n := range l.book {
			if n.State == meta.NodeUp {
				want++
			}
		}
		if p.Placement == meta.PlaceCopies {
			want = min(want, int(p.Copies))
		}
		if err != nil || herr != nil || len(holders) < want {
			members, _ := l.db.Members(c.Policy, c.Ino)
			o.w.tell("%+v, members now %v, nodes %+v", c, members, l.book)
			o.w.fail("%v is on nodes %v at the end, wanted on %d", id, holders, want)
		}
	}
}
