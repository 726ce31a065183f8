package fs_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/fs/fstest"
	"github.com/rdmcfs/rdmcfs/replicate"
	"golang.org/x/sys/unix"
)

// shell runs a script in a directory of the mount.
func shell(t testing.TB, dir, script string) string {
	t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), 2*time.Minute)
	defer stop()
	cmd := shellIn(ctx, dir, "-euc", script)
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return string(out)
}

// shellIn is a shell in a directory of a mount. Dir of [exec.Cmd] is not for that: until the child is in its directory,
// a processor of the runtime stands still, and the daemon, which has to answer the child, is in this process.
func shellIn(ctx context.Context, dir string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "sh", append([]string{"-c", `cd "$0" && exec sh "$@"`, dir}, args...)...)
}

func TestCommandsShareOneOutput(t *testing.T) {
	eachMode(t, func(t *testing.T, n *fstest.Node, mnt string) {
		shell(t, mnt, "(echo a; /bin/echo b; /bin/echo c) > f")
		wantBytes(t, filepath.Join(mnt, "f"), []byte("a\nb\nc\n"))
		if got := n.Publishes.Load(); got > 5 {
			t.Errorf("%d publishes", got)
		}
	})
}

func TestFourAppenders(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		out := shell(t, a,
			`for w in 1 2 3 4; do (i=0; while [ $i -lt 50 ]; do echo "writer $w line $i" >> log; i=$((i+1)); done) & done; wait; echo end`)
		if out != "end\n" {
			t.Errorf("the shells said %q", out)
		}
		for _, mnt := range []string{a, b} {
			seen := map[string]int{}
			for _, line := range lines(t, filepath.Join(mnt, "log")) {
				seen[line]++
			}
			for w := 1; w <= 4; w++ {
				for i := range 50 {
					if line := fmt.Sprintf("writer %d line %d", w, i); seen[line] != 1 {
						t.Fatalf("%s: %q %d times", mnt, line, seen[line])
					}
				}
			}
		}
	})
}

// Nobody is sent away, however many open and close one file: the kernel tries an open again once only.
func TestAppendersAndAReader(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		out := shell(t, a, `echo >log
			for w in 1 2 3 4; do (i=0; while [ $i -lt 100 ]; do echo "writer $w line $i" >>log || echo append; i=$((i+1)); done) & done
			(i=0; while [ $i -lt 150 ]; do cat log >/dev/null || echo read; i=$((i+1)); done) &
			wait; wc -l <log`)
		if out != "401\n" {
			t.Errorf("the shells said %q", out)
		}
	})
}

func lines(t testing.TB, path string) []string {
	t.Helper()
	raw, err := os.ReadFile(path)
	must(t, err)
	var out []string
	for s := bufio.NewScanner(bytes.NewReader(raw)); s.Scan(); {
		out = append(out, s.Text())
	}
	return out
}

func TestManyChildrenOneLog(t *testing.T) {
	children := 500
	if testing.Short() {
		children = 50
	}
	eachMode(t, func(t *testing.T, n *fstest.Node, mnt string) {
		shell(t, mnt, fmt.Sprintf("i=0; while [ $i -lt %d ]; do (echo $i); i=$((i+1)); done > log; echo done >> log",
			children))
		if got := lines(t, filepath.Join(mnt, "log")); len(got) != children+1 {
			t.Errorf("%d lines, want %d", len(got), children+1)
		}
		if got := n.Publishes.Load(); got > int64(children)+3 {
			t.Errorf("%d publishes for %d children", got, children)
		}
	})
}

// child runs this test program as another process that opens a file, writes to it and does what the mode says. It
// returns once the bytes are written.
func child(t testing.TB, mode, path string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childMode+"="+mode, childPath+"="+path)
	cmd.Stderr = os.Stderr
	ready, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	if _, err := bufio.NewReader(ready).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	return cmd
}

const (
	childMode = "RDMCFS_TEST_CHILD"
	childPath = "RDMCFS_TEST_PATH"
	childDir  = "RDMCFS_TEST_DIR" // to work in; "" for the parent's
)

// mapper is another process that stores through mappings. A page fault on a mount of this very process could wait for
// itself.
type mapper struct {
	in  io.WriteCloser
	out *bufio.Reader
}

