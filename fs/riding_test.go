package fs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/fs/fstest"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
	"golang.org/x/sys/unix"
)

// changedFile is a file of one mount that was written and changed, and not closed yet. The kernel asks for its
// attributes again.
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

// A stat that reads the record from before the publish does not return the changed bytes without the attributes that
// rode along.
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

// changes of attributes, and how to see that they have been made.
var attrChanges = map[string]struct {
	do   func(path string) error
	seen func(t *testing.T, path string)
}{
	"chmod": {func(path string) error { return os.Chmod(path, 0o600) }, func(t *testing.T, path string) {
		wantMode(t, path, 0o600)
	}},
	"xattr": {func(path string) error { return unix.Setxattr(path, "user.tag", []byte("value"), 0) },
		func(t *testing.T, path string) { wantXattr(t, path, "user.tag", "value") }},
	"chtimes": {func(path string) error { return os.Chtimes(path, time.Unix(1e9, 5), time.Unix(1e9, 5)) },
		func(t *testing.T, path string) {
			if st, err := os.Stat(path); err != nil || !st.ModTime().Equal(time.Unix(1e9, 5)) {
				t.Errorf("%s: mtime %v, %v", path, st.ModTime(), err)
			}
		}},
}

// released waits until the closed files are released, except n of them, which are kept unpublished.
func released(t *testing.T, node *fstest.Node, n int) {
	t.Helper()
	eventually(t, func() error {
		list, err := node.Store().Stagings()
		if err != nil || len(list) != n || n > 0 && list[0].Open {
			return fmt.Errorf("%d staged files, %v", len(list), err)
		}
		return nil
	})
}

// TestAttributesInTheLastPublish: what is changed while the last close publishes the file is not lost with it.
func TestAttributesInTheLastPublish(t *testing.T) {
	for name, change := range attrChanges {
		for _, flags := range []int{os.O_CREATE, 0} {
			t.Run(fmt.Sprint(name, flags), func(t *testing.T) {
				eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
					path := filepath.Join(a, "f")
					if flags&os.O_CREATE == 0 {
						write(t, path, []byte("old"))
					}
					f, err := os.OpenFile(path, os.O_WRONLY|flags, 0o644)
					must(t, err)
					_, err = f.WriteString("bytes")
					must(t, err)
					c.Node(1).Before(func(context.Context, replicate.Push) error {
						c.Node(1).Before(nil)
						if err := change.do(path); err != nil {
							t.Error(err)
						}
						return nil
					})
					must(t, f.Close())
					released(t, c.Node(1), 0)
					change.seen(t, path)
					change.seen(t, filepath.Join(b, "f"))
				})
			})
		}
	}
}

// TestAttributesOfAFailedPublish: what others change while a file is open for writing stays, whatever becomes of what
// is written. The times are the times of the bytes.
func TestAttributesOfAFailedPublish(t *testing.T) {
	for name, change := range attrChanges {
		t.Run(name, func(t *testing.T) {
			eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
				path := filepath.Join(a, "f")
				write(t, path, []byte("old"))
				f, err := os.OpenFile(path, os.O_WRONLY, 0)
				must(t, err)
				_, err = f.WriteString("bytes")
				must(t, err)
				must(t, change.do(path))
				c.Node(1).Before(fstest.EIO)
				if err := f.Close(); err == nil {
					t.Error("close succeeded")
				}
				released(t, c.Node(1), 1)
				wantBytes(t, path, []byte("old"))
				if name == "chtimes" {
					if st, err := os.Stat(path); err != nil || st.ModTime().Unix() == 1e9 {
						t.Errorf("mtime %v, %v", st.ModTime(), err)
					}
					return
				}
				change.seen(t, path)
				change.seen(t, filepath.Join(b, "f"))
			})
		})
	}
}

// TestAttributesWithoutQuorum: what the log does not take when nobody writes the file any more is given up, and not
// shown.
func TestAttributesWithoutQuorum(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, _ string) {
		path := filepath.Join(a, "f")
		write(t, path, []byte("old"))
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		must(t, err)
		_, err = f.WriteString("bytes")
		must(t, err)
		must(t, os.Chmod(path, 0o600))
		c.Node(1).ReadOnly(true)
		defer c.Node(1).ReadOnly(false)
		if err := f.Close(); err == nil {
			t.Error("close succeeded")
		}
		released(t, c.Node(1), 1)
		eventually(t, func() error {
			if st, err := os.Stat(path); err != nil || st.Mode() != 0o644 {
				return fmt.Errorf("mode %v, %v", st.Mode(), err)
			}
			return nil
		})
	})
}

