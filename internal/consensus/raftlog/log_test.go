package raftlog_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog"
	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog/simfs"
)

var testIdentity = raftlog.Identity{Cluster: [16]byte{1}, Node: [16]byte{2}, Store: [16]byte{3}, Generation: 4, ID: 5}

func options(disk raftlog.FS) raftlog.Options {
	return raftlog.Options{Dir: "/log", Identity: testIdentity, FS: disk, SegmentBytes: 64 << 10}
}

func base(index, term uint64) raftlog.Base {
	return raftlog.Base{Index: index, Term: term, Conf: &raftpb.ConfState{Voters: []uint64{5, 6}}}
}

func entries(from, to, term uint64, size int) []*raftpb.Entry {
	var list []*raftpb.Entry
	for i := from; i <= to; i++ {
		data := []byte(strings.Repeat(fmt.Sprintf("%d.%d ", i, term), size/4+1))[:size]
		list = append(list, &raftpb.Entry{Index: new(i), Term: new(term), Type: raftpb.EntryNormal.Enum(), Data: data})
	}
	return list
}

func hard(term, vote, commit uint64) *raftpb.HardState {
	return &raftpb.HardState{Term: new(term), Vote: new(vote), Commit: new(commit)}
}

func mustOpen(t *testing.T, disk raftlog.FS) (*raftlog.Log, *raftlog.State) {
	t.Helper()
	log, state, err := raftlog.Open(options(disk))
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return log, state
}

func mustAppend(t *testing.T, log *raftlog.Log, b *raftlog.Batch) {
	t.Helper()
	if err := log.Append(b); err != nil {
		t.Fatalf("append: %v", err)
	}
}

func describe(list []*raftpb.Entry) []string {
	var out []string
	for _, e := range list {
		out = append(out, fmt.Sprintf("%d/%d:%s", e.GetIndex(), e.GetTerm(), e.GetData()))
	}
	return out
}

func newLog(t *testing.T) (*simfs.Disk, *raftlog.Log) {
	t.Helper()
	disk := simfs.New()
	if err := raftlog.Create(options(disk), base(0, 0)); err != nil {
		t.Fatal(err)
	}
	log, _ := mustOpen(t, disk)
	return disk, log
}

func TestAppendReopenReplaceAndBase(t *testing.T) {
	disk, log := newLog(t)
	mustAppend(t, log, &raftlog.Batch{Entries: entries(1, 10, 1, 40), Hard: hard(1, 5, 3)})
	mustAppend(t, log, &raftlog.Batch{Entries: entries(8, 12, 2, 40), Hard: hard(2, 6, 7)})
	b := base(4, 1)
	mustAppend(t, log, &raftlog.Batch{Base: &b})
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	log, state := mustOpen(t, disk)
	defer log.Close()
	want := describe(append(entries(5, 7, 1, 40), entries(8, 12, 2, 40)...))
	if diff := cmp.Diff(want, describe(state.Entries)); diff != "" {
		t.Fatal(diff)
	}
	if state.Hard.GetTerm() != 2 || state.Hard.GetVote() != 6 || state.Hard.GetCommit() != 7 || state.Base.Index != 4 ||
		len(state.Base.Conf.Voters) != 2 {
		t.Fatalf("state %+v", state)
	}
}

func TestSegmentsRollAndOldOnesGo(t *testing.T) {
	disk, log := newLog(t)
	for i := uint64(1); i <= 400; i++ {
		mustAppend(t, log, &raftlog.Batch{Entries: entries(i, i, 1, 1000), Hard: hard(1, 5, i-1)})
		if i%100 == 0 {
			b := base(i-20, 1)
			mustAppend(t, log, &raftlog.Batch{Base: &b})
		}
	}
	log.Close()
	names, _ := disk.List("/log")
	if len(names) > 4 {
		t.Fatalf("old segments stay: %v", names)
	}
	log, state := mustOpen(t, disk)
	defer log.Close()
	if state.Base.Index != 380 || state.LastIndex() != 400 || state.Hard.GetCommit() != 399 {
		t.Fatalf("base %d last %d", state.Base.Index, state.LastIndex())
	}
}

// TestEntriesWrittenWithANewBaseStay: a snapshot was taken in and entries came right after it, in one write.
func TestEntriesWrittenWithANewBaseStay(t *testing.T) {
	disk, log := newLog(t)
	mustAppend(t, log, &raftlog.Batch{Entries: entries(1, 30, 1, 1000), Hard: hard(1, 5, 0)})
	b := base(100, 2)
	mustAppend(t, log, &raftlog.Batch{Base: &b, Reset: true, Entries: entries(101, 110, 2, 1000), Hard: hard(2, 5, 100)})
	mustAppend(t, log, &raftlog.Batch{Entries: entries(111, 150, 2, 1000)}) // in the next segment
	log.Close()
	log, _ = mustOpen(t, disk)
	b = base(105, 2)
	mustAppend(t, log, &raftlog.Batch{Base: &b})
	log.Close()
	log, state := mustOpen(t, disk)
	defer log.Close()
	if diff := cmp.Diff(describe(entries(106, 150, 2, 1000)), describe(state.Entries)); diff != "" {
		t.Fatal(diff)
	}
}

