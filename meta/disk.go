package meta

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// DefaultReserveBytes is the size of the reserve file where the disk is not nearly empty.
const DefaultReserveBytes = 256 << 20

// While much is free, the reserve is small: an empty node takes little. It is taken whole when less than reserveNear is
// free, and looked after so often that a disk which is written at fillRate can't become full in between.
const (
	reserveFew  = 8 << 20
	reserveNear = 8 << 30
	fillRate    = 4 << 30 // bytes per second
	keepMin     = time.Second
	keepMax     = 30 * time.Second
)

// Space that must be free beside the reserve. A flush of a memtable and the compactions it sets off write some
// 40 MiB through shared mappings, where a full disk kills the process.
const (
	// below: changes should no longer be proposed; below with the reserve: nor should names be removed
	spaceWarn  = 128 << 20
	spaceFloor = 96 << 20 // below: the reserve is given up, slice by slice
	spaceStop  = 48 << 20 // below, and no reserve left: nothing is applied
	spaceSlice = 32 << 20
	// checkBytes is how much is applied between two looks at the disk.
	checkBytes = 256 << 10
	// logBytes is how much of a memtable's log can be written before the next one begins.
	logBytes = memTableBytes + memTableBytes/4
)

const reserveName = "RESERVE"

// disk keeps badger from stores into mapped files that a full disk can't back, which end in SIGBUS:
//
//   - The next memtable's log is created ahead, empty but with its blocks allocated (FALLOC_FL_KEEP_SIZE). Badger
//     opens the empty file as if it had made it, extends it, and finds the space there.
//   - Tables are written when a memtable is full. There must be space for them before more is applied, if need be
//     from the reserve file.
//
// Another program that takes the last 48 MiB within the milliseconds between a look and a flush can still win.
type disk struct {
	log   *slog.Logger
	goal  int64 // of the reserve
	near  int64 // with less than this free, the reserve is taken whole
	root  string
	mu    sync.Mutex
	state string // badger's directory; the fields below belong to it
	next  int    // number of the memtable log made ahead
	since int64  // applied since the last look
	have  int64  // size of the reserve now
}

func newDisk(root string, goal int64, log *slog.Logger) *disk {
	return &disk{root: root, goal: goal, near: reserveNear, log: log, since: checkBytes}
}

// prepare frees the reserve, so that an opening has room, and removes logs that were made ahead and not used: badger
// takes an empty log for a damaged one. open says that badger already has the state open: then its logs stay.
func (d *disk) prepare(state string, open bool) error {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.state = state
	d.have = 0
	if err := os.Remove(filepath.Join(d.root, reserveName)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if open {
		return nil
	}
	logs, err := filepath.Glob(filepath.Join(state, "*.mem"))
	if err != nil {
		return err
	}
	for _, name := range logs {
		if fi, err := os.Stat(name); err == nil && fi.Size() == 0 {
			if err := os.Remove(name); err != nil {
				return err
			}
		}
	}
	free, err := freeBytes(d.root)
	if err != nil {
		return err
	}
	// Each log left by a crash becomes a table.
	if need := int64(spaceStop + len(logs)*logBytes); free < need {
		return fmt.Errorf("%d MiB are free, %d MiB needed: %w", free>>20, need>>20, ErrNoSpace)
	}
	return nil
}

// opened allocates what badger made while it opened, and takes the reserve again.
func (d *disk) opened() error {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.next = 0
	logs, err := filepath.Glob(filepath.Join(d.state, "*.mem"))
	if err != nil {
		return err
	}
	for _, name := range logs {
		var fid int
		if _, err := fmt.Sscanf(filepath.Base(name), "%05d.mem", &fid); err == nil {
			d.next = max(d.next, fid)
		}
	}
	return d.look()
}

// admit reports whether another entry may be applied.
func (d *disk) admit(entryBytes int) error {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.since += int64(entryBytes)
	if d.since < checkBytes {
		return nil
	}
	return d.look()
}

// wrote counts what a commit put into the log.
func (d *disk) wrote(writes []kvWrite) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, w := range writes {
		d.since += int64(len(w.key) + len(w.value) + 32)
	}
}

