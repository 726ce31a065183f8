package fs

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Flags are changes to the flags of mount(2), as the words of mount(8) make them. The zero value changes nothing.
type Flags struct{ set, clear uintptr }

// defaultFlags are those of a mount for which no word says otherwise.
const defaultFlags = unix.MS_NOSUID | unix.MS_NODEV

// flagWords are the words of mount(8) and what each sets and clears.
var flagWords = map[string]Flags{
	"ro": {set: unix.MS_RDONLY}, "rw": {clear: unix.MS_RDONLY},
	"nosuid": {set: unix.MS_NOSUID}, "suid": {clear: unix.MS_NOSUID},
	"nodev": {set: unix.MS_NODEV}, "dev": {clear: unix.MS_NODEV},
	"noexec": {set: unix.MS_NOEXEC}, "exec": {clear: unix.MS_NOEXEC},
	"nosymfollow": {set: unix.MS_NOSYMFOLLOW}, "symfollow": {clear: unix.MS_NOSYMFOLLOW},
	"sync": {set: unix.MS_SYNCHRONOUS}, "async": {clear: unix.MS_SYNCHRONOUS},
	"dirsync":    {set: unix.MS_DIRSYNC},
	"nodiratime": {set: unix.MS_NODIRATIME}, "diratime": {clear: unix.MS_NODIRATIME},
	"noatime":     {set: unix.MS_NOATIME, clear: timesOfAccess},
	"relatime":    {set: unix.MS_RELATIME, clear: timesOfAccess},
	"strictatime": {set: unix.MS_STRICTATIME, clear: timesOfAccess},
	"atime":       {clear: unix.MS_NOATIME}, "norelatime": {clear: unix.MS_RELATIME},
	"nostrictatime": {clear: unix.MS_STRICTATIME},
}

// timesOfAccess are the flags of which one holds.
const timesOfAccess = unix.MS_NOATIME | unix.MS_RELATIME | unix.MS_STRICTATIME

// Add applies a word of mount(8): a later one wins. False says that it is none of those that are flags.
func (f *Flags) Add(word string) bool {
	w, known := flagWords[word]
	f.set = f.set&^w.clear | w.set
	f.clear = f.clear&^w.set | w.clear&^w.set
	return known
}

// Writable reports whether a word asks for a mount that may be written.
func (f Flags) Writable() bool { return f.clear&unix.MS_RDONLY != 0 }

// on gives flags with the changes.
func (f Flags) on(flags uintptr) uintptr { return flags&^f.clear | f.set }

// ErrNotMounted says that a directory is no mount of rdmcfs.
var ErrNotMounted = errors.New("no mount of rdmcfs")

// Remount changes the flags of a mount, of this node or another one; what no word named stays.
func Remount(dir string, change Flags) error {
	m := mountAt(dir)
	if m.kind != fsType {
		return fmt.Errorf("%s: %w", dir, ErrNotMounted)
	}
	var flags Flags
	for word := range strings.SplitSeq(m.options, ",") {
		flags.Add(word)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|change.on(flags.set), ""); err != nil {
		return os.NewSyscallError("mount(2)", err)
	}
	return nil
}