// talker runs this test program as another process, in a directory, which reads commands and answers them.
func talker(t testing.TB, mode, dir string) (cmd *exec.Cmd, in io.WriteCloser, out io.ReadCloser) {
	t.Helper()
	cmd = exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childMode+"="+mode, childDir+"="+dir)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err = cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	return cmd, in, out
}

func newMapper(t testing.TB) *mapper {
	t.Helper()
	cmd, in, out := talker(t, "map", "")
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("mapping process: %v", err)
		}
	})
	return &mapper{in, bufio.NewReader(out)}
}

// do maps a file, closes it, stores data at an offset, and unmaps it if unmap is set. It returns the bytes that were
// there.
func (m *mapper) do(t testing.TB, path string, off int, data []byte, unmap bool) []byte {
	t.Helper()
	if _, err := fmt.Fprintf(m.in, "%d %x %t %s\n", off, data, unmap, path); err != nil {
		t.Fatal(err)
	}
	line, err := m.out.ReadString('\n')
	must(t, err)
	was, err := hex.DecodeString(strings.TrimSpace(line))
	if err != nil {
		t.Fatalf("mapping process: %s", line)
	}
	return was
}

func runMapper() int {
	for in := bufio.NewReader(os.Stdin); ; {
		line, err := in.ReadString('\n')
		if err != nil {
			return 0
		}
		var off int
		var data []byte
		var unmap bool
		var path string
		if _, err := fmt.Sscanf(line, "%d %x %t %s", &off, &data, &unmap, &path); err != nil {
			fmt.Println("error", err)
			continue
		}
		was, err := mapStore(path, off, data, unmap)
		if err != nil {
			fmt.Println("error", err)
			continue
		}
		fmt.Printf("%x\n", was)
	}
}

func mapStore(path string, off int, data []byte, unmap bool) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	mem, err := unix.Mmap(fd, 0, off+len(data), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err := errors.Join(err, unix.Close(fd)); err != nil {
		return nil, err
	}
	was := append([]byte(nil), mem[off:off+len(data)]...)
	copy(mem[off:], data)
	if unmap {
		return was, unix.Munmap(mem)
	}
	return was, nil
}

// viewer is another process that has a file open for reading, and mapped.
type viewer struct {
	in  io.Writer
	out *bufio.Reader
}

func newViewer(t testing.TB, path string, size int) *viewer {
	t.Helper()
	cmd, in, out := talker(t, "view", "")
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("mapping process: %v", err)
		}
	})
	_, err := fmt.Fprintf(in, "%d %s\n", size, path)
	must(t, err)
	return &viewer{in, bufio.NewReader(out)}
}

// load returns the bytes of the mapping.
func (v *viewer) load(t testing.TB) []byte {
	t.Helper()
	_, err := fmt.Fprintln(v.in)
	must(t, err)
	line, err := v.out.ReadString('\n')
	must(t, err)
	p, err := hex.DecodeString(strings.TrimSpace(line))
	if err != nil {
		t.Fatalf("mapping process: %s", line)
	}
	return p
}

