package filelock

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

const fileBytes = 12

// byteModel holds locks byte by byte: what each owner has of a file.
type byteModel map[Owner]*[fileBytes]int // 0, or the mode plus one

func (m byteModel) excluded(want Lock) bool {
	for owner, have := range m {
		for i := want.First; i <= want.End && owner != want.Owner; i++ {
			if have[i] != 0 && (want.Mode == Exclusive || have[i] == int(Exclusive)+1) {
				return true
			}
		}
	}
	return false
}

func (m byteModel) set(l Lock, to int) {
	if m[l.Owner] == nil {
		m[l.Owner] = new([fileBytes]int)
	}
	for i := l.First; i <= l.End; i++ {
		m[l.Owner][i] = to
	}
}

func drawLock(t *rapid.T, kind Kind) Lock {
	id := uint64(rapid.IntRange(1, 3).Draw(t, "owner"))
	mode := Mode(rapid.IntRange(0, 1).Draw(t, "mode"))
	l := Lock{Kind: kind, Mode: mode, Owner: Owner{Space: 1, ID: id}, Handle: id, End: fileBytes - 1}
	if kind == Record {
		l.First = uint64(rapid.IntRange(0, fileBytes-1).Draw(t, "first"))
		l.End = uint64(rapid.IntRange(int(l.First), fileBytes-1).Draw(t, "end"))
	}
	return l
}

// Record locks are as if each byte had a lock of its own.
func TestRecordLocksAreThoseOfBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var table Table
		model := byteModel{}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			l := drawLock(t, Record)
			switch rapid.IntRange(0, 4).Draw(t, "what") {
			case 0:
				table.Unlock(7, l)
				model.set(l, 0)
			case 1:
				table.CloseDescriptor(7, l.Owner)
				delete(model, l.Owner)
			default:
				excluded := model.excluded(l)
				if _, found := table.Conflict(7, l); found != excluded {
					t.Fatalf("%+v: conflict %v, by bytes %v: %+v", l, found, excluded, table.held)
				}
				answer, _, _ := table.Set(7, l, false)
				if (answer == Refused) != excluded {
					t.Fatalf("%+v: answer %v, by bytes excluded: %v: %+v", l, answer, excluded, table.held)
				}
				if !excluded {
					model.set(l, int(l.Mode)+1)
				}
			}
			compare(t, &table, model)
		}
	})
}

func compare(t *rapid.T, table *Table, model byteModel) {
	got := byteModel{}
	for _, l := range table.held[7] {
		for i := l.First; i <= l.End; i++ {
			if got[l.Owner] != nil && got[l.Owner][i] != 0 {
				t.Fatalf("byte %d is locked twice by one owner: %+v", i, table.held)
			}
			one := l
			one.First, one.End = i, i
			got.set(one, int(l.Mode)+1)
		}
	}
	for id := uint64(1); id <= 3; id++ {
		var want, have [fileBytes]int
		if m := model[Owner{Space: 1, ID: id}]; m != nil {
			want = *m
		}
		if m := got[Owner{Space: 1, ID: id}]; m != nil {
			have = *m
		}
		if want != have {
			t.Fatalf("owner %d has %v, want %v", id, have, want)
		}
	}
}

// No two owners ever exclude each other, nobody waits for nothing, and owners never wait in a circle for record locks.
func TestWaitersGetWhatIsFree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var table Table
		waiting := map[Owner]Ticket{}
		answered := func(granted []Ticket) {
			for owner, ticket := range waiting {
				if slices.Contains(granted, ticket) {
					delete(waiting, owner)
				}
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			kind := Kind(rapid.IntRange(0, 1).Draw(t, "kind"))
			l := drawLock(t, kind)
			file := uint64(rapid.IntRange(1, 2).Draw(t, "file"))
			if ticket, waits := waiting[l.Owner]; waits { // one that waits can only be interrupted
				if rapid.Bool().Draw(t, "interrupt") {
					if !table.Cancel(ticket) {
						t.Fatal("a request that waits is unknown")
					}
					delete(waiting, l.Owner)
				}
				continue
			}
			switch rapid.IntRange(0, 5).Draw(t, "what") {
			case 0:
				answered(table.Unlock(file, l))
			case 1:
				answered(table.CloseDescriptor(file, l.Owner))
			case 2:
				answered(table.CloseHandle(file, 1, l.Handle))
			default:
				answer, ticket, granted := table.Set(file, l, true)
				answered(granted)
				switch answer {
				case Waiting:
					waiting[l.Owner] = ticket
				case Refused:
					t.Fatal("refused though it was to wait")
				}
			}
			if len(waiting) != len(table.waiters) {
				t.Fatalf("%d wait, the table has %d", len(waiting), len(table.waiters))
			}
			checkTable(t, &table)
		}
	})
}

