package fs_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/fs/fstest"
	"golang.org/x/sys/unix"
)

// locker is another process that opens files and takes locks, one command at a time.
type locker struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	raw interface{ SetReadDeadline(time.Time) error }
	out *bufio.Reader
}

func newLocker(t testing.TB, dir string) *locker {
	t.Helper()
	cmd, in, out := talker(t, "lock", dir)
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return &locker{t, cmd, in, out.(*os.File), bufio.NewReader(out)}
}

// begin sends a command; answer waits for what became of it.
func (l *locker) begin(format string, args ...any) {
	l.t.Helper()
	if _, err := fmt.Fprintf(l.in, format+"\n", args...); err != nil {
		l.t.Fatal(err)
	}
}

func (l *locker) answer() string {
	l.t.Helper()
	must(l.t, l.raw.SetReadDeadline(time.Now().Add(time.Minute)))
	line, err := l.out.ReadString('\n')
	if err != nil {
		l.t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

func (l *locker) do(format string, args ...any) string {
	l.t.Helper()
	l.begin(format, args...)
	return l.answer()
}

// soon is do for a lock that another node's program has given up by a close: it is free a moment after that.
func (l *locker) soon(format string, args ...any) (got string) {
	l.t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		if got = l.do(format, args...); got != "EAGAIN" {
			break
		}
	}
	return got
}

// ok does what has to succeed.
func (l *locker) ok(format string, args ...any) {
	l.t.Helper()
	if got := l.do(format, args...); got != "ok" {
		l.t.Fatalf("%s: %s", fmt.Sprintf(format, args...), got)
	}
}

// runLocker is the other process.
func runLocker() int {
	files := map[string]int{}
	for in := bufio.NewReader(os.Stdin); ; {
		line, err := in.ReadString('\n')
		if err != nil {
			return 0
		}
		out, err := lockCommand(files, strings.Fields(line))
		var no syscall.Errno
		switch {
		case errors.As(err, &no):
			out = unix.ErrnoName(no)
		case err != nil:
			out = err.Error()
		case out == "":
			out = "ok"
		}
		fmt.Println(out)
	}
}

// lockCommand does one of: open FD PATH FLAGS, dup FD OLD, close FD, write FD TEXT, append FD TEXT, sync FD, cut FD,
// touch PATH, unlink PATH, rename FROM TO, flock FD MODE [wait], posix or ofd FD MODE FIRST LENGTH [wait], getposix or
// getofd FD MODE FIRST LENGTH; getofd with the mode u asks for what the open file has itself.
func lockCommand(files map[string]int, w []string) (out string, err error) {
	fd, isOpen := files[w[1]]
	if !isOpen {
		fd = -1
	}
	wait := w[len(w)-1] == "wait"
	switch w[0] {
	case "open":
		flags, _ := strconv.Atoi(w[3])
		fd, err = unix.Open(w[2], flags|unix.O_CLOEXEC, 0o644)
	case "dup":
		fd, err = unix.Dup(files[w[2]])
	case "close":
		delete(files, w[1])
		return "", unix.Close(fd)
	case "write":
		_, err = unix.Pwrite(fd, []byte(w[2]), 0)
		return "", err
	case "append":
		_, err = unix.Write(fd, []byte(w[2]))
		return "", err
	case "sync":
		return "", unix.Fsync(fd)
	case "touch":
		return "", os.Chtimes(w[1], time.Now(), time.Now())
	case "unlink":
		return "", unix.Unlink(w[1])
	case "cut":
		return "", unix.Ftruncate(fd, 3)
	case "rename":
		return "", unix.Rename(w[1], w[2])
	case "flock":
		how := map[string]int{"r": unix.LOCK_SH, "w": unix.LOCK_EX, "u": unix.LOCK_UN}[w[2]]
		if !wait {
			how |= unix.LOCK_NB
		}
		return "", unix.Flock(fd, how)
	default:
		return recordLock(w[0], fd, w[2:], wait)
	}
	if err == nil {
		files[w[1]] = fd
	}
	return "", err
}

func recordLock(what string, fd int, w []string, wait bool) (string, error) {
	first, _ := strconv.ParseInt(w[1], 10, 64)
	length, _ := strconv.ParseInt(w[2], 10, 64)
	lk := unix.Flock_t{
		Type:  map[string]int16{"r": unix.F_RDLCK, "w": unix.F_WRLCK, "u": unix.F_UNLCK}[w[0]],
		Start: first, Len: length,
	}
	cmd := map[string]int{
		"posix": unix.F_SETLK, "ofd": unix.F_OFD_SETLK, "getposix": unix.F_GETLK, "getofd": unix.F_OFD_GETLK,
	}[what]
	if wait {
		cmd++ // F_SETLKW, F_OFD_SETLKW
	}
	err := unix.FcntlFlock(uintptr(fd), cmd, &lk)
	if err == nil && strings.HasPrefix(what, "get") && lk.Type != unix.F_UNLCK {
		return fmt.Sprintf("%d %d %d", lk.Type, lk.Start, lk.Len), nil
	}
	return "", err
}

// twin does the same on the mount and on a local disk.
type twin struct {
	disk, mount *locker
	late        bool // the other processes are on another node, and this one hears of their changes a little later
	history     []string
}

func newTwin(t testing.TB, disk, mount string) *twin {
	return &twin{disk: newLocker(t, disk), mount: newLocker(t, mount)}
}

// newLateTwin is one of the processes of two nodes.
func newLateTwin(t testing.TB, disk, mount string) *twin {
	w := newTwin(t, disk, mount)
	w.late = true
	return w
}

// do compares what both answer.
func (w *twin) do(t testing.TB, history *[]string, who int, command string) {
	t.Helper()
	if w.late {
		w.doSoon(t, history, who, command)
		return
	}
	w.disk.begin("%s", command)
	w.mount.begin("%s", command)
	disk, mount := w.disk.answer(), w.mount.answer()
	*history = append(*history, fmt.Sprintf("process %d: %s: %s", who, command, disk))
	if disk != mount {
		t.Fatalf("%s\non the mount: %s", strings.Join(*history, "\n"), mount)
	}
}

// lockFiles are the files in which locks are compared: each with some bytes.
func lockFiles(t testing.TB, dirs ...string) {
	for _, dir := range dirs {
		for _, name := range []string{"f", "g"} {
			write(t, filepath.Join(dir, name), []byte("some bytes"))
		}
	}
}

// For each way to open a file first, each change to it, and each way to open it next: locks exclude each other as on a
// local disk, within a process and between two.
func TestLockMatrix(t *testing.T) {
	step := 1
	if testing.Short() {
		step = 6
	}
	eachLocks(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		disk := t.TempDir()
		one, two := newTwin(t, disk, a), newTwin(t, disk, a)
		lockCells(t, one, two, disk, a, step, func(middle string, cell int) {
			if middle == "elsewhere" {
				write(t, filepath.Join(b, "f"), []byte(fmt.Sprint("of another node ", cell)))
			}
		})
	})
}