// TestManyAttributesOfAnOpenFile: more extended attributes than one entry of the log can hold are set before a file
// is closed.
func TestManyAttributesOfAnOpenFile(t *testing.T) {
	const count = 20
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		for i, flags := range []int{os.O_CREATE, 0} {
			path := filepath.Join(a, fmt.Sprint("f", i))
			if flags == 0 {
				write(t, path, []byte("old"))
			}
			f, err := os.OpenFile(path, os.O_WRONLY|flags, 0o644)
			must(t, err)
			_, err = f.WriteString("bytes")
			must(t, err)
			for k := range count {
				must(t, unix.Fsetxattr(int(f.Fd()), fmt.Sprint("user.", k), pattern(uint64(k), 64<<10), 0))
			}
			must(t, f.Close())
			got := make([]byte, 64<<10)
			for _, mnt := range []string{a, b} {
				for k := range count {
					n, err := unix.Getxattr(filepath.Join(mnt, filepath.Base(path)), fmt.Sprint("user.", k), got)
					if err != nil || !bytes.Equal(got[:n], pattern(uint64(k), 64<<10)) {
						t.Errorf("%s: attribute %d: %d bytes, %v", mnt, k, n, err)
					}
				}
			}
			wantBytes(t, filepath.Join(b, filepath.Base(path)), []byte("bytes"))
		}
		fd, err := unix.Open(a, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o640)
		must(t, err)
		defer unix.Close(fd)
		for k := range count {
			if err = unix.Fsetxattr(fd, fmt.Sprint("user.", k), pattern(uint64(k), 64<<10), 0); err != nil {
				break
			}
		}
		if err != unix.ENOSPC {
			t.Errorf("attributes of a file without a name: %v", err)
		}
		must(t, unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, filepath.Join(a, "named"),
			unix.AT_SYMLINK_FOLLOW))
	})
}

// TestTmpfileClosedWhileItIsLinked: another descriptor of a file that is being given its first name is closed.
func TestTmpfileClosedWhileItIsLinked(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		fd, err := unix.Open(a, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o640)
		must(t, err)
		defer unix.Close(fd)
		_, err = unix.Write(fd, []byte("bytes"))
		must(t, err)
		closed := make(chan error, 1)
		c.Node(1).Before(func(_ context.Context, p replicate.Push) error {
			if p.LinkName == "" {
				t.Errorf("inode %d is published without its name", p.Ino)
				return nil
			}
			dup, err := unix.Dup(fd)
			if err != nil {
				t.Error(err)
			}
			go func() { closed <- unix.Close(dup) }()
			select {
			case err := <-closed:
				closed <- err
			case <-time.After(100 * time.Millisecond): // it may wait for this
			}
			return nil
		})
		must(t, unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, filepath.Join(a, "named"),
			unix.AT_SYMLINK_FOLLOW))
		must(t, <-closed)
		wantBytes(t, filepath.Join(b, "named"), []byte("bytes"))
		if n := c.Node(1).Publishes.Load(); n != 1 {
			t.Errorf("%d publishes", n)
		}
	})
}

// A file is written with the bytes that it has: its time of change goes to the log alone. Who looks at the file
// meanwhile does not keep the old one.
func TestG3TimesOfAFileThatIsWrittenAsItWas(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		path := filepath.Join(a, "f")
		write(t, path, []byte("bytes"))
		released(t, c.Node(1), 0)
		must(t, os.Chtimes(path, time.Unix(1e9, 0), time.Unix(1e9, 0)))
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		must(t, err)
		_, err = f.WriteString("bytes")
		must(t, err)
		began, looked, closed := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		c.Node(1).Slow(func(op meta.Op) <-chan struct{} {
			if _, ok := op.(*meta.SetAttr); !ok {
				return nil
			}
			close(began)
			return looked
		})
		go func() { closed <- f.Close() }()
		<-began
		_, err = os.Stat(path)
		must(t, err)
		c.Node(1).Slow(nil)
		close(looked)
		must(t, <-closed)
		here, err := os.Stat(path)
		must(t, err)
		there, err := os.Stat(filepath.Join(b, "f"))
		must(t, err)
		if !here.ModTime().Equal(there.ModTime()) || here.ModTime().Equal(time.Unix(1e9, 0)) {
			t.Errorf("modified %v here, %v there", here.ModTime(), there.ModTime())
		}
	})
}

// A list of attributes that is made at the end of a publish has what rode in it.
func TestG3OwnXattrListAtTheEndOfAPublish(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, _ string) {
		f := changedFile(t, filepath.Join(a, "f"))
		c.Node(1).AfterXattrs(func() {
			if err := f.Sync(); err != nil {
				t.Error(err)
			}
		})
		list := make([]byte, 100)
		n, err := unix.Flistxattr(int(f.Fd()), list)
		if err != nil || string(list[:max(n, 0)]) != "user.tag\x00" {
			t.Errorf("attributes %q, %v", list[:max(n, 0)], err)
		}
		must(t, f.Close())
	})
}

// Changes that were to ride in a publish which turns out not to be needed go to the log by themselves: also when one of
// them takes back another, and when the file is gone.
func TestG3AttributesOfAFileThatIsWrittenAsItWas(t *testing.T) {
	for name, more := range map[string]func(c *fstest.Cluster, f *os.File) error{
		"an attribute that comes and goes": func(_ *fstest.Cluster, f *os.File) error {
			fd := int(f.Fd())
			return errors.Join(unix.Fsetxattr(fd, "user.tag", []byte("value"), 0), unix.Fremovexattr(fd, "user.tag"))
		},
		"removed on another node": func(c *fstest.Cluster, _ *os.File) error {
			c.Node(2).Unlink(t, meta.RootIno, "f")
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
				path := filepath.Join(a, "f")
				write(t, path, []byte("bytes"))
				f, err := os.OpenFile(path, os.O_WRONLY, 0)
				must(t, err)
				_, err = f.WriteString("bytes")
				must(t, err)
				must(t, f.Chmod(0o600))
				must(t, more(c, f))
				must(t, f.Close())
				if _, err := os.Stat(path); err == nil {
					wantMode(t, path, 0o600)
					wantMode(t, filepath.Join(b, "f"), 0o600)
				}
			})
		})
	}
}
