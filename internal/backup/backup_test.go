package backup

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
)

// cluster is one of two nodes with files of all kinds, and the content store of node 1.
type cluster struct {
	*metatest.Cluster
	db    *meta.DB
	store string
	files map[string][]byte // in the store
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: owners and devices are restored")
	}
	c := &cluster{Cluster: metatest.New(t, 2), store: t.TempDir(), files: map[string][]byte{}}
	c.db = c.DB.(*meta.DB)
	dir := c.make(meta.RootIno, "dir", meta.KindDir, 0o751)
	c.Do(1, &meta.SetPolicy{Dir: dir, Policy: &meta.Policy{Placement: meta.PlaceCopies, Copies: 2, Retain: 1}})
	sub := c.make(dir, "sub", meta.KindDir, 0o700)
	c.make(dir, "fifo", meta.KindFIFO, 0o640)
	c.make(dir, "empty\xff", meta.KindFile, 0o600)
	c.Do(1, &meta.Publish{Ino: c.at(t, "dir/empty\xff").Ino, Session: c.Session(1)})
	small := c.make(meta.RootIno, "small", meta.KindFile, 0o4755)
	c.Inline(1, small, []byte("a few bytes"))
	c.Do(1, &meta.Link{Ino: small, Parent: sub, Name: "again"})
	c.Do(1, &meta.Create{Parent: dir, Name: "link", Kind: meta.KindSymlink, Target: "../small"})
	c.Do(1, &meta.SetAttr{Ino: small, Patch: meta.AttrPatch{Mask: meta.AttrUID | meta.AttrGID | meta.AttrMtime, UID: 12,
		GID: 34, Mtime: 1_500_000_000_123_456_789, SetXattr: map[string][]byte{"user.a": []byte("x"), "user.b": {}}}})
	store, err := content.Open(c.store, content.Options{})
	if err != nil {
		t.Fatal(err)
	}
	c.file(t, store, dir, "dir/large", append(bytes.Repeat([]byte("large"), 500_000), make([]byte, 2<<20)...))
	c.file(t, store, sub, "dir/sub/other", bytes.Repeat([]byte("other"), 3000))
	c.file(t, store, sub, "dir/sub/other", bytes.Repeat([]byte("newer"), 3000))
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *cluster) make(dir meta.Ino, name string, kind meta.Kind, mode uint32) meta.Ino {
	return c.Do(1, &meta.Create{Parent: dir, Name: name, Kind: kind, Mode: mode}).Ino
}

func (c *cluster) at(t *testing.T, path string) meta.Inode {
	t.Helper()
	i, err := c.db.Inode(meta.RootIno)
	for name := range strings.SplitSeq(path, "/") {
		if err == nil {
			i, err = c.db.Lookup(i.Ino, name, c.Lease(1))
		}
	}
	if err != nil {
		t.Fatal(path, err)
	}
	return i
}

// file publishes the next version of a file, whose bytes the store gets.
func (c *cluster) file(t *testing.T, store *content.Store, dir meta.Ino, path string, b []byte) {
	t.Helper()
	ino := c.make(dir, filepath.Base(path), meta.KindFile, 0o644)
	i, err := c.db.Inode(ino)
	if err != nil {
		t.Fatal(err)
	}
	p := &meta.Publish{Ino: ino, Base: i.Content, Session: c.Session(1), Size: int64(len(b)),
		Votes: meta.Votes{View: c.db.View()}}
	p.Votes.Add(1)
	p.Votes.Add(2)
	id := content.ID(p.Session.Bytes())
	if p.Root, err = store.Put(t.Context(), id, content.Shape{Size: p.Size}, bytes.NewReader(b)); err == nil {
		err = store.Commit(id)
	}
	if err != nil {
		t.Fatal(err)
	}
	c.Do(1, p)
	c.files[path] = b
}

// saved is a backup of the cluster.
func (c *cluster) saved(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "backup")
	info, err := Save(path, c.write)
	files, size := c.db.StatFS()
	if err != nil || info.Index != c.db.Index() || info.Files != files || info.Bytes != size || info.Time != c.db.Time() {
		t.Fatalf("saved: %+v, %v", info, err)
	}
	return path
}

func (c *cluster) write(w io.Writer) error {
	s, _, err := c.db.Snapshot()
	if err != nil {
		return err
	}
	_, err = io.Copy(w, s)
	return errors.Join(err, s.Close())
}

