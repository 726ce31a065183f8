package fs_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/fs"
	"github.com/rdmcfs/rdmcfs/fs/fstest"
	"golang.org/x/sys/unix"
)

// eachLocks is eachPair, also with locks that hold between nodes.
func eachLocks(t *testing.T, f func(t *testing.T, c *fstest.Cluster, a, b string)) {
	eachPair(t, f)
	t.Run("cluster", func(t *testing.T) {
		c, a, b := pair(t, shareLocks)
		f(t, c, a, b)
	})
}

func shareLocks(o *fs.Options) { o.ClusterLocks = true }

// eachShared is eachPair with locks that hold between nodes.
func eachShared(t *testing.T, f func(t *testing.T, c *fstest.Cluster, a, b string)) {
	for name, change := range modes {
		t.Run(name, func(t *testing.T) {
			c, a, b := pair(t, func(o *fs.Options) {
				change(o)
				shareLocks(o)
			})
			f(t, c, a, b)
		})
	}
}

// The matrix of TestLockMatrix between processes of two nodes: the first opens and locks on one node, the second
// changes the file, opens and locks it on the other one. Each cell equals that of two processes on a local disk.
func TestClusterLockMatrix(t *testing.T) {
	step := 6 // a cell takes 0.1 s
	if testing.Short() {
		step = 36
	}
	eachShared(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		disk := t.TempDir()
		one, two := newLateTwin(t, disk, a), newLateTwin(t, disk, b)
		lockCells(t, one, two, disk, a, step, func(middle string, cell int) {
			if middle == "elsewhere" {
				write(t, filepath.Join(b, "f"), []byte(fmt.Sprint("of another node ", cell)))
			}
			eventually(t, func() error { // both nodes have the same file under the name
				var one, two unix.Stat_t
				err := errors.Join(unix.Stat(filepath.Join(a, "f"), &one), unix.Stat(filepath.Join(b, "f"), &two))
				if err != nil || one.Ino != two.Ino {
					return fmt.Errorf("file %d is %d on the other node: %w", one.Ino, two.Ino, err)
				}
				return nil
			})
		})
	})
}

// Four processes of two nodes open and close two files and take locks, as it comes: what they get is what they get on
// one local disk.
func TestClusterLocksAsOnADisk(t *testing.T) {
	steps := 1000
	if testing.Short() {
		steps = 300
	}
	eachShared(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		disk := t.TempDir()
		lockFiles(t, disk, a)
		var all [4]*twin
		for i := range all {
			all[i] = newLateTwin(t, disk, []string{a, b}[i%2])
		}
		for _, mnt := range []string{a, b} { // else the kernel need not report the closes of readers
			for _, name := range []string{"f", "g"} {
				l := newLocker(t, mnt)
				l.ok("open %s %s 0", name, name)
				l.ok("flock %s r", name)
				l.ok("close %s", name)
			}
		}
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		r := rand.New(rand.NewPCG(seed, 0))
		var history []string
		open := map[string]bool{}
		for range steps {
			who := r.IntN(len(all))
			command := drawLockCommand(r, open, who)
			if word, _, _ := strings.Cut(command, " "); word == "write" || word == "cut" || word == "rename" ||
				word == "elsewhere" {
				continue
			}
			all[who].do(t, &history, who, command)
		}
	})
}

// doSoon is do, except that a node may hear a little later that a file was closed on another one.
func (w *twin) doSoon(t testing.TB, history *[]string, who int, command string) {
	t.Helper()
	disk := w.disk.do("%s", command)
	*history = append(*history, fmt.Sprintf("process %d: %s: %s", who, command, disk))
	mount := ""
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		if mount = w.mount.do("%s", command); mount == disk || strings.HasPrefix(command, "close") {
			break
		}
	}
	if disk != mount {
		t.Fatalf("%s\non the mount: %s", strings.Join(*history, "\n"), mount)
	}
}

// What processes of two nodes append to a file under a lock of it is all there, however they have it open.
func TestClusterLockGuardsAppends(t *testing.T) {
	const rounds = 15
	eachShared(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		for _, kept := range []bool{true, false} {
			for _, kind := range []string{"flock", "record"} {
				name := fmt.Sprint("log ", kept, kind)
				write(t, filepath.Join(a, name), nil)
				var work sync.WaitGroup
				for i, mnt := range []string{a, b} {
					work.Go(func() { appendLines(t, filepath.Join(mnt, name), kind, i, rounds, kept) })
				}
				work.Wait()
				for _, mnt := range []string{a, b} {
					eventually(t, func() error {
						got, err := os.ReadFile(filepath.Join(mnt, name))
						if n := bytes.Count(got, []byte("\n")); err != nil || n != 2*rounds || len(got) != 4*2*rounds {
							return fmt.Errorf("%s: %d lines, %d bytes, want %d: %v: %q", name, n, len(got), 2*rounds, err, got)
						}
						return nil
					})
				}
			}
		}
	})
}

