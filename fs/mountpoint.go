package fs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Errors of a mount point, each with what to do about it.
var (
	ErrMountPointMissing  = errors.New("no such directory: make it first")
	ErrMountPointNotDir   = errors.New("not a directory")
	ErrMountPointNotEmpty = errors.New("directory is not empty, perhaps since a program wrote into it while nothing was " +
		"mounted there: move its files away, or hide them by -o nonempty")
	ErrMountPointInUse = errors.New("something is mounted there already: unmount it or choose another directory")
	ErrDataOnMount     = errors.New("directory of the daemon lies on the mount point: choose another one")
)

// mountPoint checks a mount point and gives its real path. It clears away a mount that a dead daemon left.
func mountPoint(dir string, keep []string, nonEmpty bool) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if err := clearStale(abs); err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(abs)
	if errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("%s: %w", abs, ErrMountPointMissing)
	} else if err != nil {
		return "", err
	}
	st, err := os.Stat(real)
	switch {
	case err != nil:
		return "", err
	case !st.IsDir():
		return "", fmt.Errorf("%s: %w", real, ErrMountPointNotDir)
	case isMounted(real):
		return "", fmt.Errorf("%s: %w", real, ErrMountPointInUse)
	}
	if err := checkKept(real, keep); err != nil {
		return "", err
	}
	d, err := os.Open(real)
	if err != nil {
		return "", err
	}
	defer d.Close()
	if names, _ := d.Readdirnames(1); len(names) > 0 && !nonEmpty {
		return "", fmt.Errorf("%s: %w", real, ErrMountPointNotEmpty)
	}
	return real, nil
}

// checkKept refuses directories of the daemon that the mount would hide: it must never use its own mount.
func checkKept(dir string, keep []string) error {
	if cwd, err := os.Getwd(); err == nil {
		keep = append(append([]string{}, keep...), cwd)
	}
	for _, k := range keep {
		abs, err := filepath.Abs(k)
		if err != nil {
			return err
		}
		if real, err := filepath.EvalSymlinks(abs); err == nil {
			abs = real
		}
		if within(abs, dir) {
			return fmt.Errorf("%s in %s: %w", abs, dir, ErrDataOnMount)
		}
	}
	return nil
}

func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// clearStale detaches mounts of ours whose daemon is dead: every use of such a path gives ENOTCONN, except that plain
// attributes may still come from the kernel's cache.
func clearStale(dir string) error {
	const layersMax = 16
	for range layersMax {
		var st unix.Statx_t
		const ask = unix.AT_SYMLINK_NOFOLLOW | unix.AT_STATX_FORCE_SYNC
		if err := unix.Statx(unix.AT_FDCWD, dir, ask, unix.STATX_BASIC_STATS, &st); !errors.Is(err, unix.ENOTCONN) {
			return nil
		}
		if kind := mountType(dir); kind != fsType {
			return fmt.Errorf("%s: dead mount of type %q: unmount it first", dir, kind)
		}
		if err := detach(dir); err != nil {
			return fmt.Errorf("%s: detach the mount of a dead daemon: %w", dir, err)
		}
	}
	return fmt.Errorf("%s: too many dead mounts on top of each other", dir)
}

func detach(dir string) error { return unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) }

// IsMount reports whether the topmost file system mounted at dir is a mount of rdmcfs, of this node or another one.
func IsMount(dir string) bool { return mountType(dir) == fsType }

func isMounted(dir string) bool { return mountType(dir) != "" }

// mountType is the type of the topmost file system mounted at dir, or "".
func mountType(dir string) string { return mountAt(dir).kind }

// mountedDevice is the device number of the topmost file system mounted at dir, or "".
func mountedDevice(dir string) string { return mountAt(dir).dev }

// MountAbove returns the mount of rdmcfs, of this node or another one, that a path lies on, or "". The path need not
// exist: the nearest directory above it that exists counts. It touches the file system only to resolve the links of the
// path, so a mount whose daemon is dead is found too.
func MountAbove(path string) string {
	abs, err := filepath.Abs(path)
	if err != nil {
		return ""
	}
	return mountAbove(realPrefix(abs), readMounts())
}

// mountAbove looks for the mount that holds a path: the innermost one, and of several at one place the last.
func mountAbove(path string, mounts []mountLine) string {
	var top mountLine
	for _, m := range mounts {
		if within(path, m.dir) && len(m.dir) >= len(top.dir) {
			top = m
		}
	}
	if top.kind != fsType {
		return ""
	}
	return top.dir
}

// realPrefix resolves the links of a path as far as it exists.
func realPrefix(abs string) string {
	rest := ""
	for dir := abs; ; dir = filepath.Dir(dir) {
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			return filepath.Join(real, rest)
		}
		if dir == filepath.Dir(dir) {
			return abs
		}
		rest = filepath.Join(filepath.Base(dir), rest)
	}
}

func mountAt(dir string) (top mountLine) {
	for _, m := range readMounts() {
		if m.dir == dir {
			top = m
		}
	}
	return top
}

type mountLine struct{ dev, dir, options, kind string }

// readMounts reads /proc/self/mountinfo, in the order of mounting.
func readMounts() []mountLine {
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	var out []mountLine
	for line := range strings.Lines(string(raw)) {
		if m, ok := parseMount(line); ok {
			out = append(out, m)
		}
	}
	return out
}

// parseMount reads a line: id, parent, device, root, mount point, options, optional fields, "-", type, ...
func parseMount(line string) (mountLine, bool) {
	head, tail, ok := strings.Cut(line, " - ")
	fields, rest := strings.Fields(head), strings.Fields(tail)
	if !ok || len(fields) < 6 || len(rest) < 1 {
		return mountLine{}, false
	}
	m := mountLine{dev: fields[2], dir: unescapeMount(fields[4]), options: fields[5], kind: rest[0]}
	if len(rest) > 2 && strings.HasPrefix(rest[2], "rw,") {
		m.options += strings.TrimPrefix(rest[2], "rw") // of the file system: sync; the mount itself may be read-only
	}
	return m, true
}

var mountEscapes = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

func unescapeMount(s string) string { return mountEscapes.Replace(s) }