func TestEntryLargerThanASegment(t *testing.T) {
	disk, log := newLog(t)
	mustAppend(t, log, &raftlog.Batch{Entries: entries(1, 1, 1, 1<<20)})
	mustAppend(t, log, &raftlog.Batch{Entries: entries(2, 2, 1, 10)})
	log.Close()
	log, state := mustOpen(t, disk)
	defer log.Close()
	if state.LastIndex() != 2 || len(state.Entries[0].Data) != 1<<20 {
		t.Fatal("large entry lost")
	}
}

func TestMissingForeignLockedExists(t *testing.T) {
	disk, log := newLog(t)
	if _, _, err := raftlog.Open(options(disk)); !errors.Is(err, raftlog.ErrLocked) {
		t.Fatalf("second open: %v", err)
	}
	log.Close()
	if err := raftlog.Create(options(disk), base(0, 0)); !errors.Is(err, raftlog.ErrExists) {
		t.Fatalf("create twice: %v", err)
	}
	foreign := options(disk)
	foreign.Identity.Generation++
	if _, _, err := raftlog.Open(foreign); !errors.Is(err, raftlog.ErrIdentity) {
		t.Fatalf("other generation: %v", err)
	}
	if _, _, err := raftlog.Open(options(simfs.New())); !errors.Is(err, raftlog.ErrMissing) {
		t.Fatalf("no log: %v", err)
	}
}

// TestPowerLossAfterEveryWrite runs a history, and after each write of it a power loss: what Append had returned for is
// there, what is there was appended, and the log is never called damaged.
func TestPowerLossAfterEveryWrite(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		disk, log := newLog(t)
		acked, pending := []string(nil), []string(nil)
		last, term := uint64(0), uint64(1)
		check := func(d *simfs.Disk) {
			after := d.PowerLoss(rng.IntN)
			reopened, state, err := raftlog.Open(options(after))
			if err != nil {
				t.Fatalf("seed %d: open after power loss: %v", seed, err)
			}
			defer reopened.Close()
			got := describe(state.Entries)
			if !cmp.Equal(got, acked) && !cmp.Equal(got, pending) {
				t.Fatalf("seed %d: after power loss %d entries, acknowledged %d, written %d", seed, len(got), len(acked),
					len(pending))
			}
			if err := reopened.Append(&raftlog.Batch{Entries: entries(state.LastIndex()+1, state.LastIndex()+1, 99,
				700)}); err != nil {
				t.Fatalf("seed %d: append after power loss: %v", seed, err)
			}
			if reopened.Close(); true {
				if again, state2, err := raftlog.Open(options(after)); err != nil || state2.LastIndex() != state.LastIndex()+1 {
					t.Fatalf("seed %d: second open: %v", seed, err)
				} else {
					again.Close()
				}
			}
		}
		for range 40 {
			from := last + 1
			if last > 0 && rng.IntN(5) == 0 {
				from, term = last-rng.Uint64N(min(last, 4)), term+1
			}
			to := from + rng.Uint64N(4)
			list := entries(from, to, term, 1+rng.IntN(3000))
			pending = append(append([]string(nil), acked[:from-1]...), describe(list)...)
			disk.Fail(func(op simfs.Op, _ string) error {
				if (op == simfs.OpSync || op == simfs.OpSyncDir) && rng.IntN(3) == 0 {
					return syscall.EIO
				}
				return nil
			})
			err := log.Append(&raftlog.Batch{Entries: list, Hard: hard(term, 5, 0)})
			for err != nil {
				check(disk)
				err = log.Append(&raftlog.Batch{Entries: list, Hard: hard(term, 5, 0)})
			}
			acked, last = pending, to
			check(disk)
		}
		log.Close()
	}
}

// TestPowerLossAfterAFailedSyncOfTheDirectory: a segment whose name may or may not be on the disk, and was taken
// back, does not hide what was acknowledged since, by this process or the next one.
func TestPowerLossAfterAFailedSyncOfTheDirectory(t *testing.T) {
	for seed := range uint64(50) {
		for _, restart := range []bool{false, true} {
			rng := rand.New(rand.NewPCG(seed, 1))
			disk, log := newLog(t)
			mustAppend(t, log, &raftlog.Batch{Entries: entries(1, 20, 1, 1000), Hard: hard(1, 5, 0)})
			disk.Fail(func(op simfs.Op, _ string) error {
				if op == simfs.OpSyncDir {
					return syscall.EIO
				}
				return nil
			})
			if err := log.Append(&raftlog.Batch{Entries: entries(21, 80, 1, 1000)}); !errors.Is(err, syscall.EIO) {
				t.Fatalf("append without a sync: %v", err)
			}
			disk.Fail(nil)
			if restart {
				log.Close()
				log, _ = mustOpen(t, disk)
			}
			mustAppend(t, log, &raftlog.Batch{Entries: entries(21, 25, 1, 100)})
			again, state, err := raftlog.Open(options(disk.PowerLoss(rng.IntN)))
			if err != nil {
				t.Fatalf("seed %d, restart %t: %v", seed, restart, err)
			}
			if state.LastIndex() != 25 {
				t.Fatalf("seed %d, restart %t: the log ends at %d, 25 were acknowledged", seed, restart, state.LastIndex())
			}
			again.Close()
			log.Close()
		}
	}
}