// appendLines appends lines of four bytes, each under a lock. With kept it keeps the file open meanwhile.
func appendLines(t *testing.T, path, kind string, who, rounds int, kept bool) {
	var f *os.File
	for i := range rounds {
		var err error
		if f == nil {
			if f, err = os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0); err != nil {
				t.Error(err)
				return
			}
		}
		if err := lockWhole(f, kind, true); err != nil {
			t.Errorf("lock: %v", err)
		}
		if kept { // the file is as the last one left it; without that it was opened before it was locked
			if st, err := f.Stat(); err != nil || st.Size()%4 != 0 {
				t.Errorf("size %v %v", st, err)
			}
		}
		if _, err := fmt.Fprintf(f, "%d%02d\n", who, i); err != nil {
			t.Errorf("append: %v", err)
		}
		if kept {
			if err := lockWhole(f, kind, false); err != nil {
				t.Errorf("unlock: %v", err)
			}
			continue
		}
		if err := f.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		f = nil
	}
	if f != nil {
		if err := f.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
}

func lockWhole(f *os.File, kind string, take bool) error {
	for {
		var err error
		if kind == "flock" {
			err = unix.Flock(int(f.Fd()), map[bool]int{true: unix.LOCK_EX, false: unix.LOCK_UN}[take])
		} else {
			lk := unix.Flock_t{Type: map[bool]int16{true: unix.F_WRLCK, false: unix.F_UNLCK}[take]}
			err = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLKW, &lk)
		}
		if err != syscall.EINTR {
			return err
		}
	}
}

// A node that decides about a file's locks by itself publishes nothing at an unlock. What was written goes with the
// locks, when another node asks.
func TestNextNodeSeesWhatWasWrittenUnderALock(t *testing.T) {
	for _, kind := range []string{"flock a %s", "posix a %s 0 0", "ofd a %s 0 0"} {
		c, a, b := pair(t, shareLocks)
		write(t, filepath.Join(a, "f"), []byte("x"))
		one, two := newLocker(t, a), newLocker(t, b)
		one.ok("open a f 2")
		one.ok(kind, "w")
		one.ok("write a first")
		before := c.Node(1).Publishes.Load()
		one.ok(kind, "u")
		if got := c.Node(1).Publishes.Load(); got != before {
			t.Errorf("%s: %d publishes at an unlock that no other node hears of", kind, got-before)
		}
		two.ok("open a f 2")
		two.ok(kind, "w")
		wantBytes(t, filepath.Join(b, "f"), []byte("first"))
		two.ok("write a second")
		two.ok(kind, "u")
		one.ok(kind, "w")
		wantBytes(t, filepath.Join(a, "f"), []byte("second"))
	}
}

// A fence ends the locks of a node's programs: others get them, and the open file that had one gets no other.
func TestClusterLocksEndWithAFence(t *testing.T) {
	c, a, b := pair(t, shareLocks)
	write(t, filepath.Join(a, "f"), []byte("x"))
	one, two := newLocker(t, a), newLocker(t, b)
	one.ok("open a f 2")
	one.ok("flock a w")
	two.ok("open a f 2")
	two.begin("flock a w wait")
	stillWaits(t, two)
	c.Fence(t, 1)
	if got := two.answer(); got != "ok" {
		t.Fatalf("after the fence: %s", got)
	}
	if got := one.do("flock a w"); got != "EIO" {
		t.Errorf("an open file whose lock was lost: %s", got)
	}
	one.ok("open b f 2")
	if got := one.do("flock b w"); got == "ok" {
		t.Error("two hold the lock")
	}
	two.ok("flock a u")
	one.ok("flock b w")
}

