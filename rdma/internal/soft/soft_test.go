package soft

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/rdmcfs/rdmcfs/rdma"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// drawPieces cuts a fresh buffer into pieces, some of them empty.
func drawPieces(t *rapid.T, label string) (pieces []Piece, whole []byte) {
	for range rapid.IntRange(0, 6).Draw(t, label) {
		mem := make([]byte, rapid.IntRange(0, 40).Draw(t, label+" size"))
		pieces = append(pieces, Piece{Mem: mem})
		whole = append(whole, mem...)
	}
	return pieces, whole
}

func contents(pieces []Piece) []byte {
	var all []byte
	for _, p := range pieces {
		all = append(all, p.Mem...)
	}
	return all
}

// TestCursorMovesBytesInOrder: whatever the cuts and the steps, the bytes arrive as one string would.
func TestCursorMovesBytesInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dst, room := drawPieces(t, "dst")
		msg := rapid.SliceOfN(rapid.Byte(), 0, len(room)).Draw(t, "message")
		cur := CursorOfRecv(&RecvSlot{Length: len(room), Pieces: dst}, len(msg))
		for rest := msg; cur.Left() > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "step")
			if rapid.Bool().Draw(t, "fill") {
				if got := cur.Fill(rest[:n]); got != n {
					t.Fatalf("filled %d of %d", got, n)
				}
			} else {
				runs := cur.Append(make([][]byte, 0, 16))
				if got := len(bytes.Join(runs, nil)); got != cur.Left() {
					t.Fatalf("runs of %d bytes, %d left", got, cur.Left())
				}
				scatter(runs, rest[:n])
				cur.Advance(n)
			}
			rest = rest[n:]
		}
		want := append(bytes.Clone(msg), make([]byte, len(room)-len(msg))...)
		if got := contents(dst); !bytes.Equal(got, want) {
			t.Fatalf("got %x, want %x", got, want)
		}
	})
}

// scatter stands for readv.
func scatter(runs [][]byte, src []byte) {
	for _, r := range runs {
		src = src[copy(r, src):]
	}
}

func TestCopyBetweenCuts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		src, _ := drawPieces(t, "src")
		for i := range src {
			for j := range src[i].Mem {
				src[i].Mem[j] = byte(rapid.IntRange(0, 255).Draw(t, "byte"))
			}
		}
		want := contents(src)
		dst, room := drawPieces(t, "dst")
		n := min(len(want), len(room))
		from := CursorThen(nil, src)
		to := CursorThen(nil, dst)
		for left := n; left > 0; {
			head := from.Head()
			k := to.Fill(head[:min(left, len(head))])
			from.Advance(k)
			left -= k
		}
		if got := contents(dst)[:n]; !bytes.Equal(got, want[:n]) {
			t.Fatalf("got %x, want %x", got, want[:n])
		}
	})
}

func TestStoreTail(t *testing.T) {
	mem := make([]byte, 64)
	for end := 1; end <= 64; end++ {
		for start := range end {
			tail := TailBytes(mem[start:end])
			if want := end%8 == 0 && end-start >= 8; (tail == 8) != want || (tail != 0) != want {
				t.Fatalf("[%d:%d]: tail of %d bytes", start, end, tail)
			}
		}
	}
	StoreTail(mem[3:32], []byte("12345678"))
	if string(mem[24:32]) != "12345678" || !bytes.Equal(mem[:24], make([]byte, 24)) || mem[32] != 0 {
		t.Errorf("memory %q", mem)
	}
}

// TestCQIsAFIFO compares the growing ring with a slice.
func TestCQIsAFIFO(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q, err := NewCQ(rapid.IntRange(1, 5).Draw(t, "depth"))
		if err != nil {
			t.Fatal(err)
		}
		var model []uint64
		next := uint64(0)
		for range rapid.IntRange(1, 60).Draw(t, "operations") {
			if rapid.Bool().Draw(t, "push") {
				q.Push(rdma.Completion{ID: next})
				model = append(model, next)
				next++
				continue
			}
			out := make([]rdma.Completion, rapid.IntRange(0, 4).Draw(t, "poll"))
			n := q.Poll(out)
			if n != min(len(out), len(model)) {
				t.Fatalf("polled %d of %d with room for %d", n, len(model), len(out))
			}
			for i := range n {
				if out[i].ID != model[i] {
					t.Fatalf("completion %d, want %d", out[i].ID, model[i])
				}
			}
			model = model[n:]
		}
	})
}

// TestCQWakesAll: every waiter of a queue that stays filled returns.
func TestCQWakesAll(t *testing.T) {
	q, err := NewCQ(1)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if err := q.Wait(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	q.Push(rdma.Completion{})
	wg.Wait()
}

func newTestTable() *Table {
	key := uint64(0)
	return NewTable(func() uint64 { key++; return key / 2 }) // repeats itself, and starts with zero
}

// TestRegionCloseWaitsForUsers: Close ends after the last user, and afterwards nobody gets in.
func TestRegionCloseWaitsForUsers(t *testing.T) {
	table := newTestTable()
	r, err := table.Alloc(4096, rdma.RemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	var users []*Region
	for range 10 {
		u, mem := table.Acquire(r.Key(), rdma.RemoteRead, 96, 4000)
		if u == nil || len(mem) != 4000 {
			t.Fatal("not acquired")
		}
		users = append(users, u)
	}
	var released sync.WaitGroup
	closed := make(chan error, 2)
	for range 2 {
		go func() { closed <- r.Close() }()
	}
	for _, u := range users {
		released.Go(u.Release)
	}
	for range 2 {
		if err := <-closed; err != nil {
			t.Error(err)
		}
	}
	released.Wait()
	if u, _ := table.Acquire(r.Key(), rdma.RemoteRead, 0, 1); u != nil {
		t.Error("a closed region was acquired")
	}
}

// TestRegionRaces: users that come and go while the region is closed never see unmapped memory.
func TestRegionRaces(t *testing.T) {
	table := newTestTable()
	for range 200 {
		r, err := table.Alloc(4096, rdma.RemoteWrite)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				for {
					u, mem := table.Acquire(r.Key(), rdma.RemoteWrite, 0, 8)
					if u == nil {
						return
					}
					mem[0] = 1 // would fault
					u.Release()
				}
			})
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
	}
	if err := table.Close(); err != nil {
		t.Error(err)
	}
	if _, err := table.Alloc(1, 0); !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("alloc on a closed table: %v", err)
	}
}

func TestAcquireBounds(t *testing.T) {
	table := newTestTable()
	r, err := table.Alloc(100, rdma.RemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for _, c := range []struct {
		need rdma.Access
		addr uint64
		n    int
		ok   bool
	}{
		{rdma.RemoteRead, 0, 100, true}, {rdma.RemoteRead, 100, 0, true}, {rdma.RemoteRead, 99, 1, true},
		{rdma.RemoteRead, 0, 101, false}, {rdma.RemoteRead, 101, 0, false}, {rdma.RemoteRead, 1, 100, false},
		{rdma.RemoteRead, ^uint64(0), 2, false}, {rdma.RemoteWrite, 0, 1, false},
		{rdma.RemoteRead | rdma.RemoteWrite, 0, 1, false},
	} {
		u, _ := table.Acquire(r.Key(), c.need, c.addr, c.n)
		if (u != nil) != c.ok {
			t.Errorf("%v of %d at %d: acquired %v", c.need, c.n, c.addr, u != nil)
		}
		if u != nil {
			u.Release()
		}
	}
}
