package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/exitcode"
)

const (
	// readyFDEnv names the descriptor on which a background daemon reports to its parent how its start went.
	readyFDEnv    = "RDMCFS_READY_FD"
	readyWord     = "ready"
	programName   = "rdmcfs"
	logBytesMax   = 64 << 20 // a larger log of a background daemon is put aside at its start
	reasonBytes   = 64 << 10
	firstExtraFD  = 3
	logFolder     = "log"
	logFile       = "rdmcfs.log"
	privateFolder = 0o700
)

// startDaemon starts `rdmcfs daemon` in a session of its own and returns when it serves. It logs to
// DATA/log/rdmcfs.log. flags are for the daemon.
func (a *app) startDaemon(ctx context.Context, flags ...string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	logTo, err := a.openLog()
	if err != nil {
		return err
	}
	defer logTo.Close()
	ours, theirs, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start the daemon: %w", err)
	}
	defer ours.Close()
	defer theirs.Close()

	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("start the daemon: %w", err)
	}
	words, err := a.configWords()
	if err != nil {
		return err
	}
	words = append(append(words, "daemon", "--data", a.data), flags...)
	cmd := exec.Command(self, words...)
	cmd.Args[0] = programName // also where this program was called as a mount helper
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), readyFDEnv+"="+strconv.Itoa(firstExtraFD))
	cmd.Stdout, cmd.Stderr = logTo, logTo
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the daemon: %w", err)
	}
	theirs.Close()
	stop := context.AfterFunc(ctx, func() { ours.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	return a.awaitDaemon(ctx, cmd, ours, logTo.Name())
}

// awaitDaemon reads how the start went. A daemon that is not ready in time is left running: a long replay is
// no failure.
func (a *app) awaitDaemon(ctx context.Context, cmd *exec.Cmd, told *os.File, logName string) error {
	line, err := bufio.NewReader(io.LimitReader(told, reasonBytes)).ReadString('\n')
	line = strings.TrimSpace(line)
	switch {
	case line == readyWord:
		return cmd.Process.Release()
	case ctx.Err() != nil:
		cmd.Process.Release()
		return withCode(exitcode.Timeout, "the daemon (process %d) is not ready yet: see %s", cmd.Process.Pid, logName)
	}
	code := exitcode.Failure
	var exit *exec.ExitError
	if errors.As(cmd.Wait(), &exit) && exit.ExitCode() > 0 {
		code = exit.ExitCode()
	}
	if line == "" {
		line = fmt.Sprintf("the daemon ended at once (%v): see %s", errors.Join(err), logName)
	}
	return withCode(code, "%s", line)
}

// openLog opens the log of the background daemon; one that has grown large becomes the .1 of its name.
func (a *app) openLog() (*os.File, error) {
	if _, err := os.Stat(a.data); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	folder := filepath.Join(a.data, logFolder)
	if err := os.MkdirAll(folder, privateFolder); err != nil {
		return nil, fmt.Errorf("log: %w", err)
	}
	path := filepath.Join(folder, logFile)
	if info, err := os.Stat(path); err == nil && info.Size() > logBytesMax {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, fmt.Errorf("log: %w", err)
		}
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("log: %w", err)
	}
	return f, nil
}

// readiness reports to the parent that waits in startDaemon, and to systemd, how the start went.
type readiness struct {
	parent *os.File // nil without a parent that waits
}

func newReadiness() *readiness {
	fd, err := strconv.Atoi(os.Getenv(readyFDEnv))
	if err != nil || fd < firstExtraFD {
		return &readiness{}
	}
	os.Unsetenv(readyFDEnv)
	syscall.CloseOnExec(fd)
	return &readiness{parent: os.NewFile(uintptr(fd), "ready")}
}

func (r *readiness) ready() {
	r.tell(readyWord)
	notifySystemd("READY=1")
}

func (r *readiness) failed(err error) { r.tell(strings.ReplaceAll(err.Error(), "\n", "; ")) }

// tell writes one line, once.
func (r *readiness) tell(line string) {
	if r.parent == nil {
		return
	}
	fmt.Fprintln(r.parent, line) // tidy: a pipe to the parent, which escapes what it prints of it
	r.close()
}

func (r *readiness) close() {
	if r.parent != nil {
		r.parent.Close()
		r.parent = nil
	}
}

// notifySystemd sends one word to the service manager that started us, if one did (Type=notify).
func notifySystemd(state string) {
	addr := os.Getenv("NOTIFY_SOCKET")
	if addr == "" {
		return
	}
	if strings.HasPrefix(addr, "@") {
		addr = "\x00" + addr[1:]
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: addr, Net: "unixgram"})
	if err != nil {
		return
	}
	defer conn.Close()
	conn.Write([]byte(state))
}
