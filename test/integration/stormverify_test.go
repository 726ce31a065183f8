package integration

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// end ends the writers, and waits until the cluster is well.
func (s *storm) end() {
	s.say("the end")
	s.endWriters()
	if s.pause(3 * time.Minute); s.anyBusy() {
		for w := range s.busy {
			s.t.Errorf("writer %d at %s hangs", w.id, w.home.Name())
		}
		s.t.FailNow()
	}
	s.heal(strike{kind: "all", and: -1, calm: true})
	acked, failed := 0, 0
	for _, w := range s.writers {
		acked, failed = acked+w.acked, failed+w.failed
		s.t.Logf("writer %d: %d changes acknowledged, %d failed, the longest took %v", w.id, w.acked, w.failed,
			w.longest.Round(time.Millisecond))
	}
	s.t.Logf("%d changes acknowledged, %d failed; how the faults healed:\n%s", acked, failed,
		strings.Join(s.figures, "\n"))
	for _, n := range s.all() {
		n.MustCLI("wait", "--timeout", "50s")
	}
	s.agree()
}

// agree waits until the members show the same digest of all names at the same index.
func (s *storm) agree() {
	s.c.Await(time.Minute, "same digest at the same index", func() (bool, string) {
		var said []string
		for _, n := range s.all() {
			st, err := statusOf(n)
			said = append(said, fmt.Sprintf("%d %s %v", st.DigestIndex, st.Digest, err))
		}
		same := slices.Compact(slices.Clone(said))
		return len(same) == 1, strings.Join(said, "; ")
	})
}

// verify compares what each node shows with what was acknowledged, and with what the others show; then each node alone
// with what the cluster says that it holds.
func (s *storm) verify() {
	may := map[string][]state{}
	for _, w := range s.writers {
		for _, n := range w.names {
			may[n.path] = n.may
		}
	}
	for i := range sharedNames {
		path := fmt.Sprintf("shared/f%d", i)
		may[path] = s.shared.states(path)
	}
	shown := s.showEverywhere(may)
	for _, w := range s.writers {
		for _, n := range w.names {
			if n.or != nil && shown[n.path] == "absent" && shown[n.or.path] == "absent" {
				s.t.Errorf("%s is lost in a rename to %s", n.path, n.or.path)
			}
		}
	}
	s.holdThemselves(may, shown)
}

// fsck looks at the whole cluster: only what killed writers left may be wrong.
func (s *storm) fsck() {
	n := s.all()[0]
	out, stderr, err := n.CLI("fsck", "--json")
	list, r := fsckLines(s.t, out)
	if r.Inodes == 0 {
		s.t.Errorf("fsck ended early: %v\n%s", err, stderr)
	}
	for _, f := range list {
		if !f.Heals && f.Kind != admin.FsckUnpublished {
			s.t.Errorf("fsck: %+v", f)
		}
	}
	s.t.Logf("fsck: %+v", r)
}

// showEverywhere compares all names on all nodes, and returns what the first node shows.
func (s *storm) showEverywhere(may map[string][]state) map[string]string {
	nodes := s.all()
	shown := make([]map[string]string, len(nodes))
	each(nodes, func(i int, n *cluster.Node) { shown[i] = s.showAll(n, may) })
	for i, n := range nodes[1:] {
		for path, want := range shown[0] {
			if got := shown[i+1][path]; got != want {
				s.t.Errorf("%s: %s shows %q, %s shows %q", path, nodes[0].Name(), want, n.Name(), got)
			}
		}
		for path, got := range shown[i+1] {
			if _, ok := shown[0][path]; !ok {
				s.t.Errorf("%s: %s shows %q, %s does not", path, n.Name(), got, nodes[0].Name())
			}
		}
	}
	return shown[0]
}

