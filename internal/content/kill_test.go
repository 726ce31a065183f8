package content

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// The child of TestKill stores contents and says so on its standard output until it is killed.
const killDirEnv = "RDMCFS_CONTENT_KILL_DIR"

func TestKillChild(t *testing.T) {
	dir := os.Getenv(killDirEnv)
	if dir == "" {
		t.Skip("only as a child of TestKill")
	}
	s, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	st, err := s.NewStaging(Origin{Ino: 77, Name: "staged"})
	if err != nil {
		t.Fatal(err)
	}
	var previous ID
	var was []byte
	for n := uint32(len(s.List(Committed)) + len(s.List(Undecided))); ; n++ {
		if _, err := st.File().Write([]byte("staged bytes ")); err != nil {
			t.Fatal(err)
		}
		id, p := killContent(n)
		shape := Shape{Size: int64(len(p))}
		if n%3 == 2 && !previous.IsZero() && len(was) > 100 {
			p = bytes.Clone(was)
			copy(p[50:], id.String())
			shape = Shape{Size: int64(len(p)), Base: previous, BaseSize: int64(len(p)), Extents: []Extent{{Off: 50, Len: 32}}}
		}
		root, err := s.Put(t.Context(), id, shape, bytes.NewReader(p))
		if err != nil {
			t.Fatal(err)
		}
		os.Stdout.WriteString(fmt.Sprintf("stored %d %s %d\n", n, root, len(p)))
		if n%2 == 0 {
			if err := s.Commit(id); err != nil {
				t.Fatal(err)
			}
			previous, was = id, p
		}
	}
}

func killContent(n uint32) (ID, []byte) {
	id := ID{0: 8}
	binary.BigEndian.PutUint32(id[12:], n)
	return id, randomBytes(uint64(n), int64(n*n*977%(3*BlockBytes)))
}

// TestKill kills a storing process by SIGKILL in the middle of its work, again and again on one directory.
// All that it said it stored is there, with its root, and the staged bytes are listed.
func TestKill(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	dir := t.TempDir()
	roots := make(map[uint32]string)
	for round := range 6 {
		readUntilKilled(t, dir, 5+7*round, roots)
		s := openStore(t, dir, Options{})
		for n, root := range roots {
			id, _ := killContent(n)
			r, err := s.OpenUndecided(id)
			if err != nil {
				t.Fatalf("round %d: stored content %d: %v", round, n, err)
			}
			if _, err := io.Copy(io.Discard, io.NewSectionReader(r, 0, r.Size())); err != nil || r.Root().String() != root {
				t.Fatalf("round %d: content %d: root %s, want %s (%v)", round, n, r.Root(), root, err)
			}
			r.Close()
		}
		if report, err := s.Scrub(t.Context(), 0); err != nil || len(report.Damaged) != 0 {
			t.Fatalf("round %d: scrub: %+v, %v", round, report, err)
		}
		list, err := s.Stagings()
		if err != nil || len(list) != round+1 || list[round].Origin.Ino != 77 || list[round].Size == 0 {
			t.Fatalf("round %d: stagings: %+v, %v", round, list, err)
		}
		for _, left := range s.List(Partial) {
			r, err := s.Resume(left)
			if err != nil {
				t.Fatalf("round %d: resume %s: %v", round, left, err)
			}
			if err := r.Discard(); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// readUntilKilled starts the child and kills it after so many reports.
func readUntilKilled(t *testing.T, dir string, reports int, roots map[uint32]string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestKillChild$")
	cmd.Env = append(os.Environ(), killDirEnv+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) != 4 || words[0] != "stored" {
			t.Errorf("child says %q", lines.Text())
			continue
		}
		n, err := strconv.ParseUint(words[1], 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		roots[uint32(n)] = words[2]
		if reports--; reports == 0 {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := cmd.Wait(); err == nil || reports > 0 {
		t.Fatalf("child ended by itself: %v", err)
	}
}