// What a program writes after its lock was lost takes the place of nothing that the next holder wrote: its close fails,
// and the bytes are kept and listed. It can't help itself by a second close, or by another program that has the file
// open. When all have closed it, the file is as any other.
func TestWriterWithoutItsClusterLockPublishesNothing(t *testing.T) {
	const next = "of_the_next_holder"
	for _, kind := range []string{"flock a w", "posix a w 0 0", "ofd a w 3 5"} {
		for _, when := range []string{"before", "after"} {
			t.Run(kind+" "+when, func(t *testing.T) {
				c, a, b := pair(t, shareLocks)
				write(t, filepath.Join(a, "f"), []byte("x"))
				one, two := newLocker(t, a), newLocker(t, b)
				one.ok("open a f 2")
				one.ok("open c f 2")
				one.ok("%s", kind)
				if when == "before" {
					one.ok("write a lost")
				}
				c.Fence(t, 1)
				two.ok("open a f 513")
				two.ok("%s", kind)
				two.ok("write a %s", next)
				two.ok("close a")
				if when == "after" {
					one.ok("write a lost")
				}
				for _, fd := range []string{"a", "c"} {
					if got := one.do("close %s", fd); got != "EIO" {
						t.Errorf("close %s of a file whose lock was lost: %s", fd, got)
					}
				}
				for _, mnt := range []string{a, b} {
					wantSoon(t, filepath.Join(mnt, "f"), next)
				}
				eventually(t, func() error { // close returns before the file is let go
					list, err := c.Node(1).Store().Stagings()
					if err != nil || len(list) != 1 || !strings.Contains(list[0].Reason, "lock") {
						return fmt.Errorf("unpublished: %+v %v", list, err)
					}
					return nil
				})
				one.ok("open a f 2")
				if got := one.soon("%s", kind); got != "ok" {
					t.Errorf("a lock by a new descriptor: %s", got)
				}
				one.ok("write a again")
				one.ok("close a")
				wantSoon(t, filepath.Join(b, "f"), "again"+next[5:])
			})
		}
	}
}

// What was written under a lock counts as that also when the lock was given back before the node heard of the fence.
func TestUnlockedBytesOfALostLockAreNotPublished(t *testing.T) {
	for _, kind := range []string{"flock a %s", "posix a %s 0 0", "ofd a %s 0 0"} {
		for _, end := range []string{"close", "lock"} {
			t.Run(kind+end, func(t *testing.T) {
				c, a, b := pair(t, shareLocks)
				write(t, filepath.Join(a, "f"), []byte("x"))
				one, two := newLocker(t, a), newLocker(t, b)
				one.ok("open a f 2")
				one.ok(kind, "w")
				one.ok("write a lost")
				one.ok(kind, "u")
				c.Fence(t, 1)
				two.ok("open a f 513")
				two.ok(kind, "w")
				two.ok("write a next")
				two.ok("close a")
				if end == "lock" {
					if got := one.soon(kind, "w"); got != "EIO" {
						t.Errorf("a lock of bytes that another node has replaced: %s", got)
					}
					one.ok("open b f 2") // not with what was written under the lost lock
					if got := one.soon(strings.Replace(kind, " a ", " b ", 1), "w"); got != "ok" {
						t.Errorf("a lock by a new descriptor: %s", got)
					}
					one.ok("close b")
				}
				if got := one.do("close a"); got != "EIO" {
					t.Errorf("close of a file whose lock was lost: %s", got)
				}
				for _, mnt := range []string{a, b} {
					wantSoon(t, filepath.Join(mnt, "f"), "next")
				}
			})
		}
	}
}

// A close that failed leaves its bytes to nobody: another program of the node, which has the file open, can't publish
// them under a lock of its own, once another node has had the lock.
func TestBytesOfAFailedCloseStayUnpublished(t *testing.T) {
	c, a, b := pair(t, shareLocks)
	write(t, filepath.Join(a, "f"), []byte("x"))
	one, other, two := newLocker(t, a), newLocker(t, a), newLocker(t, b)
	other.ok("open q f 2")
	one.ok("open a f 2")
	one.ok("flock a w")
	one.ok("write a lost")
	c.Node(1).Before(fstest.EIO)
	if got := one.do("close a"); got != "EIO" {
		t.Fatalf("close: %s", got)
	}
	c.Node(1).Before(nil)
	c.Fence(t, 1)
	two.ok("open a f 513")
	two.ok("flock a w")
	two.ok("write a next")
	two.ok("close a")
	if got := other.soon("flock q w"); got != "EIO" {
		t.Errorf("a lock of bytes that another node has replaced: %s", got)
	}
	if got := other.do("close q"); got != "EIO" {
		t.Errorf("close of bytes that another node has replaced: %s", got)
	}
	for _, mnt := range []string{a, b} {
		wantSoon(t, filepath.Join(mnt, "f"), "next")
	}
}

