package fs

import (
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rdmcfs/rdmcfs/internal/clusterlock"
	"github.com/rdmcfs/rdmcfs/internal/filelock"
	"github.com/rdmcfs/rdmcfs/meta"
)

func TestParseStat(t *testing.T) {
	raw := []byte("42 (a) b) c) R 1 2 3 4 5 1028 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 " +
		"31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 9\n")
	// Fields are counted from the last parenthesis: flags is the 7th after it, exit_code the 50th.
	flags, code, ok := parseStat(raw)
	if !ok || flags != 1028 || code != 49 {
		t.Errorf("got %d %d %v", flags, code, ok)
	}
	self, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	if flags, code, ok := parseStat(self); !ok || flags&pfExiting != 0 || code != 0 {
		t.Errorf("this process: %d %d %v", flags, code, ok)
	}
	for _, bad := range []string{"", "1 (x", "1 (x) R 1"} {
		if _, _, ok := parseStat([]byte(bad)); ok {
			t.Errorf("%q was parsed", bad)
		}
	}
}

func TestSignalIn(t *testing.T) {
	status := []byte("Name:\tx\nSigPnd:\t0000000000000100\nShdPnd:\t0000000000004000\n")
	if !signalIn(status, "SigPnd:") || signalIn(status, "ShdPnd:") || signalIn(status, "SigIgn:") {
		t.Error("SIGKILL is bit 8")
	}
}

func TestIsWriter(t *testing.T) {
	for flags, want := range map[string]bool{"0100000": false, "0100001": true, "02102001": true, "0100002": true,
		"010000000": false, "x": false} {
		raw := []byte("pos:\t0\nflags:\t" + flags + "\nmnt_id:\t30\nino:\t71\n")
		if isWriter(raw) != want || !isInode(raw, 71) || isInode(raw, 1) || isInode(raw, 7) {
			t.Errorf("flags %s: %v, want %v", flags, !want, want)
		}
	}
}

func TestInTime(t *testing.T) {
	if got, ok := inTime(time.Minute, func() int { return 7 }); !ok || got != 7 {
		t.Errorf("%d %v", got, ok)
	}
	never := make(chan int)
	defer close(never)
	if got, ok := inTime(time.Millisecond, func() int { return <-never }); ok {
		t.Errorf("%d in time", got)
	}
}

func TestParseMount(t *testing.T) {
	m, ok := parseMount(`36 35 0:52 / /mnt/a\040b rw,nosuid shared:1 - fuse.rdmcfs rdmcfs rw` + "\n")
	if want := (mountLine{dev: "0:52", dir: "/mnt/a b", options: "rw,nosuid", kind: "fuse.rdmcfs"}); !ok || m != want {
		t.Errorf("got %+v, want %+v", m, want)
	}
	if _, ok := parseMount("nonsense"); ok {
		t.Error("nonsense was parsed")
	}
}

