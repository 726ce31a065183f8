package fs_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdmcfs/rdmcfs/fs/fstest"
)

// strangers are what programs do with a file that another one is writing, without writing it themselves. They work in
// the directory of the file.
var strangers = map[string]string{
	"opens for writing":          ": 3>> f",
	"opens for both":             ": 3<> f",
	"opens for both and exits":   "(exec 3<> f)",
	"reads":                      "/bin/cat f > /dev/null",
	"opens and starts a program": "{ /bin/true; } 3>> f",
	"syncs what it reads":        "/bin/sync f",
	"touches":                    "/bin/sleep 0.2; /bin/touch f",
	"renames":                    "/bin/mv f g; /bin/mv g f",
}

// A process that has no part in what another one is writing shows nothing of it on any node, whatever it does with the
// file. What the writer's own close and fsync say stays true.
func TestG1AnotherProcessShowsNothingUnfinished(t *testing.T) {
	skipWithout(t, "sync")
	for name, script := range strangers {
		t.Run(name, func(t *testing.T) {
			eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
				sh := newShell(t, a)
				for _, flags := range []int{os.O_WRONLY, os.O_WRONLY | os.O_TRUNC, os.O_WRONLY | os.O_CREATE | os.O_EXCL} {
					strangerShowsNothing(t, c, b, sh, flags, script)
				}
			})
		})
	}
}

// otherShell is a shell that was there before the test opened its files: it has inherited nothing of them.
type otherShell struct {
	dir string
	in  io.Writer
	out *bufio.Reader
}

func newShell(t *testing.T, dir string) *otherShell {
	t.Helper()
	cmd := shellIn(t.Context(), dir)
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	cmd.Stderr = os.Stderr
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	sh := &otherShell{dir, in, bufio.NewReader(out)}
	sh.run(t, ":")
	return sh
}

// run runs a script, and fails the test if it fails.
func (sh *otherShell) run(t *testing.T, script string) {
	t.Helper()
	_, err := fmt.Fprintf(sh.in, "%s\necho $?\n", script)
	must(t, err)
	line, err := sh.out.ReadString('\n')
	if must(t, err); line != "0\n" {
		t.Errorf("%s: exit code %s", script, line)
	}
}

// strangerShowsNothing has a file written with an open of those flags, and a script run in the middle.
func strangerShowsNothing(t *testing.T, c *fstest.Cluster, b string, sh *otherShell, flags int, script string) {
	t.Helper()
	path, there, before := filepath.Join(sh.dir, "f"), filepath.Join(b, "f"), "the old version"
	_ = os.Remove(path)
	if flags&os.O_CREATE == 0 {
		write(t, path, []byte(before))
		released(t, c.Node(1), 0)
	}
	w, err := os.OpenFile(path, flags, 0o644)
	must(t, err)
	_, err = w.WriteString("half, ")
	must(t, err)
	publishes := c.Node(1).Publishes.Load()
	sh.run(t, script)
	if got := c.Node(1).Publishes.Load() - publishes; got != 0 {
		t.Errorf("flags %#x: %d publishes by a process that has no part in the file", flags, got)
	}
	if flags&os.O_CREATE == 0 {
		wantBytes(t, there, []byte(before))
	} else if _, err := os.Stat(there); !os.IsNotExist(err) {
		t.Errorf("a new file is shown unfinished: %v", err)
	}
	_, err = w.WriteString("whole")
	must(t, err)
	must(t, w.Sync())
	want := "half, whole"
	if flags&(os.O_CREATE|os.O_TRUNC) == 0 {
		want += before[len(want):]
	}
	wantBytes(t, there, []byte(want))
	must(t, w.Close())
	wantBytes(t, there, []byte(want))
}

// A file that is being written changes its name, or gets a second one, without being published. One without a version
// can't take the place of another file then, nor get a second name.
func TestG1NameOfAnUnfinishedFileChangesAlone(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		write(t, filepath.Join(a, "target"), []byte("a version"))
		write(t, filepath.Join(a, "old"), []byte("the old version"))
		writers := map[string]*os.File{}
		for _, name := range []string{"new", "old"} {
			w, err := os.OpenFile(filepath.Join(a, name), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
			must(t, err)
			_, err = w.WriteString("unfinished")
			must(t, err)
			writers[name] = w
		}
		publishes := c.Node(1).Publishes.Load()
		for _, script := range []string{"/bin/mv new target", "/bin/ln new second"} {
			out, err := shellIn(t.Context(), a, "-c", script).CombinedOutput()
			if err == nil || !strings.Contains(string(out), "busy") {
				t.Errorf("%s: %v, %s", script, err, out)
			}
		}
		shell(t, a, "/bin/ln old second; /bin/mv old target; /bin/mv new renamed")
		if got := c.Node(1).Publishes.Load() - publishes; got != 0 {
			t.Errorf("%d publishes by a change of names", got)
		}
		wantBytes(t, filepath.Join(b, "target"), []byte("the old version"))
		wantBytes(t, filepath.Join(b, "second"), []byte("the old version"))
		c.Fence(t, 1)
		for _, w := range writers {
			_, err := w.WriteString(" no more")
			must(t, err)
			must(t, w.Close())
		}
		for _, name := range []string{"target", "second", "renamed"} {
			wantBytes(t, filepath.Join(b, name), []byte("unfinished no more"))
		}
	})
}