// look makes the next log ahead, and keeps space free by giving up the reserve. Until it succeeds, it is done again
// for every entry.
func (d *disk) look() error {
	d.since = checkBytes
	for {
		err := d.ahead()
		free, serr := freeBytes(d.root)
		switch {
		case serr != nil:
			return serr
		case err == nil && free >= spaceFloor:
			d.since = 0
			return d.retake(free)
		case d.have > 0 && (err == nil || errors.Is(err, unix.ENOSPC)):
			if err := d.shrink(); err != nil {
				return err
			}
		case errors.Is(err, unix.ENOSPC) || err == nil && free < spaceStop:
			return ErrNoSpace
		default:
			return err
		}
	}
}

// ahead makes sure that the log after the active one exists with its space.
func (d *disk) ahead() error {
	for {
		name := filepath.Join(d.state, fmt.Sprintf("%05d.mem", d.next))
		fi, err := os.Stat(name)
		if err == nil && fi.Size() == 0 {
			return nil
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		used := err == nil
		if !used && d.next == 0 {
			d.next = 1
			continue
		}
		if err := allocate(name, logBytes, unix.FALLOC_FL_KEEP_SIZE); err != nil {
			return err
		}
		if !used {
			return nil
		}
		d.next++
	}
}

// allocate gives a file, made if need be, blocks for its first n bytes.
func allocate(name string, n int64, mode uint32) error {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	err = unix.Fallocate(int(f.Fd()), mode, 0, n)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil // nothing better can be done here
	}
	if err != nil {
		if fi, serr := f.Stat(); serr == nil && fi.Size() == 0 {
			os.Remove(name)
		}
		return fmt.Errorf("allocate %s: %w", name, err)
	}
	return nil
}

// shrink gives a slice of the reserve back to the disk.
func (d *disk) shrink() error {
	d.have = max(0, d.have-spaceSlice)
	if d.log != nil {
		d.log.Warn("disk nearly full: state database uses its reserve", "left", d.have)
	}
	name := filepath.Join(d.root, reserveName)
	if err := os.Truncate(name, d.have); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// want is how large the reserve should be.
func (d *disk) want(free int64) int64 {
	if free >= d.near {
		return min(d.goal, reserveFew)
	}
	return d.goal
}

// retake grows the reserve while that leaves enough free.
func (d *disk) retake(free int64) error {
	want := d.want(free)
	if d.have >= want || free-(want-d.have) < spaceWarn {
		return nil
	}
	err := allocate(filepath.Join(d.root, reserveName), want, 0)
	if err == nil {
		d.have = want
	}
	if errors.Is(err, unix.ENOSPC) {
		return nil
	}
	return err
}

// roomFor reports whether n bytes can be written to a store that is being filled.
func (d *disk) roomFor(n int64) error {
	if d == nil {
		return nil
	}
	free, err := freeBytes(d.root)
	if err == nil && free < spaceFloor+n {
		err = ErrNoSpace
	}
	return err
}

func freeBytes(dir string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, fmt.Errorf("meta: space of %s: %w", dir, err)
	}
	return int64(s.Bavail) * s.Frsize, nil
}

// keep takes the reserve whole if the disk is no longer nearly empty, and returns after which time it must be called
// again.
func (d *disk) keep() time.Duration {
	if d == nil {
		return keepMax
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	free, err := freeBytes(d.root)
	if err == nil && free >= spaceWarn && d.have > 0 { // else the state is being opened, or low takes the reserve again
		_ = d.retake(free)
	}
	return min(max(time.Duration((free-d.near)/(fillRate/1000))*time.Millisecond, keepMin), keepMax)
}

// low reports whether changes should be refused before they are proposed.
func (d *disk) low() bool {
	if d == nil {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	free, err := freeBytes(d.root)
	if err == nil && free >= spaceWarn && d.have < d.want(free) {
		err = d.retake(free)
	}
	return err != nil || free < spaceWarn || d.have < d.want(free)
}

// bare reports whether so much of the reserve is used up that names must not even be removed.
func (d *disk) bare() bool {
	if d == nil {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	free, err := freeBytes(d.root)
	return err != nil || free+d.have < spaceWarn
}

// release gives up the reserve before a close, which flushes.
func (d *disk) release() {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.have = 0
	_ = os.Remove(filepath.Join(d.root, reserveName))
}
