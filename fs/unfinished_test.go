package fs_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/fs/fstest"
	"github.com/rdmcfs/rdmcfs/internal/content"
)

// piped starts a script that gets its input from the test.
func piped(t *testing.T, dir, script string) (*exec.Cmd, io.WriteCloser) {
	t.Helper()
	cmd := shellIn(t.Context(), dir, "-euc", script)
	in, err := cmd.StdinPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd, in
}

func awaitSize(t *testing.T, path string, size int64) {
	t.Helper()
	eventually(t, func() error {
		st, err := os.Stat(path)
		if err != nil || st.Size() != size {
			return fmt.Errorf("%v %v, want %d bytes", st, err, size)
		}
		return nil
	})
}

// overwrites are ways to write over a file in which a descriptor is closed long before the file is finished.
var overwrites = map[string]string{
	"dd":       "exec dd of=f bs=4 2>/dev/null",
	"redirect": "exec cat > f",
	"shell":    "exec > f; read -r line; printf %s \"$line\"; /bin/true; (exit 0); read -r line; printf %s \"$line\"",
}

// An overwrite shows nothing on any node before it is finished, however many descriptors of the file are closed
// meanwhile.
func TestG1UnfinishedOverwriteIsShownToNobody(t *testing.T) {
	skipWithout(t, "dd")
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		for name, script := range overwrites {
			write(t, filepath.Join(a, "f"), []byte("the old version"))
			before := c.Node(1).Publishes.Load()
			cmd, in := piped(t, a, script)
			_, err := io.WriteString(in, "half\n")
			must(t, err)
			want := "half\nhole\n"
			if name == "shell" {
				want = "halfhole"
			}
			awaitSize(t, filepath.Join(a, "f"), int64(len(want)/2))
			wantBytes(t, filepath.Join(b, "f"), []byte("the old version"))
			_, err = io.WriteString(in, "hole\n")
			must(t, err)
			must(t, in.Close())
			must(t, cmd.Wait())
			wantBytes(t, filepath.Join(b, "f"), []byte(want))
			if got := c.Node(1).Publishes.Load() - before; got != 1 {
				t.Errorf("%s: %d publishes of one overwrite", name, got)
			}
		}
	})
}

// An overwrite shows nothing unfinished, although a look at what its program has open takes long, as it does on a busy
// machine.
func TestG1UnfinishedOverwriteByAProgramWithManyDescriptors(t *testing.T) {
	c, a, b := pair(t, nil)
	write(t, filepath.Join(a, "f"), []byte("the old version"))
	before := c.Node(1).Publishes.Load()
	cmd := child(t, "descriptors", filepath.Join(a, "f"))
	if got := c.Node(1).Publishes.Load() - before; got != 0 {
		t.Errorf("%d publishes while the file is open", got)
	}
	wantBytes(t, filepath.Join(b, "f"), []byte("the old version"))
	must(t, cmd.Process.Kill())
	_ = cmd.Wait()
}

// runManyDescriptors cuts a file and closes one of two descriptors of it, as a shell does for its output. It has many
// descriptors whose text in /proc is long: they take a tenth of a second to read.
func runManyDescriptors(path string) int {
	const pollers, polled = 48, 2000
	err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 2 * polled, Max: 2 * polled})
	event, eventErr := unix.Eventfd(0, 0)
	for range polled {
		fd, dupErr := unix.FcntlInt(uintptr(event), unix.F_DUPFD, polled/2)
		err = errors.Join(err, dupErr)
		event = fd
	}
	for range pollers {
		poller, pollErr := unix.EpollCreate1(0)
		err = errors.Join(err, pollErr)
		for fd := polled / 2; fd <= event; fd++ {
			err = errors.Join(err, unix.EpollCtl(poller, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Fd: int32(fd)}))
		}
	}
	fd, openErr := unix.Open(path, unix.O_WRONLY|unix.O_TRUNC, 0)
	_, dupErr := unix.Dup(fd)
	fmt.Println("ready", errors.Join(err, eventErr, openErr, dupErr, unix.Close(fd)))
	time.Sleep(time.Minute) // tidy: until it is killed
	return 0
}

// A program that starts another one, which closes a file on exec, does not wait for a look at that one's descriptors.
func TestExecThatClosesAFileIsNotHeldUp(t *testing.T) {
	_, a, _ := pair(t, nil)
	f, err := os.Create(filepath.Join(a, "f")) // is closed on exec
	must(t, err)
	least := time.Hour
	for range 3 {
		began := time.Now()
		must(t, exec.Command("true").Run())
		least = min(least, time.Since(began))
	}
	if least > time.Second {
		t.Errorf("an exec takes %v", least)
	}
	must(t, f.Close())
}