// scriptsOfKilled are scripts with commands that are killed, and what is shown of the file then; "" is the version
// before.
var scriptsOfKilled = map[string]struct{ script, want string }{
	"subshell":  {"(sh -c 'echo half; kill -9 $$'; true) > f", ""},
	"group":     {"{ sh -c 'echo half; kill -9 $$' || true; } > f", ""},
	"exec":      {"exec > f; sh -c 'echo half; kill -9 $$' || true", ""},
	"append":    {"(sh -c 'echo half; kill -9 $$'; true) >> f", ""},
	"crash":     {"(sh -c 'echo half; kill -SEGV $$'; true) > f", ""},
	"innocent":  {"(sh -c 'echo half; kill -9 $$'; /bin/sleep 0; true) > f", ""},
	"goes on":   {"(sh -c 'echo half; kill -9 $$'; echo whole) > f", "half\nwhole\n"},
	"next":      {"(sh -c 'echo half; kill -9 $$'; /bin/echo whole) > f", "half\nwhole\n"},
	"sleep":     {"(/bin/sleep 60 & echo whole; kill -9 $!; wait; true) > f", "whole\n"},
	"own file":  {"exec 3> f; sh -c 'echo x > other; kill -9 $$' & wait; echo whole >&3; exec 3>&-", "whole\n"},
	"pipe":      {"(/bin/sh -c 'while echo x; do :; done' | head -n 1; true) > f 2> /dev/null", "x\n"},
	"all of it": {"sh -c 'echo half; kill -9 $$' > f", ""},
}

// What a killed command left in the output of its shell is not published by the shell, unless something is written
// after it: it is kept, and listed. Commands that only had the file open do not count.
func TestG2ScriptsWhoseCommandsAreKilled(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		kept := 0
		for name, s := range scriptsOfKilled {
			write(t, filepath.Join(a, "f"), []byte("the old version\n"))
			_ = shellIn(t.Context(), a, "-c", s.script).Run() // its exit code is that of the killed command
			want := s.want
			if want == "" {
				want = "the old version\n"
				kept++
			}
			t.Log(name)
			wantBytes(t, filepath.Join(b, "f"), []byte(want))
			awaitKeptFiles(t, c.Node(1), kept)
			wantBytes(t, filepath.Join(a, "f"), []byte(want)) // here it shows until the shell's last close is handled
		}
	})
}

// A program that only had a file open, for writing, publishes nothing of it when the writer was killed.
func TestG1IdleOpenerOfAKilledWriter(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		path := filepath.Join(a, "f")
		write(t, path, []byte("the old version"))
		cmd := child(t, "wait", path)
		idle, err := os.OpenFile(path, os.O_WRONLY, 0)
		must(t, err)
		must(t, cmd.Process.Kill())
		_ = cmd.Wait()
		must(t, idle.Close())
		awaitKeptFiles(t, c.Node(1), 1)
		wantBytes(t, filepath.Join(b, "f"), []byte("the old version"))
		wantBytes(t, path, []byte("the old version"))
	})
}

// awaitKeptFiles waits until so many unpublished files are kept.
func awaitKeptFiles(t *testing.T, n *fstest.Node, want int) {
	t.Helper()
	eventually(t, func() error {
		list, err := n.Store().Stagings()
		kept := 0
		for _, s := range list {
			if s.Reason != "" {
				kept++
			}
		}
		if err != nil || kept != want || len(list) != kept {
			return fmt.Errorf("%d kept, want %d; %+v %v", kept, want, list, err)
		}
		return nil
	})
}

// A command that leaves its bytes to its shell fails if the cluster takes no changes: the shell's close has nobody who
// hears of a failure.
func TestG2CommandOfAShellFailsWithoutACluster(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		for what, cut := range map[string]func(on bool){"cut off": c.Node(1).CutOff, "read only": c.Node(1).ReadOnly} {
			write(t, filepath.Join(a, "f"), nil)
			cmd, in := piped(t, a, "(/bin/echo a; read -r line; /bin/echo b; true) > f")
			awaitSize(t, filepath.Join(a, "f"), 2)
			cut(true)
			_, err := in.Write([]byte("go on\n"))
			must(t, err)
			var failed *exec.ExitError
			if err := cmd.Wait(); !errors.As(err, &failed) || failed.ExitCode() != 1 {
				t.Errorf("%s: the script ends with %v", what, err)
			}
			cut(false)
			write(t, filepath.Join(a, "f"), []byte("again"))
			shell(t, a, "(/bin/echo a; /bin/echo b; true) > f")
			wantBytes(t, filepath.Join(b, "f"), []byte("a\nb\n"))
		}
	})
}
