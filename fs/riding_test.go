package fs_test

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/rdmcfs/rdmcfs/fs/fstest"
	"github.com/rdmcfs/rdmcfs/replicate"
	"golang.org/x/sys/unix"
)

// changedFile is a file of one mount that was written and changed, and not closed yet. The kernel asks for its attributes again.
func changedFile(t *testing.T, path string) *os.File {
	t.Helper()
	write(t, path, []byte("old"))
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteString("bytes")
	must(t, err)
	must(t, f.Chmod(0o600))
	must(t, unix.Fsetxattr(int(f.Fd()), "user.tag", []byte("value"), 0))
	_, err = f.WriteString(" and more")
	must(t, err)
	return f
}

func wantMode(t *testing.T, path string, want fs.FileMode) {
	t.Helper()
	if st, err := os.Stat(path); err != nil || st.Mode() != want {
		t.Errorf("%s: mode %v, %v; want %v", path, st.Mode(), err, want)
	}
}

func wantXattr(t *testing.T, path, name, want string) {
	t.Helper()
	got := make([]byte, 100)
	n, err := unix.Getxattr(path, name, got)
	if err != nil || string(got[:n]) != want {
		t.Errorf("%s: %s is %q, %v; want %q", path, name, got[:max(n, 0)], err, want)
	}
}

// TestG3OwnAttributesInMidPublish: what was changed here is seen here also while it is being published, and after.
func TestG3OwnAttributesInMidPublish(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		path := filepath.Join(a, "f")
		f := changedFile(t, path)
		c.Node(1).Before(func(context.Context, replicate.Push) error {
			wantMode(t, path, 0o600)
			wantXattr(t, path, "user.tag", "value")
			return nil
		})
		must(t, f.Close())
		wantMode(t, path, 0o600)
		wantXattr(t, path, "user.tag", "value")
		wantMode(t, filepath.Join(b, "f"), 0o600)
	})
}

// A stat that reads the record of before the publish does not answer what was changed without what rode in it.
func TestG3OwnAttributesAtTheEndOfAPublish(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, _ string) {
		path := filepath.Join(a, "f")
		f := changedFile(t, path)
		began, looked, closed := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		c.Node(1).Before(func(context.Context, replicate.Push) error {
			close(began)
			<-looked
			return nil
		})
		go func() { closed <- f.Close() }()
		<-began
		c.Node(1).AfterRead(0, func() {
			close(looked)
			if err := <-closed; err != nil {
				t.Error(err)
			}
		})
		wantMode(t, path, 0o600)
		wantMode(t, path, 0o600)
	})
}