func TestMergePatch(t *testing.T) {
	older := meta.AttrPatch{
		Mask: meta.AttrMode | meta.AttrUID, Mode: 0o6755, UID: 1, Ctime: 5,
		SetXattr: map[string][]byte{"user.a": {1}, "user.b": {2}}, DelXattr: []string{"user.c"},
	}
	newer := meta.AttrPatch{
		Mask: meta.AttrKillPriv | meta.AttrGID, GID: 2, Ctime: 4,
		SetXattr: map[string][]byte{"user.c": {3}}, DelXattr: []string{"user.a"},
	}
	got := mergePatch(older, newer)
	want := meta.AttrPatch{
		Mask: meta.AttrMode | meta.AttrUID | meta.AttrKillPriv | meta.AttrGID, Mode: 0o755, UID: 1, GID: 2, Ctime: 5,
		SetXattr: map[string][]byte{"user.b": {2}, "user.c": {3}}, DelXattr: []string{"user.a"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if len(older.SetXattr) != 2 || len(older.DelXattr) != 1 {
		t.Error("the older patch was changed")
	}
}

func TestSetTimeBeforeTheEpoch(t *testing.T) {
	var sec uint64
	var nsec uint32
	setTime(&sec, &nsec, -1)
	if int64(sec) != -1 || nsec != 999_999_999 {
		t.Errorf("got %d s %d ns", int64(sec), nsec)
	}
}

func TestKernelHoldsWhatItLookedUp(t *testing.T) {
	root := meta.Inode{Ino: meta.RootIno, Kind: meta.KindDir}
	table := newNodeTable(root, nil)
	rec := meta.Inode{Ino: 7, Kind: meta.KindFile}
	n := table.looked(rec)
	if again := table.looked(rec); again != n {
		t.Error("two nodes of one inode")
	}
	table.forget(n.id, 1)
	if table.get(n.id) != n {
		t.Error("forgotten while the kernel has it")
	}
	table.pin(n.id)
	table.forget(n.id, 1)
	if table.get(n.id) != n {
		t.Error("forgotten while it is in use")
	}
	table.unpin(n)
	if table.get(n.id) != nil || table.known(7) != nil {
		t.Error("not forgotten")
	}
	n.reading = &version{id: meta.ContentID{Seq: 1}, size: 3}
	m := table.looked(rec)
	m.reading = &version{id: meta.ContentID{Seq: 1}, size: 3}
	rec.Content, rec.Size = meta.ContentID{Seq: 2}, 4
	if table.looked(rec) == m || !m.detached {
		t.Error("a node with readers of an older version was looked up as the newer one")
	}
}

// TestTimesSetBesideAClose: times that are set while a last close looks at the file are not taken back by it.
func TestTimesSetBesideAClose(t *testing.T) {
	const written, set = 100, 50
	for _, c := range []struct {
		name                    string
		before, stat, published int64
		want                    meta.AttrMask
	}{
		{"nothing new", written, written, written, 0},
		{"written with the same bytes", written, written + 1, written, meta.AttrMtime},
		{"set since it was looked at", written, written, set, 0},
		{"set while it was looked at", written, set, written, meta.AttrMtime},
		{"set before", set, set, set, 0},
	} {
		l := &live{node: &node{}, published: state{valid: true, mtime: c.published}}
		(&publisher{nodes: &nodeTable{}}).rewritten(l, change{mtime: c.before, stat: StageStat{Mtime: c.stat}})
		if l.attrs.waiting.Mask != c.want || c.want != 0 && l.attrs.waiting.Mtime != c.stat {
			t.Errorf("%s: patch %+v, want mask %v", c.name, l.attrs.waiting, c.want)
		}
	}
}

// The files that were locked are remembered in bounded space, however they came to their numbers.
func TestLockedFilesAreBounded(t *testing.T) {
	lk := fileLocks{locked: map[uint64]struct{}{}}
	for file := range uint64(lockedMax) {
		lk.locked[file] = struct{}{}
	}
	n := new(node)
	const named = lockedMax
	lk.renaming(1, n, func() { n.inoNow.Store(named) })
	if !lk.hadAny(n) {
		t.Error("a file that was locked is not known by its new number")
	}
	for file := range uint64(10) {
		lk.noteLocked(named+1+file, &handle{}, filelock.Lock{})
	}
	if len(lk.locked) > lockedMax {
		t.Errorf("%d files are remembered", len(lk.locked))
	}
	n.inoNow.Store(named + 10)
	if !lk.hadAny(n) {
		t.Error("a file that was locked is not known")
	}
}

// Who asks which lock is in the way waits once for an open file that has other descriptors, not each time.
func TestQuestionForALockWaitsOnceForADup(t *testing.T) {
	usual := releaseLag
	releaseLag = time.Millisecond
	t.Cleanup(func() { releaseLag = usual })
	var lk fileLocks
	h := &handle{node: new(node)}
	held := filelock.Lock{Mode: filelock.Exclusive, End: 9, Owner: filelock.Owner{Space: 1, ID: 1}, Handle: 1}
	if no := lk.take(t.Context(), nil, h, held, false, func() {}); no != 0 {
		t.Fatal(no)
	}
	lk.closedDescriptor(t.Context(), h.node, filelock.Owner{Space: 1, ID: 2}, held.Handle) // of a child, say
	want := held
	want.Owner.ID = 3
	if l, found, _ := lk.conflict(t.Context(), nil, h, want); !found || l != held {
		t.Errorf("%+v %v", l, found)
	}
	if _, patience := lk.newsLocked(held); patience != 0 {
		t.Errorf("the next one waits %v for it", patience)
	}
}

// aloneLog is the log of a node whose locks no other node can know.
type aloneLog struct{ clusterlock.Log }

func (aloneLog) Self() meta.Lease { return meta.Lease{Node: 1, Incarnation: 1} }

// The RELEASE of an open file comes at any moment after its close, also between the steps of a request for its lock.
func TestLockOfAClosedFileIsFreeWheneverItIsReleased(t *testing.T) {
	shared := clusterlock.New(aloneLog{}, func(uint64) bool { return true })
	for name, cluster := range map[string]*clusterlock.Locks{"node": nil, "cluster": shared} {
		t.Run(name, func(t *testing.T) {
			lk := fileLocks{cluster: cluster}
			for i := range uint64(20000) {
				lockAsItIsReleased(t, &lk, 2*i+1)
			}
		})
	}
}

// lockAsItIsReleased asks which lock is in the way, and for a lock, while two open files that were closed are released.
func lockAsItIsReleased(t *testing.T, lk *fileLocks, first uint64) {
	t.Helper()
	h := &handle{node: new(node)}
	take := func(handle uint64, mode filelock.Mode) (filelock.Lock, syscall.Errno) {
		l := filelock.Lock{Mode: mode, End: 9, Owner: filelock.Owner{Space: 1, ID: handle}, Handle: handle}
		if lk.cluster != nil {
			return l, lk.takeShared(t.Context(), nil, h, l, false)
		}
		return l, lk.take(t.Context(), nil, h, l, false, func() {})
	}
	for handle := first; handle < first+2; handle++ {
		if _, no := take(handle, filelock.Shared); no != 0 {
			t.Fatal(no)
		}
		lk.closedDescriptor(t.Context(), h.node, filelock.Owner{Space: 1}, handle)
	}
	var released sync.WaitGroup
	defer released.Wait()
	for handle := first; handle < first+2; handle++ {
		released.Go(func() { lk.closedHandle(t.Context(), h.node, 1, handle) })
	}
	want := filelock.Lock{Mode: filelock.Exclusive, End: 9, Owner: filelock.Owner{Space: 1, ID: 9}, Handle: 9 + first}
	if first%4 == 1 {
		if l, found, no := lk.conflict(t.Context(), nil, h, want); found || no != 0 {
			t.Fatalf("a lock that is about to be given back is in the way: %+v %v", l, no)
		}
	}
	if l, no := take(first+1<<32, filelock.Exclusive); no != 0 {
		t.Fatalf("no lock: %v", no)
	} else {
		lk.closedHandle(t.Context(), h.node, 1, l.Handle)
	}
}

// SetLostWait changes, for a test that has not mounted yet, how long a lookup waits for a name that a fence has freed.
func SetLostWait(t *testing.T, wait time.Duration) {
	usual := lostWait
	lostWait = wait
	t.Cleanup(func() { lostWait = usual })
}
