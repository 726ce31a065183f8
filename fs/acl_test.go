package fs_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	rdmcfs "github.com/rdmcfs/rdmcfs/fs"
	"github.com/rdmcfs/rdmcfs/fs/fstest"
	"golang.org/x/sys/unix"
)

const (
	accessList  = "system.posix_acl_access"
	defaultList = "system.posix_acl_default"
)

// list encodes an access control list: words of a tag, perhaps an id, and permissions, as u::6 u:1000:7 m::5.
func list(text string) []byte {
	tags := map[string]uint16{"u:": 1, "u": 2, "g:": 4, "g": 8, "m:": 16, "o:": 32}
	b := binary.LittleEndian.AppendUint32(nil, 2)
	for word := range strings.FieldsSeq(text) {
		id, perm := uint32(0xffffffff), uint16(word[len(word)-1]-'0')
		tag, ok := tags[word[:2]]
		if _, err := fmt.Sscanf(word[2:], "%d:", &id); err == nil || !ok {
			tag = tags[word[:1]]
		}
		b = binary.LittleEndian.AppendUint16(b, tag)
		b = binary.LittleEndian.AppendUint16(b, perm)
		b = binary.LittleEndian.AppendUint32(b, id)
	}
	return b
}

// aclSteps are done in an empty directory.
var aclSteps = []struct {
	name string
	do   func(dir string) error
}{
	{"a list of a file", func(d string) error {
		return errors.Join(os.WriteFile(d+"/f", []byte("x"), 0o640),
			unix.Setxattr(d+"/f", accessList, list("u::6 u:1000:7 g::4 g:50:6 m::7 o::0"), 0))
	}},
	{"chmod", func(d string) error { return os.Chmod(d+"/f", 0o604) }},
	{"chmod with setuid", func(d string) error { return os.Chmod(d+"/f", 0o751|fs.ModeSetuid) }},
	{"a list that a mode can say", func(d string) error {
		return unix.Setxattr(d+"/f", accessList, list("u::6 g::2 o::1"), 0)
	}},
	{"a list without a mask of others", func(d string) error {
		return unix.Setxattr(d+"/f", accessList, list("u::7 g::5 m::4 o::0"), 0)
	}},
	{"no list", func(d string) error { return unix.Removexattr(d+"/f", accessList) }},
	{"chmod without one", func(d string) error { return os.Chmod(d+"/f", 0o660) }},
	{"a file that is open", func(d string) error {
		f, err := os.OpenFile(d+"/open", os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return err
		}
		_, err = f.WriteString("x")
		err = errors.Join(err, unix.Fsetxattr(int(f.Fd()), accessList, list("u::6 u:7:6 g::0 m::6 o::0"), 0), f.Chmod(0o640))
		return errors.Join(err, f.Close())
	}},
	{"chmod of a directory", func(d string) error {
		err := errors.Join(os.Mkdir(d+"/d", 0o700), unix.Setxattr(d+"/d", accessList, list("u::7 u:7:7 g::0 m::7 o::0"), 0))
		return errors.Join(err, os.Chmod(d+"/d", 0o750))
	}},
	{"umask", func(d string) error { return make6(d + "/d") }},
	{"a default list", func(d string) error {
		return errors.Join(os.Mkdir(d+"/e", 0o700), unix.Setxattr(d+"/e", defaultList,
			list("u::7 u:8:7 g::5 g:9:1 m::7 o::4"), 0), make6(d+"/e"))
	}},
	{"below", func(d string) error { return make6(d + "/e/dir") }},
	{"a default list that a mode can say", func(d string) error {
		return errors.Join(os.Mkdir(d+"/s", 0o750), unix.Setxattr(d+"/s", defaultList, list("u::6 g::4 o::2"), 0),
			make6(d+"/s"))
	}},
	{"no default list", func(d string) error {
		return errors.Join(unix.Removexattr(d+"/e", defaultList), os.Mkdir(d+"/e/later", 0o777))
	}},
}

// make6 makes one of each in a directory.
func make6(d string) error {
	defer syscall.Umask(syscall.Umask(0o027))
	err := errors.Join(os.Mkdir(d+"/dir", 0o777), unix.Mkfifo(d+"/fifo", 0o666),
		unix.Mknod(d+"/node", unix.S_IFREG|0o666, 0), os.Symlink("x", d+"/link"))
	err = errors.Join(err, os.WriteFile(d+"/file", []byte("x"), 0o666), os.WriteFile(d+"/empty", nil, 0o777))
	fd, tmpErr := unix.Open(d, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o666)
	if tmpErr != nil {
		return errors.Join(err, tmpErr)
	}
	linkErr := unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, d+"/tmp",
		unix.AT_SYMLINK_FOLLOW)
	return errors.Join(err, linkErr, unix.Close(fd))
}

// aclsIn lists the modes and access control lists of all in a directory.
func aclsIn(t *testing.T, dir string) string {
	t.Helper()
	var out strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		fmt.Fprintf(&out, "%s %v", strings.TrimPrefix(path, dir), st.Mode())
		for _, name := range []string{accessList, defaultList} {
			buf := make([]byte, 1000)
			if n, err := unix.Lgetxattr(path, name, buf); err == nil {
				fmt.Fprintf(&out, " %x", buf[4:n])
			}
		}
		out.WriteString("\n")
		return nil
	})
	must(t, err)
	return out.String()
}

// TestAccessLists: access control lists and permission bits go together as on the disk's own file system, on every
// node.
func TestAccessLists(t *testing.T) {
	for mode, change := range modes {
		t.Run(mode, func(t *testing.T) {
			disk := t.TempDir()
			if err := unix.Setxattr(disk, accessList, list("u::7 u:1:0 g::5 m::5 o::5"), 0); err != nil {
				t.Skipf("no access control lists on %s: %v", disk, err)
			}
			withACL := func(o *rdmcfs.Options) { change(o); o.ACL = true }
			c := fstest.New(t, 2)
			a, b := c.Node(1).Mount(t, withACL), c.Node(2).Mount(t, withACL)
			for _, step := range aclSteps {
				if want, got := step.do(disk), step.do(a); fmt.Sprint(want) != strings.ReplaceAll(fmt.Sprint(got), a, disk) {
					t.Errorf("%s: %v, on the disk %v", step.name, got, want)
				}
				want := aclsIn(t, disk)
				for _, mnt := range []string{a, b} {
					if got := aclsIn(t, mnt); got != want {
						t.Fatalf("%s:\n%s\non the disk:\n%s", step.name, got, want)
					}
				}
			}
		})
	}
}

// TestAccessListsWithoutTheOption: they are refused as not supported.
func TestAccessListsWithoutTheOption(t *testing.T) {
	eachMode(t, func(t *testing.T, _ *fstest.Node, mnt string) {
		write(t, filepath.Join(mnt, "f"), nil)
		if err := unix.Setxattr(filepath.Join(mnt, "f"), accessList, list("u::6 u:1000:6 g::4 m::6 o::0"),
			0); err != unix.EOPNOTSUPP {
			t.Errorf("set: %v", err)
		}
		if _, err := unix.Getxattr(filepath.Join(mnt, "f"), accessList, nil); err != unix.EOPNOTSUPP {
			t.Errorf("get: %v", err)
		}
	})
}
