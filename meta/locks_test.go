package meta

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/filelock"
)

// Operations on locks as they come, also malformed ones and of ended incarnations, make the same state on each replica,
// and leave nothing of incarnations that have ended.
func TestLocksOfEndedIncarnationsLeaveNothing(t *testing.T) {
	for seed := range uint64(20) {
		locksAsTheyCome(t, rand.New(rand.NewPCG(seed, 44)))
	}
}

func locksAsTheyCome(t *testing.T, r *rand.Rand) {
	dbs := []*DB{OpenMemory(), OpenMemory()}
	index := uint64(0)
	apply := func(e Entry) (res Result) {
		index++
		e.Generation = FirstGeneration
		for _, db := range dbs {
			var err error
			if res, _, err = db.Apply(index, int64(index), EncodeEntry(e)); err != nil {
				t.Fatalf("apply %+v: %v", e.Op, err)
			}
		}
		_, a := dbs[0].Digest()
		if _, b := dbs[1].Digest(); a != b {
			t.Fatalf("after %+v two replicas differ", e.Op)
		}
		return res
	}
	var nodes [3]Lease
	seq := map[Lease]uint64{}
	boot := func(i int) {
		nonce := uint64(nodes[i].Incarnation) + 1
		b := &Boot{Node: nodes[i].Node, Store: [16]byte{byte(i + 1)}, Nonce: nonce}
		nodes[i].Incarnation = apply(Entry{Op: b}).Incarnation
	}
	for i := range nodes {
		join := &Join{Name: string(rune('a' + i))}
		if i > 0 {
			join.TokenHash = [32]byte{byte(i)}
			apply(Entry{Op: &AddToken{Hash: join.TokenHash, Expires: 1 << 60}})
		}
		nodes[i].Node = apply(Entry{Op: join}).Node
		boot(i)
	}
	request := uint64(0)
	lock := func() filelock.Lock {
		request++
		first := r.Uint64N(10)
		return filelock.Lock{Kind: filelock.Kind(r.IntN(8) / 3), Mode: filelock.Mode(r.IntN(20) % 3 % 2), First: first,
			End: first + r.Uint64N(12) - 1, Owner: filelock.Owner{Node: r.Uint32N(9), Space: r.Uint64N(2), ID: r.Uint64N(3)},
			Handle: r.Uint64N(3), Request: request}
	}
	for range 400 {
		i := r.IntN(len(nodes))
		l, ino := nodes[i], Ino(1+r.Uint64N(4))
		incarnation := l.Incarnation - uint32(r.IntN(15)/14)
		have, err := dbs[0].FileLocks(ino)
		if err != nil {
			t.Fatal(err)
		}
		var op Op
		switch r.IntN(10) {
		case 0:
			back := &ReturnLocks{Incarnation: incarnation, Ino: ino, Number: have.Number}
			for range r.IntN(3) {
				back.Held, back.Waiting = append(back.Held, lock()), append(back.Waiting, lock())
			}
			op = back
		case 1, 2:
			op = &ReturnLocks{Incarnation: incarnation, Ino: ino, Number: have.Number}
		case 3, 4, 5:
			op = &UnlockFile{Incarnation: incarnation, Ino: ino, What: LockScope(r.IntN(7)), Lock: lock()}
		default:
			op = &LockFile{Incarnation: incarnation, Ino: ino, Lock: lock(), Wait: r.IntN(3) > 0, Test: r.IntN(9) == 0}
		}
		seq[l]++
		apply(Entry{Node: l.Node, Incarnation: l.Incarnation, Seq: seq[l], Acked: seq[l] - 1, Op: op})
		if r.IntN(60) == 0 {
			apply(Entry{Op: &Down{Node: l.Node, Incarnation: l.Incarnation}})
			boot(i)
		}
		locksConsistent(t, dbs[0], 4)
	}
	for _, l := range nodes {
		apply(Entry{Op: &Down{Node: l.Node, Incarnation: l.Incarnation}})
	}
	for n := 0; dbs[0].Freeing(); n++ {
		if n == 10 {
			t.Fatal("the sweeps come to no end")
		}
		apply(Entry{Op: &Expire{}})
	}
	for _, table := range []byte{tableLocks, tableLocked, tableWaits} {
		if n := rowsOf(t, dbs[0], table); n != 0 {
			t.Errorf("table %c: %d rows are left", table, n)
		}
	}
}

// locksConsistent checks that no two locks that are held exclude each other, and that nobody waits for nothing.
func locksConsistent(t *testing.T, db *DB, files Ino) {
	t.Helper()
	for ino := Ino(1); ino <= files; ino++ {
		have, err := db.FileLocks(ino)
		if err != nil {
			t.Fatal(err)
		}
		for i, l := range have.Held {
			for _, o := range have.Held[i+1:] {
				if l.Blocks(o) {
					t.Fatalf("file %d: both are held: %+v %+v", ino, l, o)
				}
			}
		}
		for _, w := range have.Waiting {
			blocks := func(l filelock.Lock) bool { return l.Blocks(w.Lock) }
			if have.Holder == (Lease{}) && !slices.ContainsFunc(have.Held, blocks) {
				t.Fatalf("file %d: what is free is waited for: %+v, held %+v", ino, w, have.Held)
			}
		}
	}
}

func rowsOf(t *testing.T, db *DB, table byte) (n int) {
	t.Helper()
	err := db.read(func(s snap) error {
		n = 0
		return s.each([]byte{table}, []byte{table}, func(_, _ []byte) (bool, error) {
			n++
			return true, nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}