// lockCells goes through the matrix, of which it takes every step-th cell. In the middle of each it calls after.
func lockCells(t *testing.T, one, two *twin, disk, mnt string, step int, after func(middle string, cell int)) {
	t.Helper()
	for middle, script := range map[string]string{
		"nothing": "", "write": "open m f 1|write m other|close m", "cut": "open m f 2|cut m|close m",
		"truncate": "open m f 513|write m new|close m", "read": "open m f 0|close m",
		"replace and back": "rename f h|rename h f", "other name": "rename f h|open m h 1|write m x|close m|rename h f",
		"elsewhere": "", "touch": "touch f", "append": "open m f 1025|append m x|close m",
		"another file": "unlink f|open m f 65|write m new|close m",
	} {
		for _, kind := range []string{"flock", "posix", "ofd"} {
			for cell := rand.IntN(step); cell < 36; cell += step {
				lockCell(t, one, two, disk, mnt, func() {
					for _, step := range strings.FieldsFunc(script, func(r rune) bool { return r == '|' }) {
						two.do(t, &one.history, 2, step)
					}
					after(middle, cell)
				}, kind, cell)
			}
		}
	}
}

// lockCell is one combination of how two open a file and lock it.
func lockCell(t *testing.T, one, two *twin, disk, mnt string, between func(), kind string, cell int) {
	t.Helper()
	modes := []string{"r", "w"}
	opens := []int{unix.O_RDONLY, unix.O_WRONLY, unix.O_RDWR}
	lockFiles(t, disk, mnt)
	one.history = []string{fmt.Sprintf("kind %s, cell %d", kind, cell)}
	lock := func(w *twin, who int, fd, mode string) {
		args := ""
		if kind != "flock" {
			args = " 0 0"
		}
		w.do(t, &one.history, who, fmt.Sprintf("%s %s %s%s", kind, fd, mode, args))
	}
	one.do(t, &one.history, 1, fmt.Sprintf("open a f %d", opens[cell%3]))
	lock(one, 1, "a", modes[cell/3%2])
	between()
	for who, w := range []*twin{one, two} {
		w.do(t, &one.history, who+1, fmt.Sprintf("open b f %d", opens[cell/6%3]))
		lock(w, who+1, "b", modes[cell/18%2])
	}
	two.do(t, &one.history, 2, "close b")
	one.do(t, &one.history, 1, "close a")
	lock(one, 1, "b", "w")
	one.do(t, &one.history, 1, "close b")
}

