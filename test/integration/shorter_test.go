package integration

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

const (
	shorterBytes = 24 << 20           // of each file
	shorterCut   = 9<<20 + 1234       // amid a block and a page
	shorterGrown = shorterCut + 1<<20 // of one that gets longer again
	shorterLimit = time.Minute        // of any one call
)

// G3, G9: a file gets shorter while it is on its way to the other nodes, by a truncate of its name or by its writer.
// That ends nobody's session: the copies that the same node and another one send meanwhile succeed, and every node
// has the shortened file when its writer has closed it.
func TestFileGetsShorterInMidSend(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 3, Rate: "200mbit"})
	s := &shorter{c: c, src: filepath.Join(c.Dir, "source"), data: make([]byte, shorterBytes)}
	if _, err := io.ReadFull(cluster.NewStream(7), s.data); err != nil {
		t.Fatal(err)
	}
	must(t, os.WriteFile(s.src, s.data, 0o644))
	before := s.broken(t)
	for _, cut := range []struct {
		name string
		do   func(*testing.T, string) [][]byte // its versions, oldest first
	}{
		{"NewFileByName", s.newFileByName}, {"ImageByName", s.imageByName}, {"BehindClose", s.behindClose},
		{"BehindFsync", s.behindFsync},
		{"WrittenAnew", s.writtenAnew},
	} {
		t.Run(cut.name, func(t *testing.T) {
			onlookers := lookOn(t, c.Nodes[1:], cut.name)
			versions := cut.do(t, cut.name)
			want := filepath.Join(c.Dir, "want")
			must(t, os.WriteFile(want, versions[len(versions)-1], 0o644))
			sameEverywhere(t, c, want, cut.name)
			onlookers.sawOnly(t, versions...)
		})
	}
	c.AwaitNothingOwed(60 * time.Second)
	c.AwaitAgreement(60 * time.Second)
	if after := s.broken(t); after != before {
		t.Errorf("sessions were broken:\n%s\nbefore:\n%s", after, before)
	}
}

// shorter is a file, and the cluster whose first node sends and cuts copies of it.
type shorter struct {
	c    *cluster.Cluster
	src  string
	data []byte
}

// newFileByName: cp makes a file, and truncate cuts it while cp is in close.
func (s *shorter) newFileByName(t *testing.T, name string) [][]byte {
	others := s.begin(t)
	cp := startCopy(t, s.src, s.c.Nodes[0].Path(name))
	s.cut(t, name, others, func() error { return truncate(s.c.Nodes[0].Path(name)) })
	s.succeed(t, append(others, cp)...)
	return [][]byte{s.data, s.data[:shorterCut]}
}

// writtenAnew: the same, but a shell's > cuts the file, to nothing, and writes it again.
func (s *shorter) writtenAnew(t *testing.T, name string) [][]byte {
	path, fresh := s.c.Nodes[0].Path(name), []byte("next")
	others := s.begin(t)
	cp := startCopy(t, s.src, path)
	s.awaitMiddle(t, name, others)
	ended(t, "write again", background(func() error { return os.WriteFile(path, fresh, 0o644) }))
	s.succeed(t, append(others, cp)...)
	return [][]byte{s.data, {}, fresh}
}

// imageByName: the same with a version that is written over in place, in an overlay.
func (s *shorter) imageByName(t *testing.T, name string) [][]byte {
	path := s.c.Nodes[0].Path(name)
	run(t, "cp", s.src, path)
	others := s.begin(t)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	fresh := bytes.Clone(s.data)
	for i := range fresh {
		fresh[i]++
	}
	_, err = f.Write(fresh)
	must(t, err)
	closed := background(f.Close)
	s.cut(t, name, others, func() error { return truncate(path) })
	ended(t, "close", closed)
	s.succeed(t, others...)
	return [][]byte{s.data, fresh, fresh[:shorterCut]}
}

// behindClose: a writer has closed one of two descriptors, and cuts the file by the other while that version is on
// its way. It gets longer again, with zeros where bytes were.
func (s *shorter) behindClose(t *testing.T, name string) [][]byte {
	others := s.begin(t)
	f := s.halfSynced(t, name)
	dup, err := syscall.Dup(int(f.Fd()))
	must(t, err)
	closed := background(func() error { return syscall.Close(dup) })
	s.cut(t, name, others, func() error { return f.Truncate(shorterCut) })
	ended(t, "close of the first descriptor", closed)
	must(t, f.Truncate(shorterGrown))
	ended(t, "close", background(f.Close))
	s.succeed(t, others...)
	cut := s.data[:shorterCut]
	return [][]byte{s.data[:1<<20], s.data, cut, append(bytes.Clone(cut), make([]byte, shorterGrown-shorterCut)...)}
}

