package replicate

import (
	"bytes"
	"testing"

	"github.com/rdmcfs/rdmcfs/meta"
)

func TestPublishReachesEveryMember(t *testing.T) {
	for _, tc := range []struct {
		name   string
		size   int
		voters int
	}{
		{"empty", 0, 3}, {"inline", 4096, 3}, {"tiny without enough voters", 4096, 1}, {"small", 300_000, 3},
		{"one block", 1 << 20, 3}, {"one byte more", 1<<20 + 1, 3}, {"large", 9<<20 + 12345, 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCluster(t, 4, tc.voters)
			ino := c.create(1, "f")
			b := randomBytes(uint64(tc.size), tc.size)
			out, err := c.node(1).publish(ino, meta.ContentID{}, b)
			if err != nil {
				t.Fatal(err)
			}
			if len(out.Result.Owed) != 0 || len(out.Behind) != 0 {
				t.Fatalf("owed %v, behind %v", out.Result.Owed, out.Behind)
			}
			if tc.size == 0 {
				return
			}
			for _, n := range c.all() {
				n.wantBytes(out.Content, b)
			}
			if tc.name == "inline" {
				return
			}
			c.eventually("committed on all", func() bool {
				for _, n := range c.all() {
					if !n.heldHere(out.Content) {
						return false
					}
				}
				return true
			})
		})
	}
}

func TestPublishOnASingleNode(t *testing.T) {
	c := newCluster(t, 1, 1)
	ino := c.create(1, "f")
	for _, size := range []int{100, 5 << 20} {
		b := randomBytes(1, size)
		cur, err := c.node(1).db.Inode(ino)
		if err != nil {
			t.Fatal(err)
		}
		out, err := c.node(1).publish(ino, cur.Content, b)
		if err != nil {
			t.Fatal(err)
		}
		c.node(1).wantBytes(out.Content, b)
	}
}

func TestHolesStayHolesAndReadAsZeros(t *testing.T) {
	c := newCluster(t, 3, 1)
	ino := c.create(1, "f")
	b := make([]byte, 12<<20)
	copy(b[3<<20:], randomBytes(3, 1<<20))
	copy(b[9<<20+777:], randomBytes(4, 1000))
	out, err := c.node(1).rep.Publish(t.Context(), Push{
		Ino: ino, Size: int64(len(b)), Source: bytes.NewReader(b), Data: []Extent{{3 << 20, 1 << 20}, {9<<20 + 777, 1000}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range c.all() {
		n.wantBytes(out.Content, b)
		r, err := n.store.OpenUndecided(storeID(out.Content))
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Layout().StreamBytes(); got != 2<<20 {
			t.Errorf("node %d stores a stream of %d bytes, want 2 MiB", n.id, got)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestDeltaMovesOnlyWhatChanged(t *testing.T) {
	c := newCluster(t, 3, 1)
	ino := c.create(1, "f")
	b := randomBytes(5, 16<<20)
	base, err := c.node(1).publish(ino, meta.ContentID{}, b)
	if err != nil {
		t.Fatal(err)
	}
	var dirty []Extent
	for i := range 40 {
		off := int64(i) * 400_000 / 4096 * 4096
		copy(b[off:], randomBytes(uint64(100+i), 4096))
		dirty = append(dirty, Extent{off, 4096})
	}
	out, err := c.node(1).rep.Publish(t.Context(), Push{
		Ino: ino, Base: base.Content, Size: int64(len(b)), Source: bytes.NewReader(b), Data: []Extent{{0, int64(len(b))}}, Dirty: dirty,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range c.all() {
		n.wantBytes(out.Content, b)
		r, err := n.store.OpenUndecided(storeID(out.Content))
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Layout().StreamBytes(); got != 40*4096 {
			t.Errorf("node %d stores a stream of %d bytes, want %d", n.id, got, 40*4096)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}