// Three processes open, close, write and rename two files and take locks, as it comes: what they get is what they get
// on a local disk.
func TestLocksAsOnADisk(t *testing.T) {
	steps := 1500
	if testing.Short() {
		steps = 400
	}
	eachLocks(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		disk := t.TempDir()
		lockFiles(t, disk, a)
		var all [3]*twin
		for i := range all {
			all[i] = newTwin(t, disk, a)
		}
		for _, name := range []string{"f", "g"} { // else the kernel need not report the closes of readers
			l := newLocker(t, a)
			l.ok("open %s %s 0", name, name)
			l.ok("flock %s r", name)
			l.ok("close %s", name)
		}
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		r := rand.New(rand.NewPCG(seed, 0))
		var history []string
		open := map[string]bool{}
		for range steps {
			who := r.IntN(len(all))
			command := drawLockCommand(r, open, who)
			if command == "elsewhere" {
				writeOver(t, filepath.Join(b, "f"), fmt.Sprint("of another node ", r.Uint32()))
				continue
			}
			all[who].do(t, &history, who, command)
		}
	})
}

// writeOver changes a file, if it is there.
func writeOver(t testing.TB, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	must(t, err)
	_, err = f.WriteString(text)
	must(t, errors.Join(err, f.Close()))
}

// drawLockCommand draws what a process does next; open are the descriptors that are open in each.
func drawLockCommand(r *rand.Rand, open map[string]bool, who int) string {
	fd := string("abc"[r.IntN(3)])
	key := fmt.Sprint(who, fd)
	if !open[key] {
		open[key] = true
		return fmt.Sprintf("open %s %s %d", fd, string("fg"[r.IntN(2)]), []int{0, 1, 2, 2, 513, 1025}[r.IntN(6)])
	}
	mode := string("rwu"[r.IntN(3)])
	from, length := r.IntN(12), r.IntN(5)
	switch r.IntN(16) {
	case 0, 1:
		delete(open, key)
		return "close " + fd
	case 2:
		return fmt.Sprintf("write %s text%d", fd, r.IntN(100))
	case 3:
		return "cut " + fd
	case 4:
		return "rename f f2"
	case 5:
		return "rename f2 f"
	case 6:
		return "elsewhere"
	case 7, 8, 9:
		return fmt.Sprintf("flock %s %s", fd, mode)
	case 10:
		return fmt.Sprintf("getposix %s %s %d %d", fd, string("rw"[r.IntN(2)]), from, length)
	case 11:
		return fmt.Sprintf("getofd %s %s %d %d", fd, mode, from, length)
	case 12, 13:
		return fmt.Sprintf("posix %s %s %d %d", fd, mode, from, length)
	}
	return fmt.Sprintf("ofd %s %s %d %d", fd, mode, from, length)
}

