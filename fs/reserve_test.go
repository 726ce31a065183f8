package fs_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/fs"
	"github.com/rdmcfs/rdmcfs/fs/fstest"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
	"golang.org/x/sys/unix"
)

// A new file that is open while its node is taken for dead keeps its name: close and fsync do not say 0 for a file
// that is nowhere.
func TestFencedNameIsReservedAgain(t *testing.T) {
	bytesOf := map[string][]byte{"empty": nil, "inline": []byte("inline"), "large": pattern(1, 100_000)}
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		must(t, os.Mkdir(filepath.Join(a, "d"), 0o755))
		for name, want := range bytesOf {
			path := filepath.Join("d", name)
			f, err := os.OpenFile(filepath.Join(a, path), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o640)
			must(t, err)
			c.Fence(t, 1)
			_, err = f.Write(want)
			must(t, err)
			if name == "inline" {
				must(t, f.Sync())
				wantBytes(t, filepath.Join(b, path), want)
			}
			must(t, f.Close())
			for _, mnt := range []string{a, b} {
				wantBytes(t, filepath.Join(mnt, path), want)
				if st, err := os.Stat(filepath.Join(mnt, path)); err != nil || st.Mode() != 0o640 {
					t.Errorf("%s: %v %v", path, st, err)
				}
			}
		}
	})
}

// What was set on a new file before it has a version outlasts each fence: it goes with the first version.
func TestFencedTwiceKeepsAttributes(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		path := filepath.Join(a, "f")
		f, err := os.Create(path)
		must(t, err)
		must(t, unix.Fsetxattr(int(f.Fd()), "user.color", []byte("blue"), 0))
		must(t, f.Chmod(0o604))
		var ahead atomic.Int64
		c.Node(1).Slow(func(op meta.Op) <-chan struct{} {
			if set, ok := op.(*meta.SetAttr); ok && len(set.Patch.SetXattr) > 0 {
				ahead.Add(1)
			}
			return nil
		})
		for range 2 {
			c.Fence(t, 1)
			eventually(t, func() error { _, err := os.Stat(path); return err })
		}
		must(t, f.Close())
		if ahead.Load() != 0 {
			t.Error("attributes were given to a reserved name")
		}
		buf := make([]byte, 10)
		n, err := unix.Getxattr(filepath.Join(b, "f"), "user.color", buf)
		if err != nil || string(buf[:n]) != "blue" {
			t.Errorf("attribute %q %v", buf[:max(n, 0)], err)
		}
		if st, err := os.Stat(filepath.Join(b, "f")); err != nil || st.Mode() != 0o604 {
			t.Errorf("%v %v", st, err)
		}
	})
}

// The fence comes while the file is being pushed: the publish finds no name.
func TestFencedInMidPushIsPublishedAgain(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		var once sync.Once
		c.Node(1).Before(func(context.Context, replicate.Push) error {
			once.Do(func() { c.Fence(t, 1) })
			return nil
		})
		write(t, filepath.Join(a, "f"), pattern(1, 9000))
		wantBytes(t, filepath.Join(b, "f"), pattern(1, 9000))
		write(t, filepath.Join(a, "f"), []byte("again"))
		wantBytes(t, filepath.Join(b, "f"), []byte("again"))
	})
}

// G7: another node has made a file of that name meanwhile. Its file stays, close says so, and the bytes are kept.
func TestG7FencedNameIsTaken(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		f, err := os.Create(filepath.Join(a, "f"))
		must(t, err)
		_, err = f.WriteString("mine")
		must(t, err)
		open := make(chan struct{})
		c.Node(1).Slow(func(op meta.Op) <-chan struct{} { return open }) // it can't reserve the name at once
		c.Fence(t, 1)
		write(t, filepath.Join(b, "f"), []byte("yours"))
		close(open)
		if err := f.Sync(); !isErrno(err, syscall.EEXIST) {
			t.Errorf("fsync: %v, want %v", err, syscall.EEXIST)
		}
		if err := f.Close(); !isErrno(err, syscall.EEXIST) {
			t.Errorf("close: %v, want %v", err, syscall.EEXIST)
		}
		wantBytes(t, filepath.Join(a, "f"), []byte("yours"))
		wantBytes(t, filepath.Join(b, "f"), []byte("yours"))
		eventually(t, func() error {
			list, err := c.Node(1).Store().Stagings()
			if err != nil || len(list) != 1 || list[0].Reason == "" {
				return fmt.Errorf("unpublished: %+v %v", list, err)
			}
			return nil
		})
	})
}

