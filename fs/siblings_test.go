package fs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/rdmcfs/rdmcfs/fs"
	"github.com/rdmcfs/rdmcfs/fs/fstest"
	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
)

// One program has a new file open by one mount of a node, and another one by another mount. The one that is killed
// gives nothing back: the other one's file keeps its name.
func TestNewFileThatAnotherMountHasOpenKeepsItsName(t *testing.T) {
	for name, change := range modes {
		for killed := range 2 {
			t.Run(fmt.Sprint(name, killed), func(t *testing.T) {
				testKilledBeside(t, change, killed)
			})
		}
	}
}

func testKilledBeside(t *testing.T, change func(*fs.Options), killed int) {
	n := fstest.New(t, 1).Node(1)
	mounts := [2]string{n.Mount(t, change), n.MountMore(t, change)}
	kill := func() {}
	begin := func(i int) *os.File {
		path := filepath.Join(mounts[i], "f")
		if i != killed {
			f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
			must(t, err)
			return f
		}
		cmd := shellIn(t.Context(), mounts[i], "-c", "exec 3>>f; echo; read x")
		in, err := cmd.StdinPipe()
		must(t, err)
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		kill = func() {
			must(t, cmd.Process.Kill())
			_ = cmd.Wait()
			_ = in.Close()
		}
		_, err = out.Read(make([]byte, 1))
		must(t, err)
		return nil
	}
	files := [2]*os.File{begin(0), begin(1)}
	f := files[1-killed]
	before, err := f.Stat()
	must(t, err)
	kill()
	eventually(t, func() error {
		list, err := n.Store().Stagings()
		open := slices.DeleteFunc(list, func(u content.Unpublished) bool { return !u.Open })
		if err != nil || len(open) != 1 {
			return fmt.Errorf("the file of the program that was killed is still staged: %+v, %v", list, err)
		}
		return nil
	})
	_, err = f.WriteString("bytes")
	must(t, err)
	must(t, f.Close())
	for _, mnt := range mounts {
		wantBytes(t, filepath.Join(mnt, "f"), []byte("bytes"))
		after, err := os.Stat(filepath.Join(mnt, "f"))
		must(t, err)
		was, is := before.Sys().(*syscall.Stat_t).Ino, after.Sys().(*syscall.Stat_t).Ino
		if was != is {
			t.Errorf("inode %d became %d: the name was given back", was, is)
		}
	}
}

// TestG3SiblingChangesWhatIsBeingChanged: a program changes by one mount what another program is changing by another
// mount of the same node, and that other call has not returned. The kernel of the other mount is notified, as of a
// change by another node.
func TestG3SiblingChangesWhatIsBeingChanged(t *testing.T) {
	for name, change := range modes {
		t.Run(name, func(t *testing.T) {
			n := fstest.New(t, 1).Node(1)
			a, b := n.Mount(t, change), n.MountMore(t, change)
			t.Run("name", func(t *testing.T) { testSiblingRemovesName(t, n, a, b) })
			t.Run("bytes", func(t *testing.T) { testSiblingPublishes(t, n, a, b) })
		})
	}
}

// whileWaiting does something while the answer to a change is on its way that is in the log.
func whileWaiting(t *testing.T, n *fstest.Node, which func(op meta.Op) bool, change func() error, meanwhile func()) {
	t.Helper()
	applied, wait := make(chan struct{}), make(chan struct{})
	var once atomic.Bool
	n.Late(func(op meta.Op) <-chan struct{} {
		if !which(op) || once.Swap(true) {
			return nil
		}
		close(applied)
		return wait
	})
	defer n.Late(nil)
	done := make(chan error, 1)
	go func() { done <- change() }()
	<-applied
	meanwhile()
	close(wait)
	must(t, <-done)
}

func isOp[T meta.Op](op meta.Op) bool {
	_, ok := op.(T)
	return ok
}

func testSiblingRemovesName(t *testing.T, n *fstest.Node, a, b string) {
	write(t, filepath.Join(b, "one"), []byte("one"))
	rename := func() error { return os.Rename(filepath.Join(b, "one"), filepath.Join(b, "name")) }
	whileWaiting(t, n, isOp[*meta.Rename], rename, func() { must(t, os.Remove(filepath.Join(a, "name"))) })
	for _, mnt := range []string{a, b} {
		if _, err := os.Stat(filepath.Join(mnt, "name")); !os.IsNotExist(err) {
			t.Errorf("%s has a name that was removed: %v", mnt, err)
		}
	}
}

// testSiblingPublishes: a reader keeps what it opened, which other opens would share.
func testSiblingPublishes(t *testing.T, n *fstest.Node, a, b string) {
	path := filepath.Join(b, "bytes")
	write(t, path, []byte("first"))
	w, err := os.OpenFile(path, os.O_WRONLY, 0)
	must(t, err)
	r, err := os.Open(path)
	must(t, err)
	defer r.Close()
	_, err = w.WriteString("older")
	must(t, err)
	whileWaiting(t, n, isOp[*meta.Publish], w.Close, func() { write(t, filepath.Join(a, "bytes"), []byte("newer")) })
	eventually(t, func() error {
		for _, mnt := range []string{a, b} {
			got, err := os.ReadFile(filepath.Join(mnt, "bytes"))
			if err != nil || string(got) != "newer" {
				return fmt.Errorf("opened again by %s: %q, %v", mnt, got, err)
			}
		}
		return nil
	})
}

// A program renames by one mount what another one creates by another mount, as soon as the name is there: that the call
// of the other one has not returned is no reason to say that there is none.
func TestNewFileIsRenamedByAnotherMount(t *testing.T) {
	n := fstest.New(t, 1).Node(1)
	a, b := n.Mount(t, nil), n.MountMore(t, nil)
	create := func() error { return os.WriteFile(filepath.Join(a, "f"), []byte("bytes"), 0o644) }
	var renamed error
	whileWaiting(t, n, isOp[*meta.Create], create, func() {
		renamed = os.Rename(filepath.Join(b, "f"), filepath.Join(b, "g"))
	})
	must(t, renamed)
	for _, mnt := range []string{a, b} {
		wantBytes(t, filepath.Join(mnt, "g"), []byte("bytes"))
	}
}
