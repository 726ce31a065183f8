package fs

import (
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// isStranger reports whether others are writing a file, or were killed, and a process has no part in what is
// unpublished of it. Then the process publishes nothing of it, neither when it closes a descriptor of the file,
// closing, nor when it renames, links or syncs the file without one (nil). With passthrough the daemon sees no writes,
// so this must be proven:
//
//   - The process has no descriptor by which it could have written since the last publish. Nothing was written since
//     the closed one was opened, and it has no others. Or the process is younger than all that was written.
//   - It has, and had, no mapping by which it could have.
//   - It has not left bytes to another process before.
//
// When in doubt the process has a part.
func (pub *publisher) isStranger(pid uint32, l *live, closing *handle, st StageStat) bool {
	killed := l.isKilled()
	if l.unchanged(st) || !pub.hasOthers(l, closing, killed) {
		return false
	}
	process := processOf(pid)
	return process != "" && !l.hasLeft(process) && pub.wroteNothing(pid, process, l, closing, st) &&
		!pub.mayHaveStored(pid, process, l, closing) && (killed || pub.othersWriting(l, closing) > 0)
}

// isKilled reports whether a process was killed that had written, and nothing was published since.
func (l *live) isKilled() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.kept == keptForKilled
}

// hasOthers reports whether a live file has a handle that may write besides one, or the process that had it was killed,
// and the number of its inode is what programs see. It waits for nothing.
func (pub *publisher) hasOthers(l *live, closing *handle, killed bool) bool {
	pub.nodes.mu.Lock()
	defer pub.nodes.mu.Unlock()
	n, _ := l.users.others(closing)
	return (killed || n > 0) && !l.node.numbered
}

// wroteNothing reports whether a process certainly has not written by a descriptor what is unpublished. What it wrote
// by a descriptor that it has closed was decided upon then.
func (pub *publisher) wroteNothing(
	pid uint32, process string, l *live, closing *handle, st StageStat,
) bool {
	if closing == nil || l.still(closing.opened, st) {
		if w := pub.writersOf(pid, l); w.all && w.n == 0 {
			return true
		}
	}
	return l.isOlderThan(process, st)
}

// mayHaveStored reports whether a process may have stored through a mapping what is unpublished. A store need not
// change any times. So it is asked who could ever have had a mapping: the processes that had the file open for reading
// and writing, and those that inherited their memory, which run the same program. The first store through a mapping of
// closing itself does change the times, on file systems where [storesShow].
func (pub *publisher) mayHaveStored(pid uint32, process string, l *live, closing *handle) bool {
	l.mu.Lock()
	mappers, many := slices.Clone(l.parts.mappers), l.parts.many
	l.mu.Unlock()
	if many {
		return true
	}
	for _, m := range mappers {
		if m.open != nil && m.open == closing && storesShow(l.stage.Fd()) {
			continue
		}
		if m.mayBe(pid, process) {
			return true
		}
	}
	return false
}

// parts are the processes that may have a part in what is unpublished of a live file, besides those that have a
// descriptor of it. Protected by live.mu.
type parts struct {
	mappers []mapper
	left    []string // processes that left bytes to the process that opened the file
	many    bool     // there were more: any process may be one
	retimed retimed
}

// partsMax bounds the processes that are remembered of a live file.
const partsMax = 64

// mapper is a thread that could map a file for writing.
type mapper struct {
	tid   uint32
	at    time.Duration // when it was noted, since the boot
	since time.Duration // when the handle was opened
	open  *handle       // that it opened; nil if it closed a descriptor of another one's open

	process, program string // whose thread it is, and what that runs; empty until somebody asks
}

// look finds out whose thread a mapper is, if it has not ended.
func (m mapper) look() (process, program string) {
	start, known := startOf(m.tid, descriptorWait)
	if !known || start > m.at {
		return "", "" // another thread has its number
	}
	return processOf(m.tid), programOf(m.tid)
}

// mayBe reports whether a process may be the one of a mapper, or may have inherited its memory.
func (m mapper) mayBe(pid uint32, process string) bool {
	if m.tid == pid {
		return true // it may be in execve, where it can't be looked at
	}
	of, now := m.process, programOf(m.tid)
	if of == "" {
		of, now = m.look()
	}
	if of == "" || of == process {
		return true
	}
	program := programOf(pid)
	if program != "" && now != "" && program != now && program != m.program {
		return false
	}
	start, known := began(process)
	return !known || start+time.Second/ticksPerSecond > m.since
}

// knowMappers finds out whose threads could map a live file, as long as they are there: another one begins to write it.
func (l *live) knowMappers() {
	l.mu.Lock()
	all := slices.Clone(l.parts.mappers)
	l.mu.Unlock()
	for i, m := range all {
		if m.process != "" {
			continue
		}
		process, program := m.look()
		l.mu.Lock()
		l.parts.mappers[i].process, l.parts.mappers[i].program = process, program // none is ever taken out
		l.mu.Unlock()
	}
}

// mapsBy notes a thread that opens a handle, or closes a descriptor of it, if it could map the file for writing.
func (l *live) mapsBy(h *handle, tid uint32, opens bool) {
	if !h.maps || !opens && tid == h.opener {
		return
	}
	m := mapper{tid: tid, at: sinceBoot()}
	if opens {
		h.since, m.open = m.at, h
	} else if m.process = processOf(tid); m.process != "" && m.process == processOf(h.opener) {
		return // it is there already
	}
	m.since = h.since
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.parts.mappers) == partsMax {
		l.parts.many = true
		return
	}
	l.parts.mappers = append(l.parts.mappers, m)
}

// leftBy notes that a process has left bytes to another one.
func (l *live) leftBy(process string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.parts.left) == partsMax {
		l.parts.left = slices.DeleteFunc(l.parts.left, func(p string) bool {
			_, err := os.Stat("/proc/" + p)
			return os.IsNotExist(err)
		})
	}
	switch {
	case process == "" || len(l.parts.left) == partsMax:
		l.parts.many = true
	case !slices.Contains(l.parts.left, process):
		l.parts.left = append(l.parts.left, process)
	}
}

// hasLeft reports whether a process may have left bytes to another one.
func (l *live) hasLeft(process string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.parts.many || slices.Contains(l.parts.left, process)
}

// storesShow reports whether the first store through a mapping changes the times of a file: not on tmpfs, which maps
// pages for writing when they are only read.
func storesShow(fd int) bool {
	var st unix.Statfs_t
	if fd < 0 || unix.Fstatfs(fd, &st) != nil {
		return false
	}
	switch st.Type {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC:
		return true
	}
	return false
}