// A program of another node gives a name that is only reserved here to its own file. No fence did it: close says 0,
// as for any file that was removed while it was written, and the bytes are an orphan version.
func TestReservedNameIsTakenByARename(t *testing.T) {
	for _, fence := range []bool{false, true} {
		eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
			f, err := os.Create(filepath.Join(a, "f"))
			must(t, err)
			_, err = f.Write(pattern(1, 9000))
			must(t, err)
			write(t, filepath.Join(b, "t"), []byte("other"))
			must(t, os.Rename(filepath.Join(b, "t"), filepath.Join(b, "f")))
			if fence {
				c.Fence(t, 1)
			}
			must(t, f.Close())
			for _, mnt := range []string{a, b} {
				wantBytes(t, filepath.Join(mnt, "f"), []byte("other"))
			}
			if got := len(c.Node(1).Pushes()); got != 1 {
				t.Errorf("%d publishes", got)
			}
		})
	}
}

// A fence does not bring back what a program has removed, also if its unlink is under way.
func TestFencedAndRemovedStaysRemoved(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		for i := range 20 {
			path := filepath.Join(a, "f")
			f, err := os.Create(path)
			must(t, err)
			c.Fence(t, 1)
			eventually(t, func() error { _, err := os.Stat(path); return err })
			removed := make(chan error)
			go func() { removed <- os.Remove(path) }()
			_, err = fmt.Fprint(f, i)
			must(t, err)
			if i%2 == 0 {
				must(t, f.Sync())
			}
			must(t, <-removed)
			must(t, f.Close())
			if _, err := os.Stat(path); !os.IsNotExist(err) {
				t.Fatalf("a removed file: %v", err)
			}
		}
	})
}

// A program that uses the name of its open file just after a fence finds it, though it is not reserved again yet.
func TestNameIsUsedJustAfterAFence(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		c.Node(1).Slow(func(op meta.Op) <-chan struct{} {
			if _, ok := op.(*meta.Create); !ok {
				return nil
			}
			late := make(chan struct{})
			time.AfterFunc(200*time.Millisecond, func() { close(late) })
			return late
		})
		for what, use := range map[string]func(path string) error{
			"unlink": os.Remove,
			"rename": func(path string) error { return os.Rename(path, path+"-renamed") },
			"stat":   func(path string) error { _, err := os.Stat(path); return err },
		} {
			path := filepath.Join(a, what)
			f, err := os.Create(path)
			must(t, err)
			_, err = f.WriteString("bytes")
			must(t, err)
			c.Fence(t, 1)
			if err := use(path); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			must(t, f.Close())
			if _, err := os.Stat(filepath.Join(b, what)); (err == nil) != (what == "stat") {
				t.Errorf("after %s another node says of the name: %v", what, err)
			}
		}
		wantBytes(t, filepath.Join(b, "rename-renamed"), []byte("bytes"))
	})
}

// The program's unlink finds the file reserved again already, and its node does not know that yet.
func TestRemovedWhileReservedAgainStaysRemoved(t *testing.T) {
	fs.SetLostWait(t, 100*time.Millisecond) // it has to end: the answer comes after the unlink
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		path := filepath.Join(a, "f")
		f, err := os.Create(path)
		must(t, err)
		_, err = f.WriteString("bytes")
		must(t, err)
		n := c.Node(1)
		create, answer, unlink := make(chan struct{}), make(chan struct{}), make(chan struct{})
		unlinking, created := make(chan struct{}), make(chan struct{})
		n.Slow(func(op meta.Op) <-chan struct{} {
			switch op.(type) {
			case *meta.Create:
				return create
			case *meta.Unlink:
				close(unlinking)
				return unlink
			}
			return nil
		})
		n.Late(func(op meta.Op) <-chan struct{} {
			if _, ok := op.(*meta.Create); !ok {
				return nil
			}
			close(created)
			return answer
		})
		st, err := f.Stat()
		must(t, err)
		n.Mounted().DropCaches()
		// between the kernel's lookup of the name and its unlink
		n.AfterInode(meta.Ino(st.Sys().(*syscall.Stat_t).Ino), func() { c.Fence(t, 1) })
		removed := make(chan error)
		go func() { removed <- os.Remove(path) }()
		<-unlinking
		close(create)
		<-created
		close(unlink)
		must(t, <-removed)
		n.Slow(nil)
		n.Late(nil)
		close(answer)
		c.Fence(t, 1)
		must(t, f.Close())
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("a removed file: %v", err)
		}
		if got := n.Pushes(); len(got) != 0 {
			t.Errorf("%d publishes of a removed file", len(got))
		}
	})
}

