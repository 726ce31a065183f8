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