func runViewer() int {
	var size int
	var path string
	in := bufio.NewReader(os.Stdin)
	_, err := fmt.Fscanf(in, "%d %s\n", &size, &path)
	f, openErr := os.Open(path)
	if err = errors.Join(err, openErr); err != nil {
		fmt.Println(err)
		return 1
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	for {
		if _, err := in.ReadString('\n'); err != nil {
			return 0
		}
		fmt.Printf("%x\n", mem)
	}
}

// runChild is what the other process does.
func runChild(mode, path string) int {
	if dir := os.Getenv(childDir); dir != "" {
		if err := os.Chdir(dir); err != nil {
			fmt.Println(err)
			return 1
		}
	}
	if mode == "lock" {
		return runLocker()
	}
	if mode == "map" {
		return runMapper()
	}
	if mode == "view" {
		return runViewer()
	}
	if mode == "part" {
		return runPartner()
	}
	if mode == "descriptors" {
		return runManyDescriptors(path)
	}
	flags := os.O_CREATE | os.O_RDWR | os.O_TRUNC
	if mode == "tmpfile" {
		flags = unix.O_TMPFILE | os.O_RDWR
	}
	f, err := os.OpenFile(path, flags, 0o644)
	if err == nil {
		_, err = f.WriteString("written by a child")
	}
	fmt.Println("ready", err)
	if mode == "wait" || mode == "tmpfile" {
		time.Sleep(time.Minute) // tidy: until it is killed
	}
	return 0 // with the file open, and several threads
}

// TestKilledWriterOfATmpfile: a file without a name goes with the process that had it open.
func TestKilledWriterOfATmpfile(t *testing.T) {
	eachMode(t, func(t *testing.T, n *fstest.Node, mnt string) {
		cmd := child(t, "tmpfile", mnt)
		must(t, cmd.Process.Kill())
		_ = cmd.Wait()
		idle(t, n)
	})
}

func TestKilledWriterPublishesNothing(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		write(t, filepath.Join(a, "old"), []byte("whole"))
		for _, name := range []string{"new", "old"} {
			cmd := child(t, "wait", filepath.Join(a, name))
			before := c.Node(1).Publishes.Load()
			must(t, cmd.Process.Kill())
			_ = cmd.Wait()
			if got := c.Node(1).Publishes.Load(); got != before {
				t.Errorf("%s: %d publishes by a killed process", name, got-before)
			}
		}
		eventually(t, func() error {
			list, err := c.Node(1).Store().Stagings()
			if err != nil || len(list) != 2 || list[0].Reason == "" || list[1].Reason == "" {
				return fmt.Errorf("unpublished: %+v %v", list, err)
			}
			for _, mnt := range []string{a, b} {
				if _, err := os.Stat(filepath.Join(mnt, "new")); !os.IsNotExist(err) {
					return fmt.Errorf("%s: a file of a killed writer: %v", mnt, err)
				}
			}
			return nil
		})
		wantBytes(t, filepath.Join(a, "old"), []byte("whole"))
		wantBytes(t, filepath.Join(b, "old"), []byte("whole"))
	})
}

func TestExitOfManyThreadsStillPublishes(t *testing.T) {
	eachMode(t, func(t *testing.T, n *fstest.Node, mnt string) {
		for i := range 10 {
			path := filepath.Join(mnt, fmt.Sprint("f", i))
			must(t, child(t, "exit", path).Wait())
			wantBytes(t, path, []byte("written by a child"))
		}
	})
}

func TestDupOfAnEmptyFileWaits(t *testing.T) {
	skipWithout(t, "dd")
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		shell(t, a, "dd if=/dev/zero of=f bs=1000 count=3 2>/dev/null; touch empty; : > none")
		if got := c.Node(1).Publishes.Load(); got != 3 {
			t.Errorf("%d publishes of three files", got)
		}
		wantBytes(t, filepath.Join(b, "f"), make([]byte, 3000))
		wantBytes(t, filepath.Join(b, "empty"), nil)
		wantBytes(t, filepath.Join(b, "none"), nil)
	})
}

func TestExitWithoutCloseStillPublishes(t *testing.T) {
	eachMode(t, func(t *testing.T, n *fstest.Node, mnt string) {
		shell(t, mnt, "sh -c 'exec > f; echo whole; exit 3' || true")
		wantBytes(t, filepath.Join(mnt, "f"), []byte("whole\n"))
	})
}

// A process that execs with a changed file open for writing closes it (O_CLOEXEC) under a lock that /proc takes too.
func TestExecClosesAChangedFile(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		f, err := os.Create(filepath.Join(a, "f"))
		must(t, err)
		_, err = f.WriteString("written before")
		must(t, err)
		ctx, stop := context.WithTimeout(context.Background(), 20*time.Second)
		defer stop()
		began := time.Now()
		if err := exec.CommandContext(ctx, "true").Run(); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("execve took %v", took)
		}
		must(t, f.Close())
		wantBytes(t, filepath.Join(b, "f"), []byte("written before"))
	})
}

func TestSignalsDoNotBreakClose(t *testing.T) {
	eachMode(t, func(t *testing.T, n *fstest.Node, mnt string) {
		slow := make(chan struct{})
		n.Before(func(context.Context, replicate.Push) error { <-slow; return nil })
		signals := make(chan os.Signal, 100)
		signal.Notify(signals, syscall.SIGALRM)
		defer signal.Stop(signals)
		f, err := os.Create(filepath.Join(mnt, "f"))
		must(t, err)
		_, err = f.WriteString("x")
		must(t, err)
		closed := make(chan error)
		go func() { closed <- f.Close() }()
		for range 20 {
			must(t, syscall.Kill(os.Getpid(), syscall.SIGALRM))
			<-signals
		}
		close(slow)
		must(t, <-closed)
		wantBytes(t, filepath.Join(mnt, "f"), []byte("x"))
	})
}