// A program that has given its lock back, with all that it wrote published, goes on after a fence, with the lock or
// without.
func TestFenceSparesWhoHasGivenTheLockBack(t *testing.T) {
	for flags, again := range map[int]bool{os.O_RDWR: true, os.O_WRONLY: false} {
		c, a, b := pair(t, shareLocks)
		write(t, filepath.Join(a, "f"), []byte("x"))
		one := newLocker(t, a)
		one.ok("open a f %d", flags)
		one.ok("flock a w")
		one.ok("write a first")
		one.ok("sync a")
		one.ok("flock a u")
		c.Fence(t, 1)
		if again {
			one.ok("flock a w")
		}
		one.ok("write a later")
		one.ok("close a")
		wantSoon(t, filepath.Join(b, "f"), "later")
	}
}

// A lock counts for the file, whatever it was taken by: here by a descriptor of the version before.
func TestLostLockOfAnOlderDescriptorCounts(t *testing.T) {
	c, a, b := pair(t, shareLocks)
	write(t, filepath.Join(a, "f"), []byte("x"))
	one := newLocker(t, a)
	one.ok("open a f 0")
	one.ok("flock a w")
	c.Fence(t, 1)
	write(t, filepath.Join(b, "f"), []byte("next"))
	eventually(t, func() error {
		if got := one.do("open d f 2"); got != "ok" {
			return fmt.Errorf("open: %s", got)
		}
		return nil
	})
	one.ok("write d lost")
	write(t, filepath.Join(b, "f"), []byte("and next"))
	one.ok("close a")
	if got := one.do("close d"); got != "EIO" {
		t.Errorf("close of a file whose lock was lost: %s", got)
	}
	wantSoon(t, filepath.Join(b, "f"), "and next")
}

// A new file that no other node can have seen is published, whatever became of its lock.
func TestNewFileOutlivesItsLock(t *testing.T) {
	c, a, b := pair(t, shareLocks)
	one := newLocker(t, a)
	one.ok("open a new 66")
	one.ok("flock a w")
	one.ok("write a new")
	c.Fence(t, 1)
	one.ok("close a")
	wantSoon(t, filepath.Join(b, "new"), "new")
}

// A descriptor whose lock was lost, and that has written nothing, keeps nobody else from locking and writing.
func TestIdleDescriptorWithoutItsLockHoldsNobodyUp(t *testing.T) {
	for _, flags := range []int{os.O_RDONLY, os.O_RDWR} {
		c, a, b := pair(t, shareLocks)
		write(t, filepath.Join(a, "f"), []byte("x"))
		one, other := newLocker(t, a), newLocker(t, a)
		one.ok("open a f %d", flags)
		one.ok("flock a w")
		c.Fence(t, 1)
		for i := range 3 {
			other.ok("open q f 2")
			other.ok("flock q w")
			other.ok("write q new%d", i)
			other.ok("close q")
			wantSoon(t, filepath.Join(b, "f"), fmt.Sprint("new", i))
		}
		if got := one.do("close a"); got != "ok" {
			t.Errorf("close of a file that was not written to: %s", got)
		}
	}
}

// A program that never locked the file writes on after a fence, as all that was written under the lock is published.
func TestFenceSparesWhoNeverLocked(t *testing.T) {
	for _, flags := range []int{os.O_WRONLY, os.O_RDWR} {
		c, a, b := pair(t, shareLocks)
		write(t, filepath.Join(a, "f"), []byte("x"))
		one, other := newLocker(t, a), newLocker(t, a)
		other.ok("open q f %d", flags)
		one.ok("open a f %d", flags)
		one.ok("flock a w")
		one.ok("write a first")
		one.ok("flock a u")
		one.ok("sync a")
		one.ok("close a")
		c.Fence(t, 1)
		other.ok("write q later")
		other.ok("close q")
		wantSoon(t, filepath.Join(b, "f"), "later")
	}
}