// restored restores a backup into a directory, and returns it with what is missing.
func restored(t *testing.T, path string, cfg Config) (dir string, r Result, missed []string, policies []string) {
	t.Helper()
	b, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	cfg.Into = t.TempDir()
	cfg.Tell = func(done, of uint64) {
		if done > of {
			t.Errorf("%d of %d inodes done", done, of)
		}
	}
	cfg.Missed = func(m Missed) error {
		missed = append(missed, m.What+" "+m.Path+": "+m.Why)
		return nil
	}
	cfg.Policy = func(at string, p meta.Policy) error {
		rel, _ := filepath.Rel(cfg.Into, at)
		policies = append(policies, fmt.Sprintf("%s %d copies, %d kept", rel, p.Copies, p.Retain))
		if _, err := os.Stat(filepath.Join(at, "large")); err == nil {
			t.Errorf("%s gets its policy after its files", rel)
		}
		return nil
	}
	if r, err = b.Restore(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	return cfg.Into, r, missed, policies
}

// All names come back with what belongs to them, and bytes from the store; an older version is listed.
func TestBackupComesBack(t *testing.T) {
	c := newCluster(t)
	dir, r, missed, policies := restored(t, c.saved(t), Config{Stores: []string{c.store}})
	if want := (Result{Files: 4, Directories: 3, Others: 3, Bytes: r.Bytes, Versions: 1}); r != want {
		t.Errorf("%+v, want %+v", r, want)
	}
	if len(missed) != 1 || !strings.HasPrefix(missed[0], "version /dir/sub/other: version 1 was kept") {
		t.Errorf("missed: %q", missed)
	}
	if !slices.Equal(policies, []string{"dir 2 copies, 1 kept"}) {
		t.Errorf("policies: %q", policies)
	}
	sameTree(t, c, dir)
}

// sameTree holds a directory against the names of a cluster.
func sameTree(t *testing.T, c *cluster, dir string) {
	t.Helper()
	for path, want := range c.files {
		if got, err := os.ReadFile(filepath.Join(dir, path)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes, want %d, %v", path, len(got), len(want), err)
		}
	}
	for path, kind := range map[string]uint32{"dir": unix.S_IFDIR, "dir/sub": unix.S_IFDIR, "dir/fifo": unix.S_IFIFO,
		"dir/empty\xff": unix.S_IFREG, "small": unix.S_IFREG, "dir/link": unix.S_IFLNK, "dir/large": unix.S_IFREG} {
		i := c.at(t, path)
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(dir, path), &st); err != nil {
			t.Error(err)
			continue
		}
		if st.Mode != kind|i.Mode || st.Uid != i.UID || st.Gid != i.GID || st.Mtim.Nano() != i.Mtime ||
			kind != unix.S_IFDIR && (st.Nlink != uint64(i.Nlink) || st.Size != i.Size) {
			t.Errorf("%s: %+v, want %+v", path, st, i)
		}
	}
	if target, err := os.Readlink(filepath.Join(dir, "dir/link")); target != "../small" {
		t.Errorf("link to %q, %v", target, err)
	}
	value := make([]byte, 9)
	if n, err := unix.Lgetxattr(filepath.Join(dir, "dir/sub/again"), "user.a", value); string(value[:max(n, 0)]) != "x" {
		t.Errorf("extended attribute %q, %v", value[:max(n, 0)], err)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(dir, "dir/large"), &st); err != nil || st.Blocks*512 > 3<<20 {
		t.Errorf("the zeros of a file take room: %d blocks, %v", st.Blocks, err)
	}
}

