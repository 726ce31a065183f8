package meta_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
)

// recorder keeps the entries that went through a state machine.
type recorder struct {
	meta.StateMachine
	entries []logEntry
	sums    map[uint64][16]byte // digest after each index
}

type logEntry struct {
	index uint64
	now   int64
	data  []byte
}

func newRecorder(db meta.StateMachine) *recorder {
	return &recorder{StateMachine: db, sums: map[uint64][16]byte{}}
}

func (r *recorder) Apply(index uint64, now int64, data []byte) (meta.Result, []meta.Event, error) {
	r.entries = append(r.entries, logEntry{index, now, data})
	res, ev, err := r.StateMachine.Apply(index, now, data)
	i, sum := r.StateMachine.Digest()
	r.sums[i] = sum
	return res, ev, err
}

// replay applies the recorded entries above the state's index, up to and with last.
func (r *recorder) replay(tb testing.TB, db meta.StateMachine, last uint64) {
	tb.Helper()
	for _, e := range r.entries {
		if e.index <= db.Index() || e.index > last {
			continue
		}
		if _, _, err := db.Apply(e.index, e.now, e.data); err != nil {
			tb.Fatal(err)
		}
		if i, sum := db.Digest(); sum != r.sums[i] {
			tb.Fatalf("digest %x at %d, want %x", sum, i, r.sums[i])
		}
	}
}

// churn drives n random operations of all kinds through c. Many fail, which is as good.
func churn(c *metatest.Cluster, rnd *rand.Rand, n int) {
	base := map[meta.Ino]meta.ContentID{}
	inos, removed := []meta.Ino{meta.RootIno}, []uint64{0}
	ino := func() meta.Ino { return inos[rnd.IntN(len(inos))] }
	name := func() string { return fmt.Sprint("n", rnd.IntN(6)) }
	for range n {
		v := meta.NodeID(1 + rnd.IntN(3))
		switch rnd.IntN(17) {
		case 0, 1, 2:
			kind := []meta.Kind{meta.KindFile, meta.KindDir, meta.KindSymlink}[rnd.IntN(3)]
			res := c.Propose(v, &meta.Create{Parent: ino(), Name: name(), Kind: kind, Target: "x", Mode: rnd.Uint32() & 0o7777})
			if res.Errno == 0 && !res.Existed {
				inos = append(inos, res.Ino)
			}
		case 3, 4, 5, 6:
			i := ino()
			p := push(c, v, i, base[i], votes(c, 1, meta.NodeID(1+rnd.IntN(3))))
			if rnd.IntN(3) == 0 {
				p.Base = meta.ContentID{}
			}
			if rnd.IntN(3) == 0 {
				p.Inline, p.Size = make([]byte, 1+rnd.IntN(meta.MaxInline)), 0
				p.Size = int64(len(p.Inline))
			}
			if c.Propose(v, p).Errno == 0 {
				base[i] = p.Session
			}
		case 7:
			if res := c.Propose(v, &meta.Unlink{Parent: ino(), Name: name()}); res.Removed != 0 {
				removed = append(removed, res.Index)
			}
		case 8:
			c.Propose(v, &meta.Rename{OldParent: ino(), OldName: name(), NewParent: ino(), NewName: name(),
				Flags: uint32(rnd.IntN(3))})
		case 9:
			c.Propose(v, &meta.Link{Ino: ino(), Parent: ino(), Name: name()})
		case 10:
			patch := meta.AttrPatch{Mask: meta.AttrMode, Mode: rnd.Uint32(),
				SetXattr: map[string][]byte{name(): make([]byte, rnd.IntN(300))}}
			c.Propose(v, &meta.SetAttr{Ino: ino(), Patch: patch})
		case 11:
			c.Propose(v, &meta.Rmdir{Parent: ino(), Name: name()})
		case 12:
			c.Propose(v, &meta.Held{Node: v, Contents: []meta.ContentID{base[ino()]}, UpTo: uint64(rnd.IntN(1000)),
				View: c.DB.View()})
		case 13:
			c.Propose(v, &meta.Unheld{Node: v, Contents: []meta.ContentID{base[ino()]}, Reason: meta.OwedLost})
		case 14:
			if rnd.IntN(4) == 0 {
				c.Boot(v)
			}
			c.Advance(int64(rnd.IntN(1e15)))
			c.Propose(v, &meta.Expire{})
		case 15:
			p := &meta.Policy{Placement: meta.Placement(rnd.IntN(2)), Copies: 2, Retain: uint32(rnd.IntN(3)),
				KeepRemoved: rnd.Uint64N(2) * 1e15, SendRate: rnd.Uint64N(2) * 1e6, Priority: meta.Priority(rnd.IntN(3))}
			c.Propose(v, &meta.SetPolicy{Dir: ino(), Policy: p})
		case 16:
			u := &meta.Undelete{Removed: removed[rnd.IntN(len(removed))], Parent: ino(), Name: name(), Drop: rnd.IntN(4) == 0}
			if res := c.Propose(v, u); res.Errno == 0 && !u.Drop {
				inos = append(inos, res.Ino)
			}
		}
	}
	c.Events()
}