// An overwrite whose program is killed leaves the old version, and what was written is listed.
func TestG1KilledOverwriteLeavesTheOldVersion(t *testing.T) {
	skipWithout(t, "dd")
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		for i, script := range []string{overwrites["dd"], overwrites["redirect"]} {
			write(t, filepath.Join(a, "f"), []byte("the old version"))
			cmd, in := piped(t, a, script)
			_, err := io.WriteString(in, "half")
			must(t, err)
			awaitSize(t, filepath.Join(a, "f"), 4)
			must(t, cmd.Process.Kill())
			_ = cmd.Wait()
			eventually(t, func() error {
				list, err := c.Node(1).Store().Stagings()
				kept := slices.DeleteFunc(list, func(s content.Unpublished) bool { return s.Reason == "" })
				if err != nil || len(kept) != i+1 {
					return fmt.Errorf("unpublished: %+v %v", kept, err)
				}
				return nil
			})
			wantBytes(t, filepath.Join(a, "f"), []byte("the old version"))
			wantBytes(t, filepath.Join(b, "f"), []byte("the old version"))
		}
	})
}

// What a command wrote is everywhere before the shell goes on to the next one; so is what a child wrote whose parent
// has closed the file.
func TestG2RedirectedOutputIsThereForTheNextCommand(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		out := shell(t, a, `
			for i in 1 2 3; do
				/bin/echo "old $i" > f; cat "`+b+`/f"
				{ /bin/echo "a $i"; echo "b $i"; } > f; cat "`+b+`/f"
				(/bin/echo "c $i") >> f; tail -n 1 "`+b+`/f"
			done
			: > f; stat -c %s "`+b+`/f"
			exec 3> f; sh -c '/bin/sleep 0.2; echo late' >&3 & exec 3>&-; wait; cat "`+b+`/f"`)
		want := ""
		for i := 1; i <= 3; i++ {
			want += fmt.Sprintf("old %d\na %d\nb %d\nc %d\n", i, i, i, i)
		}
		if want += "0\nlate\n"; out != want {
			t.Errorf("the shell said %q, want %q", out, want)
		}
	})
}

// A close is not put off for another open of the same process: what it has otherwise only reads, or is another open
// for writing.
func TestG2CutIsThereAfterCloseWhateverElseIsOpen(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		for _, flags := range []int{os.O_RDONLY, os.O_WRONLY | os.O_APPEND} {
			path := filepath.Join(a, "f")
			write(t, path, []byte("the old version"))
			held, err := os.OpenFile(path, flags, 0)
			must(t, err)
			w, err := os.Create(path)
			must(t, err)
			must(t, w.Close())
			wantBytes(t, filepath.Join(b, "f"), nil)
			must(t, held.Close())
		}
	})
}

// G3: a file is published, and its node, which is cut off by then, cannot know which nodes show it. Its close and fsync
// fail; the version is there, is no unpublished file, and the next one follows it without a conflict.
func TestG3CloseOfAWriterThatIsCutOff(t *testing.T) {
	for _, size := range []int{10, 300_000} {
		for _, call := range []string{"close", "fsync"} {
			t.Run(fmt.Sprint(call, size), func(t *testing.T) {
				eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
					first, second := pattern(1, size), pattern(2, size)
					f, err := os.Create(filepath.Join(a, "f"))
					must(t, err)
					_, err = f.Write(first)
					must(t, err)
					c.Node(1).CutOff(true)
					switch call {
					case "close":
						err = f.Close()
					case "fsync":
						err = f.Sync()
					}
					if err == nil {
						t.Errorf("%s of a writer that is cut off succeeded", call)
					}
					c.Node(1).CutOff(false)
					if call == "fsync" {
						must(t, f.Close())
					}
					released(t, c.Node(1), 0)
					for _, mount := range []string{a, b} {
						wantBytes(t, filepath.Join(mount, "f"), first)
					}
					list, err := c.Node(1).Store().Unused()
					if must(t, err); len(list) != 0 {
						t.Errorf("unpublished: %+v", list)
					}
					write(t, filepath.Join(a, "f"), second)
					for _, mount := range []string{a, b} {
						wantBytes(t, filepath.Join(mount, "f"), second)
					}
					if names, err := filepath.Glob(filepath.Join(a, "*")); err != nil || len(names) != 1 {
						t.Errorf("%v, %v", names, err)
					}
				})
			})
		}
	}
}