// Bytes come from a directory with copies where they are right. Wrong ones are not taken and are listed.
func TestBytesFromCopiesAreChecked(t *testing.T) {
	c := newCluster(t)
	copies := t.TempDir()
	if err := os.MkdirAll(filepath.Join(copies, "dir/sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	wrong := bytes.Clone(c.files["dir/sub/other"])
	wrong[7000] ^= 1
	for path, b := range map[string][]byte{"dir/large": c.files["dir/large"], "dir/sub/other": wrong} {
		if err := os.WriteFile(filepath.Join(copies, path), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	path := c.saved(t)
	dir, r, missed, _ := restored(t, path, Config{Files: []string{copies}})
	if got, err := os.ReadFile(filepath.Join(dir, "dir/large")); err != nil || !bytes.Equal(got, c.files["dir/large"]) {
		t.Errorf("from a copy: %d bytes, %v", len(got), err)
	}
	if _, err := os.Stat(filepath.Join(dir, "dir/sub/other")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("wrong bytes were taken: %v", err)
	}
	if r.Missed != 1 || len(missed) != 2 || !strings.HasPrefix(missed[1], "bytes /dir/sub/other: 15000 bytes: ") ||
		!strings.Contains(missed[1], "has other bytes") {
		t.Errorf("%+v, %q", r, missed)
	}
	if err := os.Truncate(filepath.Join(copies, "dir/large"), 9); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(copies, "dir/sub/other")); err != nil {
		t.Fatal(err)
	}
	_, r, missed, _ = restored(t, path, Config{Files: []string{copies}})
	if r.Missed != 2 || len(missed) != 3 || !strings.Contains(missed[0], "has 9 bytes, not 4597152") ||
		!strings.Contains(missed[2], "no such file") {
		t.Errorf("%+v, %q", r, missed)
	}
	_, r, missed, _ = restored(t, path, Config{Files: []string{copies}, Stores: []string{c.store}})
	if r.Missed != 0 || len(missed) != 1 {
		t.Errorf("from the store: %+v, %q", r, missed)
	}
}

// A removed file that was kept is listed.
func TestRemovedFilesAreListed(t *testing.T) {
	c := newCluster(t)
	c.Do(1, &meta.SetPolicy{Dir: meta.RootIno, Policy: &meta.Policy{KeepRemoved: uint64(time.Hour)}})
	gone := c.make(meta.RootIno, "gone", meta.KindFile, 0o600)
	c.Inline(1, gone, []byte("x"))
	c.Do(1, &meta.Unlink{Parent: meta.RootIno, Name: "gone"})
	_, _, missed, _ := restored(t, c.saved(t), Config{Stores: []string{c.store}})
	if len(missed) != 2 || !strings.HasPrefix(missed[1], "version /gone: the file was removed at ") {
		t.Errorf("%q", missed)
	}
}

// A backup that was cut or changed is none, and one that could not be written leaves what was there.
func TestDamagedBackupIsNone(t *testing.T) {
	c := newCluster(t)
	path := c.saved(t)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	bad := filepath.Join(t.TempDir(), "bad")
	for name, b := range map[string][]byte{"empty": nil, "cut": whole[:len(whole)-1], "half": whole[:len(whole)/2],
		"changed": append(append(bytes.Clone(whole[:300]), whole[300]^1), whole[301:]...)} {
		if err := os.WriteFile(bad, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Check(bad); !errors.Is(err, meta.ErrSnapshot) {
			t.Errorf("%s: checked: %v", name, err)
		}
		if _, err := Open(bad); !errors.Is(err, meta.ErrSnapshot) {
			t.Errorf("%s: opened: %v", name, err)
		}
		write := func(w io.Writer) error { _, err := w.Write(b); return err }
		if _, err := Save(path, write); !errors.Is(err, meta.ErrSnapshot) {
			t.Errorf("%s: saved: %v", name, err)
		}
	}
	full := errors.New("no space left")
	if _, err := Save(path, func(io.Writer) error { return full }); !errors.Is(err, full) {
		t.Errorf("a failed write: %v", err)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, whole) {
		t.Errorf("the backup before is not there any more: %v", err)
	}
	if _, err := os.Stat(path + newSuffix); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a failed backup is left: %v", err)
	}
	b, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if _, err := b.Restore(t.Context(), Config{Into: filepath.Dir(path)}); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("into a directory with files: %v", err)
	}
	if _, err := b.Restore(t.Context(), Config{Into: t.TempDir(), Stores: []string{t.TempDir()}}); !errors.Is(err,
		syscall.ENOENT) {
		t.Errorf("from a directory that is no store: %v", err)
	}
}

// What a backup calls a name can't lead out of the directory.
func TestNamesStayInTheDirectory(t *testing.T) {
	for name, fine := range map[string]bool{"": false, ".": false, "..": false, "a/b": false, "../x": false,
		"a\x00": false, "...": true, "a b": true, "\xff": true, "é": true} {
		if isName(name) != fine {
			t.Errorf("%q: %v", name, !fine)
		}
	}
}
