package fs_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/fs/fstest"
)

// partner is another process, which was there before the test opened its files, and can be given descriptors.
type partner struct {
	in     io.Writer
	out    *bufio.Reader
	socket int
}

func newPartner(t *testing.T) *partner {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	theirs := os.NewFile(uintptr(pair[1]), "socket")
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childMode+"=part")
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = []*os.File{theirs}
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	must(t, theirs.Close())
	t.Cleanup(func() {
		must(t, unix.Close(pair[0]))
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the other process: %v", err)
		}
	})
	return &partner{in, bufio.NewReader(out), pair[0]}
}

// do sends commands to the other process, one after the other: see [runPartner].
func (p *partner) do(t *testing.T, commands ...string) {
	t.Helper()
	for _, c := range commands {
		_, err := fmt.Fprintln(p.in, c)
		must(t, err)
		line, err := p.out.ReadString('\n')
		if must(t, err); line != "ok\n" {
			t.Fatalf("%s: %s", c, line)
		}
	}
}

// give gives it a descriptor, which it keeps under a name.
func (p *partner) give(t *testing.T, name string, f *os.File) {
	t.Helper()
	must(t, unix.Sendmsg(p.socket, []byte{1}, unix.UnixRights(int(f.Fd())), nil, 0))
	p.do(t, "take "+name)
}

// parts is what the other process has.
type parts struct {
	fds map[string]int
	mem []byte
}

// runPartner is the other process. Its commands are: open NAME PATH FLAGS, take NAME, write NAME TEXT, close NAME,
// map NAME, store TEXT, unmap, many, sync NAME, close-late NAME.
func runPartner() int {
	p := &parts{fds: map[string]int{}}
	for in := bufio.NewReader(os.Stdin); ; {
		line, err := in.ReadString('\n')
		if err != nil {
			return 0
		}
		if err := p.run(strings.Fields(line)); err != nil {
			fmt.Println("error", err)
			continue
		}
		fmt.Println("ok")
	}
}

func (p *parts) run(w []string) (err error) {
	switch w[0] {
	case "open":
		flags := map[string]int{"w": unix.O_WRONLY, "rw": unix.O_RDWR, "r": unix.O_RDONLY}[w[3]]
		p.fds[w[1]], err = unix.Open(w[2], flags, 0)
	case "take":
		p.fds[w[1]], err = takeDescriptor()
	case "write":
		_, err = unix.Pwrite(p.fds[w[1]], []byte(w[2]), 0)
	case "close":
		err = unix.Close(p.fds[w[1]])
	case "close-late":
		err = closeByNewThread(p.fds[w[1]])
	case "sync":
		err = unix.Fsync(p.fds[w[1]])
	case "map":
		p.mem, err = unix.Mmap(p.fds[w[1]], 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	case "store":
		copy(p.mem, w[1])
	case "unmap":
		err = unix.Munmap(p.mem)
	case "many":
		err = manyDescriptors()
	default:
		err = errors.New("no such command")
	}
	return err
}

// closeByNewThread closes a descriptor by a thread that began just now.
func closeByNewThread(fd int) error {
	const threads = 20 // more than there are already
	<-time.After(200 * time.Millisecond)
	tids, closer, done := make(chan int), make(chan int), make(chan error)
	for range threads {
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			tids <- unix.Gettid()
			for tid := range closer {
				if tid == unix.Gettid() {
					done <- unix.Close(fd)
				} else {
					closer <- tid
				}
			}
		}()
	}
	last := 0
	for range threads {
		last = max(last, <-tids)
	}
	closer <- last
	defer close(closer)
	return <-done
}

func takeDescriptor() (int, error) {
	buf, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(3, buf, oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return -1, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		return -1, fmt.Errorf("%d messages: %w", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return -1, err
	}
	return fds[0], nil
}

// manyDescriptors opens more descriptors than anybody looks at.
func manyDescriptors() error {
	const many = 4200
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 2 * many, Max: 2 * many}); err != nil {
		return err
	}
	for range many {
		if _, err := unix.Dup(3); err != nil {
			return err
		}
	}
	return nil
}

// writing is a file that the test writes, and another process that is there already.
func writing(t *testing.T, c *fstest.Cluster, a string) (p *partner, path string) {
	t.Helper()
	p = newPartner(t)
	path = filepath.Join(a, "f")
	write(t, path, pattern(1, 5000))
	released(t, c.Node(1), 0)
	w, err := os.OpenFile(path, os.O_WRONLY, 0)
	must(t, err)
	_, err = w.WriteAt([]byte("half"), 1000)
	must(t, err)
	t.Cleanup(func() { must(t, w.Close()) })
	return p, path
}