// stillWaits fails if a lock was granted already.
func stillWaits(t testing.TB, l *locker) {
	t.Helper()
	if l.out.Buffered() > 0 {
		t.Errorf("it does not wait: %s", l.answer())
	}
}

func TestLockWaits(t *testing.T) {
	eachMode(t, func(t *testing.T, n *fstest.Node, mnt string) {
		lockFiles(t, mnt)
		a, b, c := newLocker(t, mnt), newLocker(t, mnt), newLocker(t, mnt)
		for _, l := range []*locker{a, b, c} {
			l.ok("open f f 2")
			l.ok("open g g 2")
		}
		for _, kind := range []string{"flock f w", "posix f w 0 0", "ofd f w 5 1"} {
			a.ok("%s", kind)
			b.begin("%s wait", kind)
			if got := c.do("%s", kind); got != "EAGAIN" {
				t.Errorf("%s: %s", kind, got)
			}
			stillWaits(t, b)
			a.ok("close f") // and what it holds is free
			if got := b.answer(); got != "ok" {
				t.Errorf("%s after the close of its holder: %s", kind, got)
			}
			must(t, b.cmd.Process.Kill())
			_ = b.cmd.Wait()
			c.ok("%s", kind) // its holder was killed
			c.ok("%s", strings.Replace(kind, " w", " u", 1))
			b = newLocker(t, mnt)
			b.ok("open f f 2")
			b.ok("open g g 2")
			a.ok("open f f 2")
		}
		t.Run("deadlock", func(t *testing.T) {
			a.ok("posix f w 0 1")
			b.ok("posix g w 0 1")
			answers := make(chan string, 2)
			a.begin("posix g w 0 1 wait")
			b.begin("posix f w 0 1 wait")
			go func() { answers <- "a " + a.answer() }()
			go func() { answers <- "b " + b.answer() }()
			switch first := <-answers; first {
			case "a EDEADLK":
				a.ok("posix f u 0 1")
			case "b EDEADLK":
				b.ok("posix g u 0 1")
			default:
				t.Fatalf("of two that wait for each other one got %s", first)
			}
			if second := <-answers; !strings.HasSuffix(second, "ok") {
				t.Error(second)
			}
			b.ok("posix f u 0 1")
			a.ok("posix f w 0 1")
		})
		t.Run("killed", func(t *testing.T) {
			b.begin("posix f w 0 1 wait")
			must(t, b.cmd.Process.Kill())
			_ = b.cmd.Wait()
			a.ok("posix f u 0 1")
			c.ok("posix f w 0 1")
		})
	})
}

// After a holder of a lock has closed the file, the lock is free for the next program that asks without waiting, each
// time, although the kernel reports the last close later.
func TestClosedLockIsFree(t *testing.T) {
	eachMode(t, func(t *testing.T, n *fstest.Node, mnt string) {
		lockFiles(t, mnt)
		a, b := newLocker(t, mnt), newLocker(t, mnt)
		for i := range 300 {
			kind := []string{"flock f w", "ofd f w 0 0"}[i%2]
			flags := []int{unix.O_RDWR, unix.O_WRONLY, unix.O_RDWR | unix.O_TRUNC}[i%3]
			a.ok("open f f %d", flags)
			a.ok("%s", kind)
			a.ok("close f")
			b.ok("open f f %d", flags)
			b.ok("%s", kind)
			b.ok("close f")
		}
	})
}