func seeds(t *testing.T, n int, fn func(t *testing.T, rnd *rand.Rand)) {
	for seed := range uint64(n) {
		t.Run(fmt.Sprint("seed", seed), func(t *testing.T) { fn(t, rand.New(rand.NewPCG(seed, 1))) })
	}
}

// Same log, same bytes: in memory, on disk, and after power loss at any point with any part of the tail on the disk.
func TestCrashReplayMemory(t *testing.T) {
	seeds(t, 20, func(t *testing.T, rnd *rand.Rand) {
		db := meta.OpenMemory()
		rec := newRecorder(db)
		c := metatest.Over(t, rec, 3)
		for range 30 {
			churn(c, rnd, 20)
			last := db.Index()
			if rnd.IntN(3) == 0 {
				if _, err := db.Sync(); err != nil {
					t.Fatal(err)
				}
			}
			crashed := db.CrashClone(db.Synced() + rnd.Uint64N(last-db.Synced()+1))
			if crashed.Index() < db.Synced() {
				t.Fatal("synced entries lost")
			}
			rec.replay(t, crashed, last)
		}
	})
}

func TestSnapshotRoundTrip(t *testing.T) {
	seeds(t, 5, func(t *testing.T, rnd *rand.Rand) {
		db := meta.OpenMemory()
		rec := newRecorder(db)
		c := metatest.Over(t, rec, 3)
		churn(c, rnd, 400)
		s, index, err := db.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		churn(c, rnd, 100) // apply goes on
		raw, err := io.ReadAll(s)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		disk := openDisk(t, t.TempDir())
		for _, fresh := range []*meta.DB{meta.OpenMemory(), disk} {
			for _, bad := range [][]byte{raw[:len(raw)-1], raw[:len(raw)/2], append(bytes.Clone(raw[:40]), raw[41:]...)} {
				if err := fresh.Restore(bytes.NewReader(bad)); err == nil || fresh.Index() != 0 {
					t.Fatalf("damaged snapshot restored: %v", err)
				}
			}
			if err := fresh.Restore(bytes.NewReader(raw)); err != nil {
				t.Fatal(err)
			}
			if i, sum := fresh.Digest(); i != index || fresh.Synced() != index || sum != rec.sums[index] {
				t.Fatalf("restored digest at %d", i)
			}
			rec.replay(t, fresh, db.Index())
		}
		if err := disk.Restore(bytes.NewReader(raw)); err == nil {
			t.Fatal("restored an older snapshot")
		}
	})
}