// Bytes that are never published are seen by nobody who opens the file later.
func TestOpensDoNotSeeWhatIsNeverPublished(t *testing.T) {
	c, a, b := pair(t, shareLocks)
	write(t, filepath.Join(a, "f"), []byte("x"))
	one, other, two := newLocker(t, a), newLocker(t, a), newLocker(t, b)
	one.ok("open a f 2")
	one.ok("flock a w")
	one.ok("write a lost")
	c.Fence(t, 1)
	two.ok("open a f 513")
	two.ok("flock a w")
	two.ok("write a next")
	two.ok("close a")
	if got := one.do("sync a"); got != "EIO" {
		t.Errorf("fsync of a file whose lock was lost: %s", got)
	}
	wantSoon(t, filepath.Join(a, "f"), "next")
	other.ok("open r f 0")
	if got := other.soon("flock r r"); got != "ok" {
		t.Errorf("a lock by a new descriptor: %s", got)
	}
	other.ok("close r")
	if got := one.do("close a"); got != "EIO" {
		t.Errorf("close of a file whose lock was lost: %s", got)
	}
	wantSoon(t, filepath.Join(a, "f"), "next")
}

// The lock of a file that was made without a name counts as any other once it has one.
func TestLostLockOfATmpfileCounts(t *testing.T) {
	c, a, b := pair(t, shareLocks)
	fd, err := unix.Open(a, unix.O_TMPFILE|unix.O_WRONLY, 0o644)
	must(t, err)
	must(t, unix.Flock(fd, unix.LOCK_EX))
	_, err = unix.Pwrite(fd, []byte("first"), 0)
	must(t, err)
	name := filepath.Join(a, "n")
	of := fmt.Sprintf("/proc/self/fd/%d", fd)
	must(t, unix.Linkat(unix.AT_FDCWD, of, unix.AT_FDCWD, name, unix.AT_SYMLINK_FOLLOW))
	two := newLocker(t, b)
	eventually(t, func() error {
		if got := two.do("open a n 1"); got != "ok" {
			return fmt.Errorf("open: %s", got)
		}
		if got := two.do("flock a w"); got != "EAGAIN" {
			return fmt.Errorf("a second lock: %s", got)
		}
		return nil
	})
	c.Fence(t, 1)
	two.ok("flock a w")
	two.ok("write a next!")
	two.ok("close a")
	_, err = unix.Pwrite(fd, []byte("lost"), 0)
	must(t, err)
	if err := unix.Close(fd); err != unix.EIO {
		t.Errorf("close of a file whose lock was lost: %v", err)
	}
	wantSoon(t, filepath.Join(b, "n"), "next!")
}

func wantSoon(t *testing.T, path, want string) {
	t.Helper()
	eventually(t, func() error {
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			return fmt.Errorf("%s: %q %w, want %q", path, got, err, want)
		}
		return nil
	})
}

// A program that has only read under a shared lock that was lost keeps nobody from writing.
func TestReaderWithoutItsClusterLockHoldsNobodyUp(t *testing.T) {
	c, a, b := pair(t, shareLocks)
	write(t, filepath.Join(a, "f"), []byte("x"))
	one, other := newLocker(t, a), newLocker(t, a)
	one.ok("open a f 0")
	one.ok("flock a r")
	c.Fence(t, 1)
	other.ok("open a f 2")
	other.ok("write a y")
	other.ok("close a")
	wantSoon(t, filepath.Join(b, "f"), "y")
}

// Locks are chosen again when a node has no mount any more.
func TestClusterLocksAreChosenAgain(t *testing.T) {
	c, a, b := pair(t, nil)
	write(t, filepath.Join(a, "f"), []byte("x"))
	for _, shared := range []bool{true, false, true} {
		for i := range 2 {
			c.Node(i + 1).Unmount(t)
		}
		change := func(o *fs.Options) { o.ClusterLocks = shared }
		a, b = c.Node(1).Mount(t, change), c.Node(2).Mount(t, change)
		var answers [2]error
		var files [2]*os.File
		for i, mnt := range []string{a, b} {
			f, err := os.Open(filepath.Join(mnt, "f"))
			if err != nil {
				t.Fatal(err)
			}
			files[i], answers[i] = f, unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		}
		if answers[0] != nil || (answers[1] != nil) != shared {
			t.Errorf("locks between nodes %v: %v", shared, answers)
		}
		for _, f := range files {
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// All mounts of a node have the same locks.
func TestClusterLocksOfAllMountsOfANode(t *testing.T) {
	c, a, _ := pair(t, shareLocks)
	write(t, filepath.Join(a, "f"), []byte("x"))
	more := c.Node(1).MountMore(t, shareLocks)
	one, two := newLocker(t, a), newLocker(t, more)
	one.ok("open a f 2")
	one.ok("flock a w")
	two.ok("open a f 2")
	if got := two.do("flock a w"); got == "ok" {
		t.Error("two mounts hold the lock")
	}
}
