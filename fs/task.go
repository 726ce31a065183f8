package fs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// otherProcess reports whether the thread that closes a file is of another process than the one that opened it. False
// may also mean that this is not known.
func otherProcess(closer, opener uint32) bool {
	if closer == opener || closer == 0 || opener == 0 {
		return false
	}
	of := processOf(closer)
	if of == "" {
		return false
	}
	by := processOf(opener)
	return by != "" && of != by
}

// processOf is the number of a thread's process, as /proc has it; empty if it is not known in time.
func processOf(tid uint32) string {
	raw, err := readProc(tid, "status", descriptorWait)
	if err != nil || tid == 0 {
		return ""
	}
	_, rest, _ := bytes.Cut(raw, []byte("\nTgid:"))
	word, _, _ := bytes.Cut(rest, []byte("\n"))
	return string(bytes.TrimSpace(word))
}

// ticksPerSecond is the unit of times in /proc.
const ticksPerSecond = 100

// began is when a process began: see startOf.
func began(process string) (start time.Duration, ok bool) {
	tgid, err := strconv.ParseUint(process, 10, 32)
	if err != nil {
		return 0, false
	}
	return startOf(uint32(tgid), procWait)
}

// startOf is when a thread began, as time since the boot, and not later than it did. It is not known of a thread in
// execve, for which this waits until the limit.
func startOf(tid uint32, limit time.Duration) (start time.Duration, ok bool) {
	const startField = 22
	raw, err := readProc(tid, "stat", limit)
	if err != nil {
		return 0, false
	}
	ticks, ok := statField(raw, startField)
	return time.Duration(ticks) * time.Second / ticksPerSecond, ok
}

// sinceBoot is the time since the boot.
func sinceBoot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

// programOf names the program that a task runs; empty if it is not known, as of one in execve.
func programOf(tid uint32) string {
	name, _ := inTime(procWait, func() string {
		name, err := os.Readlink("/proc/" + strconv.FormatUint(uint64(tid), 10) + "/exe")
		if err != nil {
			return ""
		}
		return name
	})
	return name
}

// wroteAnything reports whether a process has written to any file. True may also mean that this is not known.
func wroteAnything(tid uint32) bool {
	raw, err := readProc(tid, "io", descriptorWait)
	if err != nil {
		return true
	}
	_, rest, ok := bytes.Cut(raw, []byte("wchar:"))
	word, _, _ := bytes.Cut(rest, []byte("\n"))
	return !ok || string(bytes.TrimSpace(word)) != "0"
}

// descriptorsMax is how many descriptors of a process are looked at.
const descriptorsMax = 4096

// openWriters are the descriptors of a task that may write a file.
type openWriters struct {
	n        int
	standard bool // one is its standard input, output or error output
	all      bool // there are no others
}

// countWriters looks for the descriptors of a task that may write an inode of that number on a device. It reads this
// from /proc and does not touch the descriptors. A task that ends has none any more.
func countWriters(tid uint32, device string, ino uint64) openWriters {
	w, _ := inTime(descriptorWait, func() openWriters { return readWriters(tid, device, ino) })
	return w
}

func readWriters(tid uint32, device string, ino uint64) (w openWriters) {
	task := "/proc/" + strconv.FormatUint(uint64(tid), 10)
	dir, err := os.Open(task + "/fdinfo")
	if err != nil {
		return w
	}
	defer dir.Close()
	names, err := dir.Readdirnames(descriptorsMax)
	w.all = len(names) < descriptorsMax && (err == nil || errors.Is(err, io.EOF))
	for _, name := range names {
		raw, err := os.ReadFile(dir.Name() + "/" + name)
		if err != nil && !os.IsNotExist(err) {
			w.all = false
		}
		// Of a task in execve the text can be read, but not where the descriptor leads.
		if err == nil && isInode(raw, ino) && isWriter(raw) && isOn(task+"/fd/"+name, device) {
			w.n++
			w.standard = w.standard || len(name) == 1 && name <= "2"
		}
	}
	return w
}

// isInode reports whether the text of /proc/PID/fdinfo/N belongs to a descriptor of an inode of that number.
func isInode(raw []byte, ino uint64) bool {
	return bytes.Contains(raw, fmt.Appendf(nil, "\nino:\t%d\n", ino))
}

// isWriter reports whether the text of /proc/PID/fdinfo/N belongs to a descriptor that may write.
func isWriter(raw []byte) bool {
	_, rest, _ := bytes.Cut(raw, []byte("\nflags:"))
	word, _, _ := bytes.Cut(rest, []byte("\n"))
	flags, err := strconv.ParseUint(string(bytes.TrimSpace(word)), 8, 64)
	return err == nil && flags&unix.O_ACCMODE != unix.O_RDONLY
}

// isOn reports whether a file is on a device, by what the kernel has cached: no file system is asked, and never ours.
// If a device is not known it returns true.
func isOn(path, device string) bool {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC, 0, &st)
	if err != nil {
		return err != unix.ENOENT // a descriptor that was closed
	}
	return device == "" || device == fmt.Sprintf("%d:%d", st.Dev_major, st.Dev_minor)
}
