package meta

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/rdmcfs/rdmcfs/internal/durable"
)

// The data directory of a DB:
//
//	LOCK       held while open
//	CURRENT    name of the state directory in use, replaced by rename
//	state-N/   one badger store with its SYNCED marker; others than CURRENT's are leftovers and removed
//	RESERVE    space kept for a full disk
const (
	lockName    = "LOCK"
	currentName = "CURRENT"
	statePrefix = "state-"
)

// ErrLocked is returned by Open of a directory that is open already.
var ErrLocked = errors.New("meta: the data directory is in use by another process")

// layout is a data directory that this process owns.
type layout struct {
	root string
	lock *os.File
	num  int  // of the current state directory
	lost bool // CURRENT is gone, and the state that it must have named is there; or it names none
}

func openLayout(root string) (*layout, error) {
	if err := durable.MakeDir(root); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(root, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = ErrLocked
		}
		return nil, err
	}
	l := &layout{root: root, lock: f}
	if err := l.readCurrent(); err != nil {
		return nil, errors.Join(err, l.close())
	}
	return l, nil
}

// readCurrent finds the state in use, and removes all others. num is 0 when there is none yet.
func (l *layout) readCurrent() error {
	raw, err := os.ReadFile(filepath.Join(l.root, currentName))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err == nil {
		if l.num, err = l.named(strings.TrimSpace(string(raw))); err != nil {
			return err
		}
		l.lost = l.num == 0
	}
	states, err := filepath.Glob(filepath.Join(l.root, statePrefix+"*"))
	if err != nil {
		return err
	}
	if l.num == 0 {
		l.findLost(states)
	}
	for _, s := range states {
		if l.num == 0 || filepath.Base(s) != l.name(l.num) {
			if err := os.RemoveAll(s); err != nil {
				return err
			}
		}
	}
	return nil
}

// named is the number of the state of that name, 0 if there is none.
func (l *layout) named(name string) (num int, err error) {
	if _, err := fmt.Sscanf(name, statePrefix+"%d", &num); err != nil || num < 1 || name != l.name(num) {
		return 0, nil
	}
	if _, err = os.Stat(l.path(num)); errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	return num, err
}

// findLost looks for a state that was in use, when CURRENT names none. One that was never named has applied nothing.
func (l *layout) findLost(states []string) {
	for _, s := range states {
		var num int
		if _, err := fmt.Sscanf(filepath.Base(s), statePrefix+"%d", &num); err != nil || num <= l.num {
			continue
		}
		if index, found := readMarker(filepath.Join(s, markerName)); found && index > 0 {
			l.num, l.lost = num, true
		}
	}
}

func (l *layout) name(num int) string { return fmt.Sprintf("%s%d", statePrefix, num) }

func (l *layout) path(num int) string { return filepath.Join(l.root, l.name(num)) }

// use makes a state directory the current one, for good.
func (l *layout) use(num int) error {
	tmp := filepath.Join(l.root, currentName+".tmp")
	if err := os.WriteFile(tmp, []byte(l.name(num)+"\n"), 0o600); err != nil {
		return err
	}
	for _, sync := range []string{tmp, l.path(num)} {
		if err := durable.Sync(sync); err != nil {
			return err
		}
	}
	if err := os.Rename(tmp, filepath.Join(l.root, currentName)); err != nil {
		return err
	}
	l.num = num
	return durable.Sync(l.root)
}

// fresh makes an empty store in the next state directory; drop closes and removes it.
func (l *layout) fresh(opts Options) (s kvStore, drop func() error, err error) {
	num := l.num + 1
	if err := l.drop(num); err != nil {
		return nil, nil, err
	}
	b, _, err := openBadger(l.path(num), opts)
	if err != nil {
		return nil, nil, errors.Join(err, l.drop(num))
	}
	return b, func() error { return errors.Join(b.close(), l.drop(num)) }, nil
}

// drop removes a state directory that CURRENT does not name.
func (l *layout) drop(num int) error {
	if num == l.num {
		return nil
	}
	return os.RemoveAll(l.path(num))
}

func (l *layout) close() error { return l.lock.Close() }