// A program that is killed inside open(O_CREAT) leaves no name, although the log takes the create afterwards.
func TestKilledInsideCreateLeavesNoName(t *testing.T) {
	eachMode(t, func(t *testing.T, n *fstest.Node, mnt string) {
		open, entered := make(chan struct{}), make(chan struct{}, 10)
		n.Slow(func(op meta.Op) <-chan struct{} {
			if _, ok := op.(*meta.Create); !ok {
				return nil
			}
			entered <- struct{}{}
			return open
		})
		cmd := shellIn(t.Context(), mnt, "-c", "exec > f")
		must(t, cmd.Start())
		<-entered
		must(t, cmd.Process.Kill())
		_ = cmd.Wait()
		close(open)
		eventually(t, func() error {
			if n.Proposals.Load() < 2 {
				return fmt.Errorf("the name was not given back")
			}
			if _, err := os.Stat(filepath.Join(mnt, "f")); !os.IsNotExist(err) {
				return fmt.Errorf("a name that nobody has: %v", err)
			}
			return nil
		})
	})
}

// A create whose outcome is unknown, as the leader died on the way, is EIO. The log has it after all: the name, which
// nobody has open, is given back.
func TestUnknownCreateLeavesNoName(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		applied := make(chan struct{})
		c.Node(1).Unknown(func(op meta.Op) <-chan struct{} {
			if _, ok := op.(*meta.Create); ok {
				return applied
			}
			return nil
		})
		if _, err := os.Create(filepath.Join(a, "f")); !errors.Is(err, syscall.EIO) {
			t.Fatalf("a create of unknown outcome: %v", err)
		}
		c.Node(1).Unknown(nil)
		close(applied)
		eventually(t, func() error {
			f, err := os.OpenFile(filepath.Join(b, "f"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
			if err != nil {
				return fmt.Errorf("the name was not given back: %w", err)
			}
			return f.Close()
		})
	})
}

// TestUnknownChangeComesFirst: an unlink or rename fails with an unknown outcome, and the program goes on and writes
// the file under that name. The change comes first, whenever the log takes it: the file that was closed with 0 has
// its name.
func TestUnknownChangeComesFirst(t *testing.T) {
	want := pattern(7, 50_000)
	write := func(path string) error { return os.WriteFile(path, want, 0o644) }
	for name, c := range map[string]struct {
		change func(dir string) error
		write  func(path string) error
	}{
		"unlink, write": {func(dir string) error { return os.Remove(filepath.Join(dir, "f")) }, write},
		"rename to, write": {func(dir string) error { return os.Rename(filepath.Join(dir, "g"), filepath.Join(dir, "f")) },
			write},
		"rename from, write": {func(dir string) error { return os.Rename(filepath.Join(dir, "f"), filepath.Join(dir, "g")) },
			write},
		"rename to, truncate": {func(dir string) error { return os.Rename(filepath.Join(dir, "g"), filepath.Join(dir, "f")) },
			func(path string) error {
				want := pattern(7, 50_000)
				if err := os.Truncate(path, 0); err != nil {
					return err
				}
				f, err := os.OpenFile(path, os.O_WRONLY, 0)
				if err != nil {
					return err
				}
				_, err = f.Write(want)
				return errors.Join(err, f.Close())
			}},
	} {
		t.Run(name, func(t *testing.T) {
			eachPair(t, func(t *testing.T, c2 *fstest.Cluster, a, b string) {
				must(t, os.WriteFile(filepath.Join(a, "f"), []byte("old f"), 0o644))
				must(t, os.WriteFile(filepath.Join(a, "g"), []byte("old g"), 0o644))
				applied := make(chan struct{})
				c2.Node(1).Unknown(func(op meta.Op) <-chan struct{} { return applied })
				if err := c.change(a); !errors.Is(err, syscall.EIO) {
					t.Fatalf("a change of unknown outcome: %v", err)
				}
				c2.Node(1).Unknown(nil)
				done := make(chan error, 1)
				go func() { done <- c.write(filepath.Join(a, "f")) }()
				select {
				case err := <-done:
					done <- err
				case <-time.After(300 * time.Millisecond): // it waits for the change
				}
				close(applied)
				must(t, <-done)
				wantBytes(t, filepath.Join(b, "f"), want)
				wantBytes(t, filepath.Join(a, "f"), want)
			})
		})
	}
}