// A descriptor that was closed while the open file has another one gives no flock back.
func TestFlockOutlivesADup(t *testing.T) {
	eachMode(t, func(t *testing.T, n *fstest.Node, mnt string) {
		lockFiles(t, mnt)
		a, b := newLocker(t, mnt), newLocker(t, mnt)
		a.ok("open f f 2")
		a.ok("dup d f")
		a.ok("flock f w")
		a.ok("posix f w 0 1")
		a.ok("close d")
		b.ok("open f f 0")
		if got := b.do("flock f r"); got != "EAGAIN" {
			t.Errorf("flock: %s", got)
		}
		b.ok("posix f r 0 1") // POSIX: gone with the first descriptor that was closed
	})
}

// Locks hold between the mounts of a node, and go with the mount.
func TestLocksHoldBetweenMounts(t *testing.T) {
	n := fstest.New(t, 1).Node(1)
	first, second := n.Mount(t, nil), n.MountMore(t, nil)
	lockFiles(t, first)
	a, b := newLocker(t, first), newLocker(t, second)
	a.ok("open f f 2")
	b.ok("open f f 2")
	for _, kind := range []string{"flock f w", "posix f w 0 0", "ofd f w 5 1"} {
		a.ok("%s", kind)
		if got := b.do("%s", kind); got != "EAGAIN" {
			t.Errorf("%s: %s", kind, got)
		}
		a.ok("%s", strings.Replace(kind, " w", " u", 1))
		b.ok("%s", kind)
		b.ok("%s", strings.Replace(kind, " w", " u", 1))
	}
	a.ok("posix f w 0 0")
	b.begin("posix f w 0 0 wait")
	must(t, a.cmd.Process.Kill())
	_ = a.cmd.Wait()
	if got := b.answer(); got != "ok" {
		t.Error(got)
	}
}