// behindFsync: the kernel makes a cut wait for an fsync that is under way.
func (s *shorter) behindFsync(t *testing.T, name string) [][]byte {
	others := s.begin(t)
	f := s.halfSynced(t, name)
	synced := background(f.Sync)
	s.awaitMiddle(t, name, others)
	cut := background(func() error { return f.Truncate(shorterCut) })
	ended(t, "fsync", synced)
	ended(t, "ftruncate", cut)
	ended(t, "close", background(f.Close))
	s.succeed(t, others...)
	return [][]byte{s.data[:1<<20], s.data, s.data[:shorterCut]}
}

// halfSynced writes a file of which the first part is published.
func (s *shorter) halfSynced(t *testing.T, name string) *os.File {
	t.Helper()
	f, err := os.Create(s.c.Nodes[0].Path(name))
	must(t, err)
	t.Cleanup(func() { f.Close() })
	_, err = f.Write(s.data[:1<<20])
	must(t, err)
	must(t, f.Sync())
	_, err = f.Write(s.data[1<<20:])
	must(t, err)
	return f
}

// begin starts copies of other files, at the same node and at another. It comes before a file is opened here: a
// program that is started has a copy of the descriptor until exec closes it, and each close publishes.
func (s *shorter) begin(t *testing.T) (others []*copying) {
	t.Helper()
	for _, n := range s.c.Nodes[:2] {
		others = append(others, startCopy(t, s.src, n.Path(strings.ReplaceAll(t.Name(), "/", "-")+n.Name())))
	}
	return others
}

// succeed waits for copies.
func (s *shorter) succeed(t *testing.T, copies ...*copying) {
	t.Helper()
	for _, cp := range copies {
		if _, err := cp.wait(t, shorterLimit); err != nil {
			t.Errorf("%v: %v: %s", cp.cmd.Args, err, cp.stderr.String())
		}
		if name := filepath.Base(cp.cmd.Args[2]); name != filepath.Base(t.Name()) {
			sameEverywhere(t, s.c, s.src, name)
		}
	}
}

// awaitMiddle waits until every member has a part of the file, and copies of others are on their way too.
func (s *shorter) awaitMiddle(t *testing.T, name string, others []*copying) {
	t.Helper()
	paths := []string{name}
	for _, cp := range others {
		paths = append(paths, filepath.Base(cp.cmd.Args[2]))
	}
	s.c.Await(shorterLimit, "transfers in their middle", func() (bool, string) {
		moved := s.moved()
		for _, p := range paths {
			if part, ok := moved[p]; !ok || p == name && part < 0.1 {
				return false, fmt.Sprintf("%s: %v", p, moved)
			}
		}
		return true, ""
	})
}

// moved is how much of its bytes the last member of each transfer has.
func (s *shorter) moved() map[string]float64 {
	moved := map[string]float64{}
	for _, n := range s.c.Nodes {
		for _, tr := range n.Status().Transfers {
			if part := movedPart(tr); part < 1 && isSender(tr, n) {
				moved[filepath.Base(tr.Path)] = part
			}
		}
	}
	return moved
}

func isSender(tr admin.Transfer, n *cluster.Node) bool { return int(tr.Writer) == n.Index+1 }

// cut runs do, which makes the file shorter in mid-send. It fails the test unless all transfers of the version are
// still under way when the cut is seen.
func (s *shorter) cut(t *testing.T, name string, others []*copying, do func() error) {
	t.Helper()
	s.awaitMiddle(t, name, others)
	cut := background(do)
	s.c.Await(shorterLimit, "cut seen at its node", func() (bool, string) {
		st, err := os.Stat(s.c.Nodes[0].Path(name))
		return err == nil && st.Size() == shorterCut, fmt.Sprint(st, err)
	})
	if moved := s.moved(); len(moved) < 3 {
		t.Errorf("not all transfers were under way when the file was cut: %v", moved)
	}
	ended(t, "truncate", cut)
}

// broken counts, on each node, members that left a session, sessions that lost a member, and pushes that came to
// nothing.
func (s *shorter) broken(t *testing.T) string {
	t.Helper()
	var out strings.Builder
	for _, n := range s.c.Nodes {
		if !n.Running() {
			t.Fatalf("%s has ended: %v", n.Name(), n.ExitErr())
		}
		for line := range strings.Lines(n.MustCLI("metrics")) {
			for _, name := range []string{"epochs_total", "ejected_total", "push_failures_total"} {
				if strings.HasPrefix(line, "rdmcfs_"+name+" ") {
					fmt.Fprintf(&out, "%s %s", n.Name(), line)
				}
			}
		}
	}
	if got := strings.Count(out.String(), "\n"); got != 3*len(s.c.Nodes) {
		t.Fatalf("%d counters:\n%s", got, out.String())
	}
	return out.String()
}

// truncate is what another program does.
func truncate(path string) error {
	out, err := exec.Command("truncate", "-s", strconv.Itoa(shorterCut), path).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// background runs a call that waits for other nodes.
func background(do func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	return done
}

// ended waits for such a call, which has to succeed.
func ended(t *testing.T, what string, done <-chan error) {
	t.Helper()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	case <-time.After(shorterLimit):
		t.Fatalf("%s: not within %v", what, shorterLimit)
	}
}
