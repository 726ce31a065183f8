package integration

import (
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// G1: while a program writes over a file every node shows the version before, whatever descriptors are closed on the
// way. Is the program killed that version stays, and what it wrote is listed.
func TestUnfinishedOverwrite(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3})
	w, r := c.Nodes[0], c.Nodes[1]
	for name, script := range map[string]string{
		"dd": "exec dd of=dd bs=4 2>/dev/null", "redirect": "exec cat > redirect",
		"child": "exec > child; head -n 1; /bin/true; cat",
	} {
		for _, kill := range []bool{false, true} {
			must(t, os.WriteFile(w.Path(name), []byte("the old version"), 0o644))
			cmd := exec.Command("sh", "-euc", script)
			cmd.Dir = w.Mount
			in, err := cmd.StdinPipe()
			must(t, err)
			must(t, cmd.Start())
			t.Cleanup(func() { cmd.Process.Kill() })
			_, err = io.WriteString(in, "half\n")
			must(t, err)
			c.Await(60*time.Second, name+" has written half", func() (bool, string) {
				st, err := os.Stat(w.Path(name))
				return err == nil && st.Size() == 5, "not yet"
			})
			wantText(t, r, name, "the old version")
			want := "the old version"
			if kill {
				cmd.Process.Kill()
				in.Close()
				cmd.Wait()
			} else {
				want = "half\nwhole\n"
				_, err = io.WriteString(in, "whole\n")
				must(t, err)
				must(t, in.Close())
				must(t, cmd.Wait())
			}
			if kill && name != "child" { // its cat goes on, and writes what there is
				awaitKept(t, c, w, name)
				wantText(t, w, name, want)
			}
			if !kill || name != "child" {
				wantText(t, r, name, want)
			}
		}
	}
}

// G2: a script whose node is cut off while it runs does not end with 0, although its commands leave what they write to
// their shell. What they wrote is shown by nobody.
func TestRedirectedCommandThatIsCutOff(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3})
	w, r := c.Nodes[0], c.Nodes[1]
	must(t, os.WriteFile(w.Path("f"), []byte("the old version"), 0o644))
	cmd := exec.Command("sh", "-euc", "(/bin/echo a; read -r line; /bin/echo b; true) > f")
	cmd.Dir = w.Mount
	in, err := cmd.StdinPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill() })
	c.Await(60*time.Second, "the first command has written", func() (bool, string) {
		st, err := os.Stat(w.Path("f"))
		return err == nil && st.Size() == 2, "not yet"
	})
	c.Net().Cut(w.Index, true)
	_, err = io.WriteString(in, "go on\n")
	must(t, err)
	watch := startWatch()
	if err := cmd.Wait(); err == nil {
		t.Error("a script that is cut off ends with 0")
	}
	if took := watch.took(); took > 2*time.Minute {
		t.Errorf("the script took %v to end", took)
	}
	wantText(t, r, "f", "the old version")
	c.Net().Cut(w.Index, false)
	c.AwaitUp(c.Nodes...)
	must(t, exec.Command("sh", "-euc", "cd \"$0\"; (/bin/echo c; /bin/echo d; true) > f", w.Mount).Run())
	wantText(t, r, "f", "c\nd\n")
}

// G1: a file that a program is writing is shown to nobody because another program opens it, syncs it or gives it
// another name.
func TestUnfinishedFileOfAnotherProcess(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3})
	w, r := c.Nodes[0], c.Nodes[1]
	others, in := shellOf(t, w)
	must(t, os.WriteFile(w.Path("old"), []byte("the old version"), 0o644))
	f, err := os.OpenFile(w.Path("old"), os.O_WRONLY|os.O_TRUNC, 0)
	must(t, err)
	g, err := os.OpenFile(w.Path("new"), os.O_WRONLY|os.O_CREATE, 0o644)
	must(t, err)
	for _, file := range []*os.File{f, g} {
		_, err = file.WriteString("half, ")
		must(t, err)
	}
	_, err = io.WriteString(in, ": 3>> old 4>> new; sync old new; mv old moved; mv new named; ln moved second\n")
	must(t, err)
	must(t, in.Close())
	must(t, others.Wait())
	for _, name := range []string{"moved", "second"} {
		wantText(t, r, name, "the old version")
	}
	if _, err := os.Stat(r.Path("named")); !os.IsNotExist(err) {
		t.Errorf("a new file is shown unfinished: %v", err)
	}
	for _, file := range []*os.File{f, g} {
		_, err = file.WriteString("whole")
		must(t, err)
		must(t, file.Close())
	}
	for _, name := range []string{"moved", "second", "named"} {
		wantText(t, r, name, "half, whole")
	}
}

// shellOf is a shell in a node's mount, which reads its script from the test. It has inherited nothing of files that
// the test opens later.
func shellOf(t *testing.T, n *cluster.Node) (*exec.Cmd, io.WriteCloser) {
	t.Helper()
	cmd := exec.Command("sh", "-eu")
	cmd.Dir, cmd.Stderr = n.Mount, os.Stderr
	in, err := cmd.StdinPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill() })
	return cmd, in
}

func wantText(t *testing.T, n *cluster.Node, name, want string) {
	t.Helper()
	if got, err := os.ReadFile(n.Path(name)); err != nil || string(got) != want {
		t.Errorf("%s: %s is %q (%v), want %q", n.Name(), name, got, err, want)
	}
}

// awaitKept waits until staged bytes of a file are listed.
func awaitKept(t *testing.T, c *cluster.Cluster, n *cluster.Node, name string) {
	t.Helper()
	c.Await(60*time.Second, "staged bytes of "+name+" listed", func() (bool, string) {
		for _, u := range n.Status().Unpublished {
			if strings.HasSuffix(u.Path, name) {
				return true, ""
			}
		}
		return false, "not in status"
	})
}