// wantStart wants a file to begin with some bytes on another node.
func wantStart(t *testing.T, path, want string) {
	t.Helper()
	if got, err := os.ReadFile(path); err != nil || !strings.HasPrefix(string(got), want) {
		t.Errorf("%s begins with %q (%v), want %q", path, got[:min(len(got), len(want))], err, want)
	}
}

// A process that has stored through a mapping of a file has a part in it, whichever way it comes to it again, and
// although the mapping is gone by then.
func TestG2StoresThroughAnOlderMapping(t *testing.T) {
	for name, commands := range map[string][]string{
		"there":      {"store mine", "open again PATH w", "close again"},
		"gone":       {"store mine", "unmap", "open again PATH w", "close again"},
		"gone, both": {"store mine", "unmap", "open again PATH rw", "close again"},
		"gone, read": {"store mine", "unmap", "open again PATH r", "sync again", "close again"},
		// The close is by another thread of the process.
		"gone, thread": {"store mine", "unmap", "open again PATH w", "close-late again"},
	} {
		t.Run(name, func(t *testing.T) {
			eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
				p, path := writing(t, c, a)
				p.do(t, "open first "+path+" rw", "map first", "close first")
				for _, command := range commands {
					p.do(t, strings.ReplaceAll(command, "PATH", path))
				}
				wantStart(t, filepath.Join(b, "f"), "mine")
			})
		})
	}
}

// A process that writes by a descriptor that it was given has a part in the file: the close of an own descriptor that
// it opened later delivers what it wrote.
func TestG2WriterByAGivenDescriptorHasAnotherOne(t *testing.T) {
	for name, commands := range map[string][]string{
		"written": {"write given mine", "open own PATH w", "close own"},
		"many":    {"many", "TAKE", "write given mine", "open own PATH w", "close own"},
		"mapped":  {"map given", "close given", "store mine", "open own PATH w", "close own"},
		"sync":    {"write given mine", "open own PATH r", "sync own"},
	} {
		t.Run(name, func(t *testing.T) {
			eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
				p, path := writing(t, c, a)
				f, err := os.OpenFile(path, os.O_RDWR, 0)
				must(t, err)
				if name != "many" {
					p.give(t, "given", f)
				}
				for _, command := range commands {
					if command == "TAKE" {
						p.give(t, "given", f)
						continue
					}
					p.do(t, strings.ReplaceAll(command, "PATH", path))
				}
				wantStart(t, filepath.Join(b, "f"), "mine")
				must(t, f.Close())
			})
		})
	}
}

// A thread that began after all that its process wrote closes what that wrote.
func TestG2CloseByAThreadThatBeganLater(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		p, path := writing(t, c, a)
		p.do(t, "open own "+path+" w", "write own mine", "close-late own")
		wantStart(t, filepath.Join(b, "f"), "mine")
	})
}

// A process that was given a descriptor, and has written and closed it, has left bytes to the one that opened the file:
// its own open of the file delivers them, although others are writing.
func TestG2WriterThatLeftBytesOpensTheFileItself(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		path := filepath.Join(a, "f")
		write(t, path, []byte("the old version"))
		released(t, c.Node(1), 0)
		p := newPartner(t)
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		must(t, err)
		p.give(t, "given", f)
		p.do(t, "write given mine", "close given")
		wantStart(t, filepath.Join(b, "f"), "the ") // it was left
		w, err := os.OpenFile(path, os.O_WRONLY, 0)
		must(t, err)
		p.do(t, "open own "+path+" w", "close own")
		wantStart(t, filepath.Join(b, "f"), "mine")
		must(t, w.Close())
		must(t, f.Close())
	})
}

// A process that inherited a descriptor, and has closed it, has left bytes to the one that opened the file: its own
// open of the file delivers them.
func TestG2InheritorOpensTheFileItself(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		path := filepath.Join(a, "f")
		write(t, path, []byte("the old version"))
		released(t, c.Node(1), 0)
		sh := newShell(t, a)
		sh.run(t, `exec 3>> f; mkfifo go; sh -c 'echo mine >&3; exec 3>&-; echo > go; read -r line < go; : >> f' &`)
		sh.run(t, "read -r line < go")
		w, err := os.OpenFile(path, os.O_WRONLY, 0)
		must(t, err)
		sh.run(t, "echo > go; wait $!")
		wantBytes(t, filepath.Join(b, "f"), []byte("the old versionmine\n"))
		must(t, w.Close())
		sh.run(t, "exec 3>&-")
	})
}