func checkTable(t *rapid.T, table *Table) {
	for file, locks := range table.held {
		for i, l := range locks {
			for _, o := range locks[:i] {
				if l.conflicts(o) {
					t.Fatalf("file %d: %+v and %+v", file, l, o)
				}
			}
		}
	}
	for _, w := range table.waiters {
		if _, found := table.Conflict(w.file, w.want); !found {
			t.Fatalf("%+v waits for nothing", w)
		}
		if w.want.Kind == Record && table.closesCircle(w.file, w.want) {
			t.Fatalf("%+v waits in a circle", w)
		}
	}
}

func record(owner uint64, mode Mode, first, end uint64) Lock {
	return Lock{Kind: Record, Mode: mode, First: first, End: end, Owner: Owner{Space: 1, ID: owner}, Handle: owner}
}

func flock(owner uint64, mode Mode) Lock {
	return Lock{Kind: Flock, Mode: mode, End: 1<<63 - 1, Owner: Owner{Space: 1, ID: owner}, Handle: owner}
}

func want(t *testing.T, got Answer, want Answer, what string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %d, want %d", what, got, want)
	}
}

// An flock that can't change its mode is gone, as flock(2) says; one that waits gets it when it is free.
func TestFlockIsGivenBackToChangeItsMode(t *testing.T) {
	var table Table
	table.Set(1, flock(1, Shared), false)
	table.Set(1, flock(2, Shared), false)
	answer, _, _ := table.Set(1, flock(1, Exclusive), false)
	want(t, answer, Refused, "upgrade beside another one")
	answer, _, _ = table.Set(1, flock(2, Exclusive), false)
	want(t, answer, Granted, "upgrade when the other one has lost its own")

	answer, first, _ := table.Set(1, flock(1, Shared), true)
	want(t, answer, Waiting, "shared beside exclusive")
	_, second, _ := table.Set(1, flock(3, Shared), true)
	_, _, granted := table.Set(1, flock(2, Shared), false)
	if !slices.Equal(granted, []Ticket{first, second}) {
		t.Errorf("a downgrade granted %v, want %v and %v", granted, first, second)
	}
}

// The kernel names an open file by an address, and uses it again when the file is closed, before it sends RELEASE: what
// the next open file of that address holds is not given back by the RELEASE of the one before.
func TestFlockOfAnOwnerWhoseNumberIsUsedAgain(t *testing.T) {
	for _, mode := range []Mode{Shared, Exclusive} {
		var table Table
		before, now := flock(1, mode), flock(1, mode)
		before.Handle, now.Handle = 8, 9
		table.Set(1, before, false)
		answer, _, _ := table.Set(1, now, false)
		want(t, answer, Granted, "the same again")
		table.CloseHandle(1, 1, before.Handle)
		answer, _, _ = table.Set(1, flock(2, Exclusive), false)
		want(t, answer, Refused, "another one beside it")
		table.CloseHandle(1, 1, now.Handle)
		if !table.Empty() {
			t.Errorf("left: %+v", table)
		}
	}
}

