package integration

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// What a daemon that was killed had published of an open file, with nothing written since, is not listed as
// unpublished. What was written since then is listed, and its restore is no conflict with the version that it was
// written over.
func TestKilledDaemonHadPublishedOpenFiles(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3})
	w, other := c.Nodes[1], c.Nodes[2]
	want := leaveSynced(t, w)
	w.Kill()
	w.Start()
	c.AwaitUp(c.Nodes...)
	var left []admin.Unpublished
	c.Await(60*time.Second, "published files are not listed", func() (bool, string) {
		left = w.Status().Unpublished
		return !slices.ContainsFunc(left, func(u admin.Unpublished) bool {
			return !strings.HasPrefix(u.Path, "/more")
		}), fmt.Sprintf("listed: %+v", left)
	})
	if len(left) != 4 {
		t.Errorf("listed: %+v", left)
	}
	for _, u := range left {
		name := u.Path[1:]
		if got, err := os.ReadFile(other.Path(name)); err != nil || string(got) == want[name] {
			t.Errorf("%s before the restore: %d bytes, %v", name, len(got), err)
		}
		out := w.MustCLI("restore", "--content", u.ID)
		if !strings.Contains(out, "is version 2") && !strings.Contains(out, "is version 3") ||
			strings.Contains(out, "is kept") {
			t.Errorf("restore of %s says %q", name, out)
		}
	}
	for name, text := range want {
		if got, err := os.ReadFile(other.Path(name)); err != nil || string(got) != text {
			t.Errorf("%s: %d bytes, %v; want %d", name, len(got), err, len(text))
		}
	}
	if out := w.MustCLI("versions"); strings.Contains(out, "/") {
		t.Errorf("versions says %q", out)
	}
	if left = w.Status().Unpublished; len(left) != 0 {
		t.Errorf("listed after all restores: %+v", left)
	}
	c.AwaitAgreement(60 * time.Second)
}

// leaveSynced leaves files open that were published by fsync, and gives what is in each; those whose names begin with
// "more" were written after that. No process is started meanwhile: see stageOver.
func leaveSynced(t *testing.T, w *cluster.Node) map[string]string {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	s := syncedFiles{t, w, map[string]string{}}
	for name, size := range map[string]int{"small": 100, "middle": 100 << 10, "large": 20 << 20, "holes": 5 << 20,
		"twice": 3000, "old name": 5000, "cut": 700, "changed": 20 << 20,
		"more small": 100, "more": 100 << 10, "more changed": 20 << 20, "more cut": 9000} {
		old := strings.HasSuffix(name, "changed") || strings.HasSuffix(name, "cut")
		flags := os.O_RDWR | os.O_CREATE
		if old {
			if err := os.WriteFile(w.Path(name), []byte(strings.Repeat("o", size)), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if strings.HasSuffix(name, "cut") {
			flags |= os.O_TRUNC
		}
		f, err := os.OpenFile(w.Path(name), flags, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		s.fill(f, name, size)
	}
	if err := os.Rename(w.Path("old name"), w.Path("new name")); err != nil {
		t.Fatal(err)
	}
	s.want["new name"] = s.want["old name"]
	delete(s.want, "old name")
	return s.want
}

type syncedFiles struct {
	t    *testing.T
	w    *cluster.Node
	want map[string]string
}

// fill writes a file, and calls fsync once or twice.
func (s *syncedFiles) fill(f *os.File, name string, size int) {
	s.t.Helper()
	switch {
	case name == "holes":
		if err := f.Truncate(int64(size)); err != nil {
			s.t.Fatal(err)
		}
		s.want[name] = string(make([]byte, size))
		s.write(f, name, "in the hole", size/2)
	case strings.HasSuffix(name, "changed"):
		s.want[name] = strings.Repeat("o", size)
		s.write(f, name, "changed", 1<<20-3)
	default:
		s.want[name] = ""
		s.write(f, name, strings.Repeat("n", size), 0)
	}
	s.sync(f)
	if name == "twice" {
		s.write(f, name, "and more", size)
		s.sync(f)
	}
	if strings.HasPrefix(name, "more") {
		s.write(f, name, "written since", size-4)
	}
}

func (s *syncedFiles) write(f *os.File, name, text string, at int) {
	s.t.Helper()
	if _, err := f.WriteAt([]byte(text), int64(at)); err != nil {
		s.t.Fatal(err)
	}
	was := s.want[name]
	s.want[name] = was[:at] + text + was[min(at+len(text), len(was)):]
}

func (s *syncedFiles) sync(f *os.File) {
	s.t.Helper()
	if err := f.Sync(); err != nil {
		s.t.Fatal(err)
	}
}