// TestDamageIsNotTakenForATornEnd flips each byte region of a log in turn: every damage to acknowledged data is found,
// except damage that can't be told apart from an unfinished last write.
func TestDamageIsNotTakenForATornEnd(t *testing.T) {
	disk, log := newLog(t)
	for i := uint64(1); i <= 30; i++ {
		mustAppend(t, log, &raftlog.Batch{Entries: entries(i, i, 1, 300), Hard: hard(1, 5, i)})
	}
	log.Close()
	names, _ := disk.List("/log")
	path := filepath.Join("/log", names[len(names)-1])
	for _, name := range names {
		if strings.HasSuffix(name, ".raftlog") {
			path = filepath.Join("/log", name)
		}
	}
	found := 0
	for off := int64(3); off < 30*350; off += 97 {
		broken := disk.PowerLoss(func(int) int { return 1 })
		broken.Corrupt(path, func(b []byte) []byte { b[off] ^= 0x55; return b })
		log, state, err := raftlog.Open(options(broken))
		switch {
		case errors.Is(err, raftlog.ErrDamaged):
			found++
		case err != nil:
			t.Fatalf("byte %d: %v", off, err)
		default:
			log.Close()
			if state.LastIndex() != 30 {
				t.Fatalf("byte %d: log silently ends at %d", off, state.LastIndex())
			}
		}
	}
	if found < 80 {
		t.Fatalf("only %d damages found", found)
	}
}

func TestMissingSegmentInTheMiddle(t *testing.T) {
	disk, log := newLog(t)
	for i := uint64(1); i <= 300; i++ {
		mustAppend(t, log, &raftlog.Batch{Entries: entries(i, i, 1, 1000)})
	}
	log.Close()
	names, _ := disk.List("/log")
	for _, victim := range names[:len(names)-1] {
		broken := disk.PowerLoss(func(int) int { return 1 })
		if err := broken.Remove(filepath.Join("/log", victim)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := raftlog.Open(options(broken)); !errors.Is(err, raftlog.ErrDamaged) {
			t.Fatalf("without %s: %v", victim, err)
		}
	}
}

func TestFullDiskIsToldAheadAndRecovers(t *testing.T) {
	disk, log := newLog(t)
	defer func() { log.Close() }()
	full := true
	disk.Fail(func(op simfs.Op, _ string) error {
		if full && op == simfs.OpAllocate {
			return syscall.ENOSPC
		}
		return nil
	})
	index, told := uint64(0), false
	for {
		err := log.Append(&raftlog.Batch{Entries: entries(index+1, index+1, 1, 1000)})
		if err != nil {
			if !errors.Is(err, syscall.ENOSPC) || !told {
				t.Fatalf("error %v, told before: %v", err, told)
			}
			break
		}
		index++
		told = told || log.Full() != nil
	}
	full = false
	mustAppend(t, log, &raftlog.Batch{Entries: entries(index+1, index+1, 1, 1000)})
	if log.Full() != nil {
		t.Fatal("still full")
	}
	log.Close()
	reopened, state := mustOpen(t, disk)
	log = reopened
	if state.LastIndex() != index+1 {
		t.Fatalf("last index %d, want %d", state.LastIndex(), index+1)
	}
}

func TestRealFileSystem(t *testing.T) {
	opts := raftlog.Options{Dir: filepath.Join(t.TempDir(), "log"), Identity: testIdentity, SegmentBytes: 1 << 20}
	if err := raftlog.Create(opts, base(0, 0)); err != nil {
		t.Fatal(err)
	}
	log, _, err := raftlog.Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := raftlog.Open(opts); !errors.Is(err, raftlog.ErrLocked) {
		t.Fatalf("second open: %v", err)
	}
	mustAppend(t, log, &raftlog.Batch{Entries: entries(1, 5000, 1, 300)})
	log.Close()
	log, state, err := raftlog.Open(opts)
	if err != nil || state.LastIndex() != 5000 {
		t.Fatalf("reopen: %v", err)
	}
	log.Close()
}

func BenchmarkAppendSync(b *testing.B) {
	for _, batch := range []uint64{1, 16, 64} {
		b.Run(fmt.Sprintf("entries=%d", batch), func(b *testing.B) {
			opts := raftlog.Options{Dir: filepath.Join(b.TempDir(), "log"), Identity: testIdentity}
			if err := raftlog.Create(opts, base(0, 0)); err != nil {
				b.Fatal(err)
			}
			log, _, err := raftlog.Open(opts)
			if err != nil {
				b.Fatal(err)
			}
			defer log.Close()
			index := uint64(1)
			for b.Loop() {
				if err := log.Append(&raftlog.Batch{Entries: entries(index, index+batch-1, 1, 256)}); err != nil {
					b.Fatal(err)
				}
				index += batch
			}
		})
	}
}
