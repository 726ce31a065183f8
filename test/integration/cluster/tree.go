package cluster

import (
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"testing"
)

// TreeOf describes a tree, one line per name: type, mode, size, mtime, digest or target, and the other names
// of the same inode. Two trees are equal when their descriptions are.
func TreeOf(t testing.TB, root string) string {
	t.Helper()
	var names, lines []string
	links := map[uint64][]string{}
	inode := map[string]uint64{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil || rel == "." {
			return err
		}
		var st syscall.Stat_t
		if err := syscall.Lstat(path, &st); err != nil {
			return fmt.Errorf("stat %s: %w", path, err)
		}
		what, err := describe(path, &st)
		if err != nil {
			return err
		}
		names, lines = append(names, rel), append(lines, rel+" "+what)
		if st.Mode&syscall.S_IFMT == syscall.S_IFREG && st.Nlink > 1 {
			links[st.Ino] = append(links[st.Ino], rel)
			inode[rel] = st.Ino
		}
		return nil
	})
	if err != nil {
		t.Fatalf("tree of %s: %v", root, err)
	}
	for i, rel := range names {
		if ino, ok := inode[rel]; ok && len(links[ino]) > 1 { // other links may lie outside the tree
			lines[i] += " = " + strings.Join(links[ino], ",")
		}
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}

func describe(path string, st *syscall.Stat_t) (string, error) {
	perm := st.Mode & 0o7777
	switch st.Mode & syscall.S_IFMT {
	case syscall.S_IFREG:
		sum, err := Digest(path)
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("file %o %d:%d %d %d.%09d %s", perm, st.Uid, st.Gid, st.Size, st.Mtim.Sec, st.Mtim.Nsec, sum), nil
	case syscall.S_IFLNK:
		target, err := os.Readlink(path)
		return fmt.Sprintf("link %q", target), err
	case syscall.S_IFDIR:
		return fmt.Sprintf("dir %o %d:%d %d.%09d", perm, st.Uid, st.Gid, st.Mtim.Sec, st.Mtim.Nsec), nil
	}
	return fmt.Sprintf("other %o", st.Mode), nil
}

// Digest is the SHA-256 of a file's bytes, in hex.
func Digest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	return fmt.Sprintf("%x", h.Sum(nil)), nil
}

// SameTrees fails the test when two trees differ, and shows the first lines that do.
func SameTrees(t testing.TB, want, got string) {
	t.Helper()
	a, b := strings.Split(TreeOf(t, want), "\n"), strings.Split(TreeOf(t, got), "\n")
	shown := 0
	for _, pair := range [][2][]string{{a, b}, {b, a}} {
		have := map[string]bool{}
		for _, line := range pair[1] {
			have[line] = true
		}
		for _, line := range pair[0] {
			if !have[line] && shown < 10 {
				t.Logf("only in one of %s and %s: %s", want, got, line)
				shown++
			}
		}
	}
	if shown > 0 {
		t.Fatalf("trees %s (%d names) and %s (%d names) differ", want, len(a), got, len(b))
	}
}

// Random fills a new file with size bytes that depend on seed only, and syncs it.
func Random(t testing.TB, path string, size int64, seed uint64) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := io.CopyN(f, NewStream(seed), size); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
}

// NewStream is an endless reader of pseudo-random bytes.
func NewStream(seed uint64) io.Reader { return &stream{state: seed*2 + 1} }

type stream struct{ state uint64 }

func (s *stream) Read(p []byte) (int, error) {
	for i := 0; i < len(p); i += 8 {
		s.state ^= s.state << 13
		s.state ^= s.state >> 7
		s.state ^= s.state << 17
		word := s.state * 0x2545F4914F6CDD1D
		for j := i; j < min(i+8, len(p)); j++ {
			p[j] = byte(word)
			word >>= 8
		}
	}
	return len(p), nil
}