// showAll describes all that a node shows, and fails where that is not what was acknowledged.
func (s *storm) showAll(n *cluster.Node, may map[string][]state) map[string]string {
	shown := map[string]string{}
	for path, states := range may {
		_, all, err := stateShown(n.Mount, path, states)
		if err != nil {
			all = err.Error()
			s.t.Errorf("%s on %s: %v", path, n.Name(), err)
		}
		shown[path] = all
	}
	err := filepath.WalkDir(n.Mount, func(path string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(n.Mount, path)
		if err == nil && rel != "." && shown[rel] == "" {
			shown[rel] = fmt.Sprint(d.Type())
			if !d.IsDir() {
				s.t.Errorf("%s on %s: nobody made it", rel, n.Name())
			}
		}
		return err
	})
	if err != nil {
		s.t.Errorf("%s: %v", n.Name(), err)
	}
	return shown
}

// holdThemselves cuts all links, and reads on each node what the cluster says that it holds.
func (s *storm) holdThemselves(may map[string][]state, shown map[string]string) {
	nodes := s.all()
	holds := map[string]map[string]bool{}
	for path := range may {
		if shown[path] != "absent" {
			holds[path] = s.holders(nodes[0], path)
		}
	}
	for _, n := range nodes {
		s.c.Net().Cut(n.Index, true)
	}
	each(nodes, func(_ int, n *cluster.Node) {
		for path, by := range holds {
			if !by[n.Name()] {
				continue
			}
			if _, _, err := stateShown(n.Mount, path, may[path]); err != nil {
				s.t.Errorf("%s alone, which is said to hold %s: %v", n.Name(), path, err)
			}
		}
	})
	for _, n := range nodes {
		s.c.Net().Cut(n.Index, false)
	}
}

// holders are the nodes that should hold a file by the cluster's answer: all members, or three if the policy says so.
func (s *storm) holders(at *cluster.Node, path string) map[string]bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	where, err := at.Admin().Where(ctx, admin.WhereRequest{Path: "/" + path})
	if err != nil {
		s.t.Errorf("where %s: %v", path, err)
		return nil
	}
	by := map[string]bool{}
	for _, h := range where.Holders {
		if h.Holds {
			by[h.Name] = true
		} else {
			s.t.Errorf("%s: %s does not hold it, although nothing is owed: %s", path, h.Name, h.Reason)
		}
	}
	want := len(s.all())
	if strings.HasPrefix(path, "w3/") {
		want = min(want, 3)
	}
	if len(by) < want {
		s.t.Errorf("%s is on %d nodes, want %d", path, len(by), want)
	}
	return by
}

// endNodes stops all nodes in order, and looks for what must not be in their logs, and for mounts that stayed.
func (s *storm) endNodes() {
	each(s.all(), func(_ int, n *cluster.Node) {
		_, _, err := n.CLI("stop")
		if err != nil {
			s.t.Errorf("%s: stop: %v", n.Name(), err)
		}
	})
	mounts, err := os.ReadFile("/proc/mounts")
	must(s.t, err)
	for _, n := range s.c.Nodes {
		select {
		case <-n.Exited():
		case <-time.After(time.Minute):
			s.t.Errorf("%s runs a minute after its stop", n.Name())
		}
		if strings.Contains(string(mounts), " "+n.Mount+" ") {
			s.t.Errorf("%s is still a mount", n.Mount)
		}
		s.checkLog(n)
	}
}

// checkLog fails the test if a daemon printed what only a fault of the program makes it print.
func (s *storm) checkLog(n *cluster.Node) {
	log, err := os.ReadFile(n.Data + ".log")
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	must(s.t, err)
	for _, line := range strings.Split(string(log), "\n") {
		for _, bad := range []string{"panic", "fatal error", "DATA RACE", "goroutine ", "bug", "leak", "log contradicts",
			"histories differ"} {
			if strings.Contains(line, bad) {
				s.t.Errorf("%s printed: %s", n.Name(), line)
			}
		}
	}
}

// each does something at all nodes at the same time.
func each(nodes []*cluster.Node, do func(i int, n *cluster.Node)) {
	var all sync.WaitGroup
	for i, n := range nodes {
		all.Go(func() { do(i, n) })
	}
	all.Wait()
}
