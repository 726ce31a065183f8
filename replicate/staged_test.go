package replicate

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
)

// TestG1CutSourceIsShownToNobody: bytes go away in mid-send without a word. Nobody gets a version that nobody wrote:
// the push fails, its session is aborted, and the file is what it was.
func TestG1CutSourceIsShownToNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, size := range []int{4096, 500_000, 6 << 20} {
			c := newCluster(t, 3, 3)
			ino := c.create(1, "f")
			old := randomBytes(1, 3000)
			before, err := c.node(1).publish(ino, meta.ContentID{}, old)
			if err != nil {
				t.Fatal(err)
			}
			src := &shrinking{b: randomBytes(2, size), whole: int64(size >> 20)}
			_, err = c.node(1).rep.Publish(t.Context(), Push{
				Ino: ino, Base: before.Content, Size: int64(size), Source: src, Data: []Extent{{0, int64(size)}},
			})
			if !errors.Is(err, ErrCut) {
				t.Fatalf("%d bytes: %v", size, err)
			}
			c.settled()
			for _, n := range c.all() {
				if rec, err := n.db.Inode(ino); err != nil || rec.Content != before.Content || rec.Size != int64(len(old)) {
					t.Errorf("node %d: %d bytes in %v, %v", n.id, rec.Size, rec.Content, err)
				}
				n.wantBytes(before.Content, old)
			}
		}
	})
}

// shrinking loses its second half after so many reads.
type shrinking struct {
	b     []byte
	whole int64
	reads atomic.Int64
}

func (s *shrinking) ReadAt(p []byte, off int64) (int, error) {
	b := s.b
	if s.reads.Add(1) > s.whole/2 {
		b = b[:len(b)/2]
	}
	return bytes.NewReader(b).ReadAt(p, off)
}

// TestUrgentBytesAreReadWhileMembersLag: somebody waits to cut the file. All of it is read at once, though a member
// takes nothing; then it may go, and every member gets what was there.
func TestUrgentBytesAreReadWhileMembersLag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 3)
		ino := c.create(1, "f")
		b := randomBytes(1, 12<<20)
		var lagging sync.Once
		lags, goOn := make(chan struct{}), make(chan struct{})
		release := sync.OnceFunc(func() { close(goOn) })
		defer release()
		c.hub.setBlock(func(to meta.NodeID, i uint64) error {
			if to == 3 && i >= 2 {
				lagging.Do(func() { close(lags) })
				<-goOn
			}
			return nil
		})
		src := &gone{b: b}
		urgent, taken := make(chan struct{}), make(chan struct{})
		var once sync.Once
		push := Push{
			Ino: ino, Size: int64(len(b)), Source: src, Data: []Extent{{0, int64(len(b))}},
			Urgent: urgent, Taken: func() { once.Do(func() { close(taken) }) },
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		var out Outcome
		done := make(chan error, 1)
		go func() {
			var err error
			out, err = c.node(1).rep.Publish(ctx, push)
			done <- err
		}()
		<-lags
		close(urgent)
		select {
		case <-taken:
		case err := <-done:
			t.Fatalf("published before all was taken: %v", err)
		case <-ctx.Done():
			t.Fatal("not taken")
		}
		src.gone.Store(true)
		release()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		for _, n := range c.all() {
			n.wantBytes(out.Content, b)
		}
	})
}

// gone is a source that can vanish.
type gone struct {
	b    []byte
	gone atomic.Bool
}

func (s *gone) ReadAt(p []byte, off int64) (int, error) {
	if s.gone.Load() {
		return 0, errors.New("read of what is gone")
	}
	return bytes.NewReader(s.b).ReadAt(p, off)
}
