package fs_test

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/rdmcfs/rdmcfs/fs/fstest"
	"github.com/rdmcfs/rdmcfs/meta"
	"golang.org/x/sys/unix"
)

// More extended attributes than a file can have are refused when they are set, and not with its bytes at the close.
func TestTooManyXattrsOfAnOpenFile(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		f, err := os.Create(filepath.Join(a, "f"))
		must(t, err)
		_, err = f.WriteString("bytes")
		must(t, err)
		set := func(i int) error { return unix.Fsetxattr(int(f.Fd()), fmt.Sprint("user.", i), []byte("value"), 0) }
		for i := range meta.XattrsMax {
			if i == 10 {
				must(t, f.Sync()) // these are in the log
				_, err = f.WriteString(" and more")
				must(t, err)
			}
			must(t, set(i))
		}
		if err := set(meta.XattrsMax); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("one more: %v", err)
		}
		must(t, set(3))
		must(t, unix.Fremovexattr(int(f.Fd()), "user.4"))
		must(t, f.Sync())
		must(t, set(meta.XattrsMax))
		must(t, f.Close())
		wantBytes(t, filepath.Join(b, "f"), []byte("bytes and more"))
	})
}

// Times that can't be stored become the nearest one, on all nodes; those before 1970 are kept to the nanosecond.
func TestTimesFarAway(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		path := filepath.Join(a, "f")
		must(t, os.WriteFile(path, nil, 0o644))
		for _, tc := range []struct{ set, want unix.Timespec }{
			{unix.Timespec{Sec: -1 << 31, Nsec: 123456789}, unix.Timespec{Sec: -1 << 31, Nsec: 123456789}},
			{unix.Timespec{Sec: 1 << 33, Nsec: 1}, unix.Timespec{Sec: 1 << 33, Nsec: 1}},
			{unix.Timespec{Sec: 15032385535}, unix.NsecToTimespec(math.MaxInt64)},
			{unix.Timespec{Sec: -1 << 40}, unix.NsecToTimespec(math.MinInt64)},
		} {
			must(t, unix.UtimesNano(path, []unix.Timespec{tc.set, tc.set}))
			for _, p := range []string{path, filepath.Join(b, "f")} {
				var st unix.Stat_t
				must(t, unix.Stat(p, &st))
				if st.Mtim != tc.want || st.Atim != tc.want {
					t.Errorf("%s: set %v, got %v and %v", p, tc.set, st.Mtim, st.Atim)
				}
			}
		}
	})
}

// lsattr finds no flags, on files and directories; chattr that would set one fails.
func TestFlagsOfInodes(t *testing.T) {
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, _ string) {
		must(t, os.WriteFile(filepath.Join(a, "f"), []byte("x"), 0o644))
		for _, name := range []string{"f", "."} {
			f, err := os.Open(filepath.Join(a, name))
			must(t, err)
			defer f.Close()
			flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
			if err != nil || uint32(flags) != 0 {
				t.Errorf("%s: flags %x, %v", name, flags, err)
			}
			if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, 0); err != nil {
				t.Errorf("%s: no flags: %v", name, err)
			}
			const immutable = 0x10 // FS_IMMUTABLE_FL
			if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, immutable); err != unix.EOPNOTSUPP {
				t.Errorf("%s: immutable: %v", name, err)
			}
		}
	})
}