// G3: what was not shown when it was published is not shown because somebody asks again: a close or fsync with nothing
// left to publish fails too, until a leader says which nodes show it. So does a close or fsync after a change of names.
func TestG3CloseAgainOfAWriterThatIsCutOff(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		path := filepath.Join(a, "f")
		f, err := os.Create(path)
		must(t, err)
		_, err = f.WriteString("bytes")
		must(t, err)
		d, err := os.Open(a)
		must(t, err)
		c.Node(1).CutOff(true)
		again := map[string]func() error{
			"fsync":           f.Sync,
			"fsync again":     f.Sync,
			"fsync of a name": d.Sync,
			"close":           f.Close,
			"another open": func() error {
				w, err := os.OpenFile(path, os.O_WRONLY, 0)
				must(t, err)
				return w.Close()
			},
		}
		for _, call := range []string{"fsync", "fsync again", "fsync of a name", "close", "another open"} {
			if err := again[call](); !errors.Is(err, syscall.EIO) {
				t.Errorf("%s while nobody can say who shows the version: %v", call, err)
			}
		}
		c.Node(1).CutOff(false)
		must(t, again["another open"]())
		must(t, d.Sync())
		must(t, d.Close())
		wantBytes(t, filepath.Join(b, "f"), []byte("bytes"))
	})
}

// A close is not put off for another file, of another mount, that only has the same inode number. A child keeps the
// open that is closed here, so that no last close publishes it.
func TestG2CloseIsNotPutOffForAFileElsewhere(t *testing.T) {
	c, a, b := pair(t, nil)
	other := fstest.New(t, 1).Node(1).Mount(t, nil)
	held, err := os.Create(filepath.Join(other, "f"))
	must(t, err)
	f, err := os.Create(filepath.Join(a, "f"))
	must(t, err)
	if one, two := inode(t, held.Name()), inode(t, f.Name()); one != two {
		t.Fatalf("inodes %d and %d: this test needs equal ones", one, two)
	}
	child := exec.Command("cat")
	child.ExtraFiles = []*os.File{f}
	in, err := child.StdinPipe()
	must(t, err)
	must(t, child.Start())
	must(t, f.Close())
	if got := c.Node(1).Publishes.Load(); got != 1 {
		t.Errorf("%d publishes before close returned", got)
	}
	wantBytes(t, filepath.Join(b, "f"), nil)
	must(t, in.Close())
	must(t, child.Wait())
	must(t, held.Close())
}

// Files are overwritten many times in quick succession: each version that the log has is one that a program finished,
// and the other node shows it when close returns. The look at a file after its last close can run when the next open
// has cut it already.
func TestG1OverwritesInQuickSuccessionShowNothingUnfinished(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		const files, times = 4, 300
		before := c.Node(1).Publishes.Load()
		var wg sync.WaitGroup
		for i := range files {
			wg.Go(func() { overwriteOften(t, filepath.Join(a, fmt.Sprint(i)), filepath.Join(b, fmt.Sprint(i)), times) })
		}
		wg.Wait()
		released(t, c.Node(1), 0)
		if got := c.Node(1).Publishes.Load() - before; got != files*times {
			t.Errorf("%d publishes of %d versions", got, files*times)
		}
	})
}

// overwriteOften writes versions of a file and looks after each how long it is on another node.
func overwriteOften(t *testing.T, path, there string, times int) {
	for i := range times {
		size := 1000 + i
		if err := os.WriteFile(path, pattern(uint64(i), size), 0o644); err != nil {
			t.Error(err)
			return
		}
		if st, err := os.Stat(there); err != nil || st.Size() != int64(size) {
			t.Errorf("after overwrite %d the other node shows %v, %v, want %d bytes", i, st, err, size)
			return
		}
	}
}

// A file that is looked after, since a mapping outlives its descriptor, is overwritten: what is published for the
// mapping is not what the other program has only begun.
func TestG1OverwriteOfAMappedFileIsShownWhenItIsFinished(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		path := filepath.Join(a, "f")
		write(t, path, pattern(1, 5000))
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		must(t, err)
		m, err := syscall.Mmap(int(f.Fd()), 0, 4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
		must(t, err)
		defer func() { must(t, syscall.Munmap(m)) }()
		store(t, m, "x")
		must(t, f.Close())
		wantBytes(t, filepath.Join(b, "f"), append([]byte{'x'}, pattern(1, 5000)[1:]...))
		before := c.Node(1).Publishes.Load()
		w, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
		must(t, err)
		<-time.After(300 * time.Millisecond)
		if got := c.Node(1).Publishes.Load() - before; got != 0 {
			t.Errorf("%d publishes before the program has written", got)
		}
		_, err = w.WriteString("new")
		must(t, err)
		must(t, w.Close())
		wantBytes(t, filepath.Join(b, "f"), []byte("new"))
	})
}