// A restored database is found again by the next open, and nothing is left of the old state.
func TestRestoreSurvivesReopen(t *testing.T) {
	src := meta.OpenMemory()
	c := metatest.Over(t, src, 3)
	churn(c, rand.New(rand.NewPCG(1, 2)), 300)
	dir := t.TempDir()
	db := openDisk(t, dir)
	metatest.Over(t, db, 1)
	old, _, err := db.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	s, _, err := src.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := db.Restore(s); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(old); err != meta.ErrClosed {
		t.Fatalf("snapshot of the replaced state: %v", err)
	}
	old.Close()
	want, sum := src.Digest()
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	again := openDisk(t, dir)
	if i, got := again.Digest(); i != want || got != sum {
		t.Fatalf("index %d, want %d", i, want)
	}
	if states, _ := filepath.Glob(filepath.Join(dir, "state-*")); len(states) != 1 {
		t.Fatal(states)
	}
}

// On disk: the process is killed (a copy of the files is opened) and the tail of the log of writes is lost.
func TestCrashReplayDisk(t *testing.T) {
	dir := t.TempDir()
	db := openSmall(t, dir)
	rec := newRecorder(db)
	c := metatest.Over(t, rec, 3)
	rnd := rand.New(rand.NewPCG(3, 4))
	var ends map[string]int
	for round := range 6 {
		churn(c, rnd, 150)
		if round%2 == 0 {
			if _, err := db.Sync(); err != nil {
				t.Fatal(err)
			}
			ends = logEnds(t, dir)
			churn(c, rnd, 60)
		}
		synced, last := db.Synced(), db.Index()
		for _, lose := range []int{0, 1000, 1 << 30} {
			copied := copyDir(t, dir)
			damageLogs(t, copied, lose, ends)
			crashed := openSmall(t, copied)
			if crashed.Index() != synced {
				t.Fatalf("begins at %d, synced %d", crashed.Index(), synced)
			}
			if i, sum := crashed.Digest(); sum != rec.sums[i] && i > 0 {
				t.Fatalf("digest at %d after the crash", i)
			}
			rec.replay(t, crashed, last)
			if err := crashed.Close(); err != nil {
				t.Fatal(err)
			}
			again := openSmall(t, copied)
			if i, sum := again.Digest(); i != last || sum != rec.sums[last] {
				t.Fatalf("after replay and reopen: index %d, want %d", i, last)
			}
			if err := again.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// copyDir copies a directory in use, as a crash would find it: again, when files came or went meanwhile.
func copyDir(t *testing.T, from string) (to string) {
	t.Helper()
	for range 100 {
		before := listing(t, from)
		to = t.TempDir()
		err := os.CopyFS(to, os.DirFS(from))
		if err == nil && slices.Equal(before, listing(t, from)) {
			return to
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	t.Fatal("the directory never stays the same")
	return ""
}

// listing is the names below a directory, and the bytes of badger's manifest.
func listing(t *testing.T, dir string) (out []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.Name() == "MANIFEST" {
			b, err := os.ReadFile(path)
			out = append(out, string(b))
			return err
		}
		out = append(out, path)
		return nil
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return out
}

// logEnds returns how far each memtable log of a directory is written.
func logEnds(t *testing.T, dir string) map[string]int {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(dir, "state-*", "*.mem"))
	if err != nil {
		t.Fatal(err)
	}
	ends := map[string]int{}
	for _, name := range logs {
		b, err := os.ReadFile(name)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		ends[filepath.Base(name)] = len(bytes.TrimRight(b, "\x00"))
	}
	return ends
}

// damageLogs zeroes, in each memtable log, up to n bytes before the end of what is written, but nothing that was
// there when synced was taken.
func damageLogs(t *testing.T, dir string, n int, synced map[string]int) (lost int) {
	t.Helper()
	for base, end := range logEnds(t, dir) {
		cut := max(20, synced[base], end-n)
		if end <= cut {
			continue
		}
		names, _ := filepath.Glob(filepath.Join(dir, "state-*", base))
		b, err := os.ReadFile(names[0])
		if err != nil {
			t.Fatal(err)
		}
		clear(b[cut:end])
		if err := os.WriteFile(names[0], b, 0o600); err != nil {
			t.Fatal(err)
		}
		lost += end - cut
	}
	return lost
}