// A fence in mid-push of a new file ends the push, since the inode is gone. The name is reserved again, and the file
// pushed under it.
func TestFencedInMidPushIsPushedUnderItsName(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		path := filepath.Join(a, "f")
		f, err := os.Create(path)
		must(t, err)
		want := pattern(1, 100_000)
		_, err = f.Write(want)
		must(t, err)
		var once sync.Once
		c.Node(1).Before(func(ctx context.Context, p replicate.Push) (err error) {
			once.Do(func() {
				c.Fence(t, 1)
				ino, err2 := p.Rename(ctx)
				if _, gone := c.Node(1).Names().Inode(ino); err2 != nil || gone != nil || ino == p.Ino {
					t.Errorf("the file is inode %d, %v: %v", ino, gone, err2)
				}
				err = fmt.Errorf("test: %w", replicate.ErrNoInode)
			})
			return err
		})
		must(t, f.Close())
		wantBytes(t, filepath.Join(b, "f"), want)
		if got := c.Node(1).Pushes(); len(got) != 2 || got[0].Ino == got[1].Ino {
			t.Errorf("%d pushes", len(got))
		}
	})
}

// A name is given back, since the only program that had the file open was killed, while another one renames it by
// another mount of the node: the file that nobody has open goes, whatever its name is by then.
func TestNameGivenBackWhileItIsRenamed(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		rename, unlink := make(chan struct{}), make(chan struct{})
		renaming, unlinking := make(chan struct{}, 10), make(chan struct{}, 10)
		c.Node(1).Slow(func(op meta.Op) <-chan struct{} {
			switch op.(type) {
			case *meta.Rename:
				renaming <- struct{}{}
				return rename
			case *meta.Unlink:
				unlinking <- struct{}{}
				return unlink
			}
			return nil
		})
		cmd := child(t, "wait", filepath.Join(c.Node(1).MountMore(t, nil), "f"))
		renamed := make(chan error, 1)
		go func() { renamed <- os.Rename(filepath.Join(a, "f"), filepath.Join(a, "g")) }()
		<-renaming
		must(t, cmd.Process.Kill())
		_ = cmd.Wait()
		<-unlinking
		close(rename)
		must(t, <-renamed)
		close(unlink)
		eventually(t, func() error {
			if _, err := os.Lstat(filepath.Join(a, "g")); !os.IsNotExist(err) {
				return fmt.Errorf("a file that nobody has open is still there: %v", err)
			}
			return nil
		})
	})
}

// The same of a new file whose publish had an unknown outcome when it was closed, and was refused then.
func TestRefusedPublishOfUnknownOutcomeLeavesNoName(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		applied, session := make(chan struct{}), meta.ContentID{}
		c.Node(1).Unknown(func(op meta.Op) <-chan struct{} {
			if publish, ok := op.(*meta.Publish); ok {
				session = publish.Session
				return applied
			}
			return nil
		})
		f, err := os.Create(filepath.Join(a, "f"))
		must(t, err)
		_, err = f.WriteString("bytes")
		must(t, err)
		if err := f.Close(); !errors.Is(err, syscall.EIO) {
			t.Fatalf("a close of unknown outcome: %v", err)
		}
		c.Node(1).Unknown(nil)
		if res, err := c.Node(1).Propose(t.Context(), &meta.Abort{Session: session}); err != nil || res.Errno != 0 {
			t.Fatal(res, err)
		}
		close(applied)
		eventually(t, func() error {
			f, err := os.OpenFile(filepath.Join(b, "f"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
			if err != nil {
				return fmt.Errorf("the name was not given back: %w", err)
			}
			return f.Close()
		})
	})
}