// Locks of an owner that touch each other look like one, as on Linux, and each goes with the open file by which it was
// taken: that of an owner's number may be gone, and its RELEASE on its way, when the number is used again.
func TestLocksThatTouchGoWithTheirOpenFiles(t *testing.T) {
	var table Table
	before, now, last := record(1, Exclusive, 0, 4), record(1, Exclusive, 5, 9), record(1, Exclusive, 10, 11)
	before.Handle, now.Handle, last.Handle = 7, 8, 9
	for _, l := range []Lock{last, before, now} {
		table.Set(1, l, false)
	}
	for at := range uint64(12) {
		l, found := table.Conflict(1, record(2, Shared, at, at))
		own, has := table.Own(1, record(1, Shared, at, at))
		for _, l := range []Lock{l, own} {
			if !found || !has || l.First != 0 || l.End != 11 {
				t.Errorf("at byte %d: %+v", at, l)
			}
		}
	}
	table.CloseHandle(1, 1, before.Handle)
	answer, _, _ := table.Set(1, record(2, Exclusive, 0, 4), false)
	want(t, answer, Granted, "what the open file had that is closed")
	answer, _, _ = table.Set(1, record(2, Exclusive, 5, 5), false)
	want(t, answer, Refused, "what the other one has")
}

func TestDeadlock(t *testing.T) {
	var table Table
	for owner := uint64(1); owner <= 4; owner++ {
		table.Set(owner, record(owner, Exclusive, 0, 9), false)
	}
	for owner := uint64(1); owner <= 3; owner++ {
		answer, _, _ := table.Set(owner+1, record(owner, Shared, 5, 5), true)
		want(t, answer, Waiting, fmt.Sprintf("owner %d", owner))
	}
	answer, _, _ := table.Set(1, record(4, Shared, 9, 9), true)
	want(t, answer, Deadlock, "the owner that closes the circle")
	answer, _, _ = table.Set(1, record(4, Shared, 9, 9), false)
	want(t, answer, Refused, "the same without waiting")
}

// A lock that moves with its file excludes those of the new number, and requests that wait go along.
func TestRename(t *testing.T) {
	var table Table
	table.Set(1, record(1, Exclusive, 0, 9), false)
	_, ticket, _ := table.Set(1, record(2, Exclusive, 0, 9), true)
	table.Rename(1, 1, 5)
	answer, _, _ := table.Set(5, record(3, Shared, 3, 3), false)
	want(t, answer, Refused, "a lock of the new number")
	if granted := table.CloseHandle(5, 1, 1); !slices.Equal(granted, []Ticket{ticket}) {
		t.Errorf("granted %v, want %v", granted, ticket)
	}
	table.CloseHandle(5, 1, 2)
	if !table.Empty() {
		t.Errorf("left: %+v", table)
	}
}

// What other mounts hold and wait for stays under the old number: it is of another file from now on.
func TestRenameLeavesWhatOthersHave(t *testing.T) {
	var table Table
	mine, theirs := record(1, Exclusive, 0, 4), record(1, Exclusive, 5, 9)
	theirs.Owner.Space = 2
	table.Set(1, mine, false)
	table.Set(1, theirs, false)
	wantMine, wantTheirs := record(2, Exclusive, 5, 5), record(2, Exclusive, 0, 0)
	wantTheirs.Owner.Space = 2
	_, here, _ := table.Set(1, wantMine, true)
	_, there, _ := table.Set(1, wantTheirs, true)
	if granted := table.Rename(1, 1, 5); !slices.Equal(granted, []Ticket{there, here}) {
		t.Errorf("granted %v, want %v and %v, who waited for each other's file", granted, there, here)
	}
	table.CloseHandle(1, 2, theirs.Handle)
	table.CloseHandle(1, 2, wantTheirs.Handle)
	if len(table.held[1]) > 0 {
		t.Errorf("left under the old number: %+v", table)
	}
	table.CloseHandle(5, 1, mine.Handle)
	table.CloseHandle(5, 1, wantMine.Handle)
	if !table.Empty() {
		t.Errorf("left: %+v", table)
	}
}

func TestCloseSpace(t *testing.T) {
	var table Table
	table.Set(1, record(1, Exclusive, 0, 9), false)
	other := record(1, Exclusive, 0, 9)
	other.Owner.Space = 2
	_, theirs, _ := table.Set(1, other, true)
	_, mine, _ := table.Set(1, record(2, Exclusive, 0, 9), true)
	granted, ended := table.CloseSpace(1)
	if !slices.Equal(granted, []Ticket{theirs}) || !slices.Equal(ended, []Ticket{mine}) {
		t.Errorf("granted %v, ended %v", granted, ended)
	}
}
