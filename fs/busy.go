package fs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// BusyError lists the processes that use a mount.
type BusyError struct {
	Dir   string
	Users []User
}

// User is a process that uses a mount.
type User struct {
	PID     int
	Command string
	Path    string // of one file it has there
}

// Error names the first users.
func (e *BusyError) Error() string {
	const shown = 5
	var b strings.Builder
	fmt.Fprintf(&b, "fs: unmount %s: in use", e.Dir)
	for i, u := range e.Users {
		if i == shown {
			fmt.Fprintf(&b, " and %d more", len(e.Users)-shown)
			break
		}
		fmt.Fprintf(&b, "; %s (pid %d) has %s", u.Command, u.PID, u.Path)
	}
	return b.String()
}

// Unwrap makes errors.Is(err, EBUSY) hold.
func (e *BusyError) Unwrap() error { return syscall.EBUSY }

// Bounds of the look for users: reading /proc can wait for a process that waits for us.
const (
	usersMax   = 2 * time.Second
	userLook   = 100 * time.Millisecond
	usersListN = 64
)

// usersOf looks through /proc for processes that have something open under dir, as far as it gets in bounded time.
func usersOf(dir string) []User {
	procs, _ := filepath.Glob("/proc/[0-9]*")
	deadline := time.Now().Add(usersMax)
	var users []User
	for _, proc := range procs {
		if time.Now().After(deadline) || len(users) == usersListN {
			break
		}
		if u, ok := userUnder(proc, dir); ok {
			users = append(users, u)
		}
	}
	return users
}

// userUnder looks at one process, at most userLook long.
func userUnder(proc, dir string) (User, bool) {
	got := make(chan User, 1)
	go func() { // ends at the latest when the process lets itself be looked at
		defer close(got)
		if path := usedUnder(proc, dir); path != "" {
			got <- describe(proc, path)
		}
	}()
	timer := time.NewTimer(userLook)
	defer timer.Stop()
	select {
	case u, ok := <-got:
		return u, ok
	case <-timer.C:
		return User{}, false
	}
}

// usedUnder finds one path under dir that a process uses, by links that do not touch the mount.
func usedUnder(proc, dir string) string {
	fds, err := filepath.Glob(proc + "/fd/*")
	if err != nil {
		return ""
	}
	for _, link := range append([]string{proc + "/cwd", proc + "/root", proc + "/exe"}, fds...) {
		if path, err := os.Readlink(link); err == nil && within(path, dir) {
			return path
		}
	}
	return mappedUnder(proc, dir)
}

func mappedUnder(proc, dir string) string {
	raw, err := os.ReadFile(proc + "/maps")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(raw)) {
		if i := strings.IndexByte(line, '/'); i >= 0 {
			if path := strings.TrimRight(line[i:], "\n"); within(path, dir) {
				return path
			}
		}
	}
	return ""
}

func describe(proc, path string) User {
	u := User{Path: path}
	fmt.Sscanf(filepath.Base(proc), "%d", &u.PID)
	if raw, err := os.ReadFile(proc + "/comm"); err == nil {
		u.Command = strings.TrimSpace(string(raw))
	}
	return u
}
