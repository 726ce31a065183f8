package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/internal/exitcode"
)

// What a user gets who types at bash and presses the tabulator: names of nodes, of files, and words of the definition.
func TestBashCompletes(t *testing.T) {
	data, home := dataDir(t), t.TempDir()
	expect(t, exitcode.OK, "", "init", "--name", "n1", "--listen", "10.0.0.1:7400", "--data", data)
	script := expect(t, exitcode.OK, "complete -F", "completion", "bash")
	self, err := os.Executable()
	if err == nil {
		err = os.Symlink(self, filepath.Join(home, programName))
	}
	for _, name := range []string{"big image.img", "few/x", "completion.bash"} {
		if err == nil {
			err = os.MkdirAll(filepath.Dir(filepath.Join(home, name)), 0o700)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(home, name), []byte(script), 0o600)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	bash := startBash(t, home, "RDMCFS_DATA="+data, beProgramEnv+"="+programName, "GORACE=atexit_sleep_ms=0")
	bash.types("source completion.bash; rdmcfs() { printf '[%s]' \"$@\"; }\n", prompt)
	for _, c := range []struct{ typed, words string }{
		{"rdmcfs ev\t\t1", "[evict][n1]"}, // what n1 and n2 begin with
		{"rdmcfs drain \t2", "[drain][n2]"},
		{"rdmcfs wait --no\t\t2", "[wait][--node][n2]"},
		{"rdmcfs where bi\t", "[where][big image.img]"},
		{"rdmcfs where few/\t", "[where][few/x]"},
		{"rdmcfs policy f\t", "[policy][few/]"},
		{"rdmcfs mount --fabric=v\tf\t", "[mount][--fabric=verbs][few/]"},
		{"rdmcfs --data " + home + "/no evict \t2", "[--data][" + home + "/no][evict][2]"}, // no daemon: no names
	} {
		bash.types(c.typed+"\n", c.words+prompt)
	}
}

const prompt = "ready> "

// shell is an interactive bash on a terminal of its own.
type shell struct {
	t    *testing.T
	term *os.File
	out  chan string
}

func startBash(t *testing.T, dir string, env ...string) *shell {
	t.Helper()
	term, slave := openTerminal(t)
	defer slave.Close()
	cmd := exec.Command("bash", "--norc", "--noprofile", "-i")
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = dir, slave, slave, slave
	cmd.Env = append(os.Environ(), append(env, "PATH="+dir+":"+os.Getenv("PATH"), "HOME="+dir, "TERM=dumb", "PS1="+prompt,
		"INPUTRC=/dev/null", "HISTFILE=")...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := &shell{t: t, term: term, out: make(chan string)}
	done := make(chan struct{})
	go func() {
		defer close(s.out)
		buf := make([]byte, 4096)
		for {
			n, err := term.Read(buf)
			select {
			case s.out <- string(buf[:n]):
			case <-done:
				return
			}
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		close(done)
		term.Close()
		for range s.out {
		}
	})
	s.types("", prompt)
	return s
}

// types types and waits for an output.
func (s *shell) types(keys, want string) {
	s.t.Helper()
	if _, err := io.WriteString(s.term, keys); err != nil {
		s.t.Fatal(err)
	}
	late := time.After(20 * time.Second)
	for got := ""; !strings.Contains(got, want); {
		select {
		case text, ok := <-s.out:
			if got += text; !ok {
				s.t.Fatalf("bash ended after %q: %q", keys, got)
			}
		case <-late:
			s.t.Fatalf("typed %q, want %q, got %q", keys, want, got)
		}
	}
}

// openTerminal makes a pseudo terminal.
func openTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	return master, slave
}

// The man page describes each command, each code and each variable.
func TestManIsWhole(t *testing.T) {
	page := expect(t, exitcode.OK, ".TH \"RDMCFS\" 8 2026-01-02", "man", "--date", "2026-01-02")
	for _, want := range []string{`.SS "rdmcfs bench multicast"`, `.SS "rdmcfs completion"`, `\fBRDMCFS_FABRIC\fR`,
		`\fB13 needed\fR`, `/etc/default/rdmcfs`} {
		if !strings.Contains(page, want) {
			t.Errorf("no %s in the man page", want)
		}
	}
}