func TestKillInsideCloseReturnsSoon(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		slow, entered := make(chan struct{}), make(chan struct{}, 10)
		c.Node(1).Before(func(context.Context, replicate.Push) error {
			entered <- struct{}{}
			<-slow
			return nil
		})
		cmd := exec.Command("cp", "/etc/passwd", filepath.Join(a, "f"))
		must(t, cmd.Start())
		<-entered
		began := time.Now()
		must(t, cmd.Process.Kill())
		if err := cmd.Wait(); err == nil {
			t.Error("a killed cp exits 0")
		}
		if took := time.Since(began); took > 10*time.Second { // its close would never end
			t.Errorf("killed cp took %v to go", took)
		}
		close(slow)
		want, err := os.ReadFile("/etc/passwd")
		must(t, err)
		eventually(t, func() error { // whole or not at all; here the publish goes on
			got, err := os.ReadFile(filepath.Join(b, "f"))
			if err != nil || !bytes.Equal(got, want) {
				return fmt.Errorf("%d bytes, %v", len(got), err)
			}
			return nil
		})
	})
}

func TestMountAfterDaemonDeath(t *testing.T) {
	n := fstest.New(t, 1).Node(1)
	dir := t.TempDir()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	must(t, err)
	must(t, unix.Mount("dead", dir, "fuse.rdmcfs", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)))
	must(t, unix.Close(fd)) // what a kill -9 of the daemon does
	if _, err := os.Stat(dir); !isErrno(err, syscall.ENOTCONN) {
		t.Fatalf("stat of a dead mount: %v", err)
	}
	m := n.MountAt(t, dir, nil)
	write(t, filepath.Join(m.Dir(), "f"), []byte("x"))
}

func TestGit(t *testing.T) {
	skipWithout(t, "git")
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		shell(t, a, `
export HOME=$PWD GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
git init -q repo; cd repo
for i in 1 2 3 4 5 6 7 8 9 10; do echo $i > f$i; git add f$i; git commit -qm $i; done
git gc -q; git fsck --strict; cd ..; git clone -q repo copy; cd copy; git fsck --strict; test $(git log --oneline | wc -l) = 10`)
		shell(t, b,
			`git -c safe.directory='*' -C copy fsck --strict; test "$(git -c safe.directory='*' -C copy status --porcelain)" = ""`)
	})
}

func TestSqlite(t *testing.T) {
	skipWithout(t, "sqlite3")
	transactions := 100
	if testing.Short() {
		transactions = 20
	}
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		shell(t, a, "sqlite3 db 'create table t(w, i)'")
		shell(t, a, fmt.Sprintf(`
for w in 1 2; do
  (i=0; while [ $i -lt %d ]; do echo "insert into t values($w, $i);"; i=$((i+1)); done | sqlite3 -cmd '.timeout 60000' db) &
done; wait`, transactions))
		for _, mnt := range []string{a, b} {
			out := shell(t, mnt, "sqlite3 db 'pragma integrity_check; select count(*) from t'")
			if want := fmt.Sprintf("ok\n%d\n", 2*transactions); out != want {
				t.Errorf("%s: %q, want %q", mnt, out, want)
			}
		}
	})
}

func TestTarAndRsync(t *testing.T) {
	skipWithout(t, "tar")
	src := t.TempDir()
	shell(t, src,
		`mkdir -p d/e; for i in 1 2 3; do head -c ${i}0000 /dev/urandom > d/f$i; done; ln d/f1 d/e/hard; ln -s ../f2 d/e/soft; mkfifo d/pipe; chmod 640 d/f3`)
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		shell(t, a, "tar c --format=pax -C "+src+" . | tar xp")
		want := shell(t, src, listing)
		for _, mnt := range []string{a, b} {
			if got := shell(t, mnt, listing); got != want {
				t.Errorf("%s:\n%s\nwant\n%s", mnt, got, want)
			}
		}
		if _, err := exec.LookPath("rsync"); err == nil {
			out := shell(t, a, "rsync -aHi "+src+"/ ./ | grep -v '/$' || true")
			if strings.TrimSpace(out) != "" {
				t.Errorf("rsync moves what is there: %s", out)
			}
		}
	})
}

const listing = `find . -mindepth 1 ! -type d -printf '%p %y %m %s %T@ %n %l\n' | sort; find . -type f | sort | xargs sha256sum`
