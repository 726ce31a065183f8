package doctor

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Host is how a machine is looked at. Every field must be set.
type Host struct {
	ReadFile func(path string) (string, error) // contents without the final newline
	Glob     func(pattern string) []string
	Release  func() string           // of the kernel, as in uname -r
	Access   func(path string) error // whether it can be opened for reading and writing
	Limit    func(resource int) (soft, hard uint64)
	FreeDisk func(path string) (free, total uint64, fsType int64, err error) // of the nearest directory that exists
	UID      func() int
	RDMA     func() RDMA // what there is, and whether the daemon's settings find it
}

// ThisHost is the machine that the program runs on. rdma looks at its RDMA devices.
func ThisHost(rdma func() RDMA) Host {
	return Host{
		ReadFile: func(path string) (string, error) {
			b, err := os.ReadFile(path)
			return strings.TrimRight(string(b), "\n"), err
		},
		Glob: func(pattern string) []string {
			found, err := filepath.Glob(pattern)
			if err != nil {
				return nil
			}
			return found
		},
		Release:  release,
		Access:   access,
		Limit:    limit,
		FreeDisk: freeDisk,
		UID:      os.Geteuid,
		RDMA:     rdma,
	}
}

func release() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	name, _, _ := bytes.Cut(u.Release[:], []byte{0})
	return string(name)
}

func access(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

func limit(resource int) (soft, hard uint64) {
	var r unix.Rlimit
	if err := unix.Getrlimit(resource, &r); err != nil {
		return 0, 0
	}
	return r.Cur, r.Max
}

func freeDisk(path string) (free, total uint64, fsType int64, err error) {
	for {
		var st unix.Statfs_t
		err = unix.Statfs(path, &st)
		if err == nil {
			return st.Bavail * uint64(st.Frsize), st.Blocks * uint64(st.Frsize), int64(st.Type), nil
		}
		if err != unix.ENOENT || path == filepath.Dir(path) {
			return 0, 0, 0, fmt.Errorf("doctor: %s: %w", path, err)
		}
		path = filepath.Dir(path)
	}
}

// kernel is the major and minor version; zeros when the text is odd.
func kernel(release string) (major, minor int) {
	parts := strings.SplitN(release, ".", 3)
	if len(parts) < 2 {
		return 0, 0
	}
	major, _ = strconv.Atoi(parts[0])
	digits := strings.IndexFunc(parts[1], func(r rune) bool { return r < '0' || r > '9' })
	if digits < 0 {
		digits = len(parts[1])
	}
	minor, _ = strconv.Atoi(parts[1][:digits])
	return major, minor
}

// atLeast reports whether the host's kernel is of that version or later.
func (h Host) atLeast(major, minor int) bool {
	haveMajor, haveMinor := kernel(h.Release())
	return haveMajor > major || haveMajor == major && haveMinor >= minor
}

// capable reports whether this process has a capability, by its number.
func (h Host) capable(number uint) bool {
	text, err := h.ReadFile("/proc/self/status")
	if err != nil {
		return false
	}
	for line := range strings.SplitSeq(text, "\n") {
		if hex, ok := strings.CutPrefix(line, "CapEff:"); ok {
			set, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
			return err == nil && set&(1<<number) != 0
		}
	}
	return false
}