// A name that nobody has open, since its open(O_CREAT) got EIO, is neither renamed nor linked: it is about to be given
// back, and would vanish under the new name.
func TestNameThatIsGivenBackIsNotRenamed(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		applied, unlink, unlinking := make(chan struct{}), make(chan struct{}), make(chan struct{}, 10)
		write(t, filepath.Join(a, "g"), []byte("good"))
		c.Node(1).Unknown(func(op meta.Op) <-chan struct{} {
			if _, ok := op.(*meta.Create); ok {
				return applied
			}
			return nil
		})
		c.Node(1).Slow(func(op meta.Op) <-chan struct{} {
			if _, ok := op.(*meta.Unlink); ok {
				unlinking <- struct{}{}
				return unlink
			}
			return nil
		})
		if _, err := os.Create(filepath.Join(a, "f")); !errors.Is(err, syscall.EIO) {
			t.Fatalf("a create of unknown outcome: %v", err)
		}
		c.Node(1).Unknown(nil)
		close(applied)
		<-unlinking
		for _, to := range []string{"g", "h"} {
			if err := os.Rename(filepath.Join(a, "f"), filepath.Join(a, to)); !errors.Is(err, syscall.ENOENT) {
				t.Errorf("rename to %s: %v", to, err)
			}
		}
		if err := os.Link(filepath.Join(a, "f"), filepath.Join(a, "l")); !errors.Is(err, syscall.ENOENT) {
			t.Errorf("link: %v", err)
		}
		close(unlink)
		wantBytes(t, filepath.Join(b, "g"), []byte("good"))
	})
}

// A name is given back, since its program was killed inside open(O_CREAT), while another program opens it. The other
// program's file keeps its name: nobody removed it.
func TestNameGivenBackWhileItIsOpened(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		create, unlink := make(chan struct{}), make(chan struct{})
		entered, unlinking := make(chan struct{}, 10), make(chan struct{}, 10)
		c.Node(1).Slow(func(op meta.Op) <-chan struct{} {
			switch op.(type) {
			case *meta.Create:
				entered <- struct{}{}
				return create
			case *meta.Unlink:
				unlinking <- struct{}{}
				return unlink
			}
			return nil
		})
		cmd := shellIn(t.Context(), a, "-c", "exec > f")
		must(t, cmd.Start())
		<-entered
		must(t, cmd.Process.Kill())
		_ = cmd.Wait()
		close(create)
		<-unlinking
		f, err := os.OpenFile(filepath.Join(a, "f"), os.O_CREATE|os.O_WRONLY, 0o644)
		must(t, err)
		st, err := f.Stat()
		must(t, err)
		close(unlink)
		_, err = f.WriteString("bytes")
		must(t, err)
		eventually(t, func() error {
			if _, err := c.Node(1).Names().Inode(meta.Ino(st.Sys().(*syscall.Stat_t).Ino)); !errors.Is(err, meta.ErrNotFound) {
				return fmt.Errorf("the name is still there (%v)", err)
			}
			return nil
		})
		must(t, f.Close())
		for _, mnt := range []string{a, b} {
			wantBytes(t, filepath.Join(mnt, "f"), []byte("bytes"))
		}
	})
}

// A file whose publish had an unknown outcome, and that was published again since, is shared as before: who reads it
// sees what another program of this node writes.
func TestFileIsSharedAgainAfterAnUnknownOutcome(t *testing.T) {
	eachMode(t, func(t *testing.T, n *fstest.Node, mnt string) {
		applied := make(chan struct{})
		n.Unknown(func(op meta.Op) <-chan struct{} {
			if _, ok := op.(*meta.Publish); ok {
				return applied
			}
			return nil
		})
		f, err := os.Create(filepath.Join(mnt, "f"))
		must(t, err)
		_, err = f.WriteString("bytes")
		must(t, err)
		if err := f.Sync(); !errors.Is(err, syscall.EIO) {
			t.Fatalf("a sync of unknown outcome: %v", err)
		}
		n.Unknown(nil)
		close(applied)
		_, err = n.Settle(t.Context())
		must(t, err)
		_, err = f.WriteString(" and more")
		must(t, err)
		must(t, f.Sync())
		r, err := os.Open(filepath.Join(mnt, "f"))
		must(t, err)
		defer r.Close()
		must(t, f.Close())
		<-time.After(300 * time.Millisecond) // until it is released
		g, err := os.OpenFile(filepath.Join(mnt, "f"), os.O_WRONLY, 0)
		must(t, err)
		_, err = g.WriteAt([]byte("B"), 0)
		must(t, err)
		got := make([]byte, 1)
		if _, err := r.ReadAt(got, 0); err != nil || got[0] != 'B' {
			t.Errorf("a reader sees %q, %v", got, err)
		}
		must(t, g.Close())
	})
}
