package fs_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/rdmcfs/rdmcfs/fs/fstest"
)

// A descriptor can be opened again by /proc/self/fd, as `cat /dev/stdin` does, when its file has a newer version or
// no name any more.
func TestReopenByDescriptor(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		for name, change := range map[string]func(path string) error{
			"written there": func(path string) error {
				return os.WriteFile(filepath.Join(a, path), []byte("a new version"), 0o644)
			},
			"written here": func(path string) error {
				return os.WriteFile(filepath.Join(b, path), []byte("a new version"), 0o644)
			},
			"removed there": func(path string) error { return os.Remove(filepath.Join(a, path)) },
			"removed here":  func(path string) error { return os.Remove(filepath.Join(b, path)) },
		} {
			for _, size := range []int{3, 9000} {
				path := fmt.Sprint(name, size)
				old := pattern(uint64(size), size)
				write(t, filepath.Join(a, path), old)
				r, err := os.Open(filepath.Join(b, path))
				must(t, err)
				must(t, change(path))
				if name == "written here" {
					old = []byte("a new version") // programs of one node share a file
				}
				for range 3 {
					wantBytes(t, fmt.Sprintf("/proc/self/fd/%d", r.Fd()), old)
					got, err := os.ReadFile(filepath.Join(b, path))
					if os.IsNotExist(err) {
						continue
					}
					if err != nil || string(got) != "a new version" {
						t.Errorf("%s: by its name %q, %v", path, got, err)
					}
				}
				must(t, r.Close())
			}
		}
	})
}

// A small file that others replace by rename, whose bytes go with it, is there for an open.
func TestReplacedFileCanBeOpened(t *testing.T) {
	const rounds = 400
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		write(t, filepath.Join(a, "f"), []byte("bytes"))
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := range rounds {
				err := os.WriteFile(filepath.Join(a, "new"), fmt.Append(nil, "bytes", i), 0o644)
				if err == nil {
					err = os.Rename(filepath.Join(a, "new"), filepath.Join(a, "f"))
				}
				if err != nil {
					t.Error(err)
				}
			}
		}()
		opens, failed := 0, map[string]int{}
		for over := false; !over; opens++ {
			select {
			case <-done:
				over = true
			default:
			}
			for _, flags := range []int{os.O_RDONLY, os.O_RDWR} {
				f, err := os.OpenFile(filepath.Join(b, "f"), flags, 0)
				if err != nil {
					failed[err.Error()]++
					continue
				}
				must(t, f.Close())
			}
		}
		bad := 0
		for _, n := range failed {
			bad += n
		}
		if bad > max(1, opens/100) { // the kernel looks a name up again once, and the second file may go as well
			t.Errorf("of %d opens: %v", 2*opens, failed)
		}
	})
}

// O_CREAT without O_EXCL of a name that another node has just given to a directory opens that, or says that it is one.
func TestCreateBesideMkdir(t *testing.T) {
	const rounds = 2000
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			for range rounds {
				if os.Mkdir(filepath.Join(a, "x"), 0o755) == nil {
					_ = os.Remove(filepath.Join(a, "x"))
				}
			}
		}()
		for over := false; !over; {
			select {
			case <-done:
				over = true
			default:
			}
			f, err := os.OpenFile(filepath.Join(b, "x"), os.O_CREATE|os.O_WRONLY, 0o644)
			if errors.Is(err, syscall.EEXIST) {
				t.Error(err)
				<-done
				return
			}
			if err == nil {
				must(t, f.Close())
				_ = os.Remove(filepath.Join(b, "x"))
			}
		}
	})
}