// Shells of two mounts of a node count under a lock: each of them sees what the one before it has written.
func TestFlockGuardsACounter(t *testing.T) {
	skipWithout(t, "flock")
	const shells, times = 6, 15
	n := fstest.New(t, 1).Node(1)
	mounts := []string{n.Mount(t, nil), n.MountMore(t, nil)}
	write(t, filepath.Join(mounts[0], "count"), []byte("0\n"))
	var running sync.WaitGroup
	for i := range shells {
		running.Go(func() {
			cmd := shellIn(t.Context(), mounts[i%2], "-euc", fmt.Sprintf(
				`i=0; while [ $i -lt %d ]; do flock guard sh -euc 'read n < count; echo $((n+1)) > count'; i=$((i+1)); done`, times))
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	running.Wait()
	wantBytes(t, filepath.Join(mounts[1], "count"), fmt.Appendln(nil, shells*times))
}

// What a mount held is free for the other ones when it is cut off.
func TestEndOfAMountGivesItsLocksBack(t *testing.T) {
	n := fstest.New(t, 1).Node(1)
	m, second := n.MountAt(t, t.TempDir(), nil), n.MountMore(t, nil)
	lockFiles(t, second)
	a, b := newLocker(t, m.Dir()), newLocker(t, second)
	a.ok("open f f 2")
	a.ok("flock f w")
	a.ok("posix f w 0 0")
	b.ok("open f f 2")
	b.begin("flock f w wait")
	ctx, stop := context.WithTimeout(context.Background(), 30*time.Second)
	defer stop()
	must(t, m.Detach(ctx))
	if got := b.answer(); got != "ok" {
		t.Error(got)
	}
	b.ok("posix f w 0 0")
}

// A file without a name that gets one keeps its locks.
func TestLockOfATmpfileStaysWhenItGetsAName(t *testing.T) {
	eachMode(t, func(t *testing.T, n *fstest.Node, mnt string) {
		fd, err := unix.Open(mnt, unix.O_TMPFILE|unix.O_RDWR, 0o644)
		must(t, err)
		defer unix.Close(fd)
		must(t, unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB))
		must(t, unix.Linkat(unix.AT_FDCWD, fmt.Sprint("/proc/self/fd/", fd), unix.AT_FDCWD, filepath.Join(mnt, "named"),
			unix.AT_SYMLINK_FOLLOW))
		l := newLocker(t, mnt)
		l.ok("open f named 0")
		if got := l.do("flock f r"); got != "EAGAIN" {
			t.Errorf("a lock of a file that got a name: %s", got)
		}
		must(t, unix.Flock(fd, unix.LOCK_UN))
		l.ok("flock f r")
	})
}

// A request that waits ends when the mount is cut off.
func TestMountThatIsCutOffEndsWaitsForLocks(t *testing.T) {
	n := fstest.New(t, 1).Node(1)
	m := n.MountAt(t, t.TempDir(), nil)
	lockFiles(t, m.Dir())
	a, b := newLocker(t, m.Dir()), newLocker(t, m.Dir())
	for _, l := range []*locker{a, b} {
		l.ok("open f f 0")
	}
	a.ok("flock f w")
	b.begin("flock f w wait")
	ended := make(chan string, 1)
	go func() { ended <- b.answer() }()
	ctx, stop := context.WithTimeout(context.Background(), 30*time.Second)
	defer stop()
	must(t, m.Detach(ctx))
	select {
	case got := <-ended:
		if got == "ok" {
			t.Error("it was granted")
		}
	case <-ctx.Done():
		t.Fatal("it still waits")
	}
}

// A fence freed the name of a new file that programs have open by two mounts of the node. One of them reserves the name
// again, and has another file from then on: what the other one locked stays with its own, and goes when it is closed.
func TestLocksOfANewFileThatAFenceParts(t *testing.T) {
	c := fstest.New(t, 1)
	n := c.Node(1)
	first, second := n.Mount(t, nil), n.MountMore(t, nil)
	path := filepath.Join(first, "f")
	inode := func() uint64 {
		st, err := os.Stat(path)
		if err != nil {
			return 0
		}
		return st.Sys().(*syscall.Stat_t).Ino
	}
	a, b, later := newLocker(t, first), newLocker(t, second), newLocker(t, first)
	for _, kind := range [][3]string{
		{"flock f r", "flock f r", "flock f w"},
		{"posix f w 0 1", "posix f w 1 1", "posix f w 0 0"},
		{"ofd f w 0 1", "ofd f w 1 1", "ofd f w 0 0"},
	} {
		a.ok("open f f %d", unix.O_RDWR|unix.O_CREAT)
		b.ok("open f f %d", unix.O_RDWR)
		a.ok("%s", kind[0])
		b.ok("%s", kind[1])
		before := inode()
		c.Fence(t, 1)
		eventually(t, func() error {
			if now := inode(); now == 0 || now == before {
				return fmt.Errorf("inode %d is %d now", before, now)
			}
			return nil
		})
		_, _ = a.do("close f"), b.do("close f") // EEXIST for one: its name is another one's now
		later.ok("open f f 2")
		later.ok("%s", kind[2])
		later.ok("close f")
		must(t, os.Remove(path))
	}
}

// Files without a name of two mounts of a node are different files, whose locks have nothing to do with each other.
func TestLocksOfTmpfilesOfTwoMounts(t *testing.T) {
	n := fstest.New(t, 1).Node(1)
	for _, mnt := range []string{n.Mount(t, nil), n.MountMore(t, nil)} {
		fd, err := unix.Open(mnt, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o644)
		must(t, err)
		defer unix.Close(fd)
		if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
			t.Errorf("flock of a file that nobody else has: %v", err)
		}
	}
}
