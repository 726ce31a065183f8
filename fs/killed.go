package fs

import (
	"bytes"
	"context"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// killPoll is how often an interrupted caller is checked for a deadly signal.
const killPoll = 200 * time.Millisecond

// pfExiting is PF_EXITING of the kernel's task flags.
const pfExiting = 0x4

// procWait bounds a look at how a task ends. A process that closes a file because it calls execve (close-on-exec) holds
// a lock that reading its /proc/PID/stat waits for, while it waits for our answer to that FLUSH.
const procWait = 50 * time.Millisecond

// descriptorWait bounds a look at the descriptors of a process, or at whose thread a task is. Neither waits for that
// lock. On a machine that is busy such a look may take long, and without its answer a file is shown before it is
// finished.
const descriptorWait = 2 * time.Second

// inTime runs look, which may wait for a task, and returns its result if that is there in time. A result that is there
// counts, even if this process was stopped meanwhile and the time is over too.
func inTime[T any](limit time.Duration, look func() T) (out T, ok bool) {
	got := make(chan T, 1)
	go func() { got <- look() }() // ends at the latest when the task has been answered
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case out = <-got:
		return out, true
	case <-timer.C:
	}
	runtime.Gosched()
	select {
	case out = <-got:
		return out, true
	default:
		return out, false
	}
}

// readProc reads a file of a task in /proc, in bounded time.
func readProc(tid uint32, name string, limit time.Duration) ([]byte, error) {
	type answer struct {
		raw []byte
		err error
	}
	a, ok := inTime(limit, func() answer {
		raw, err := readSmall("/proc/" + strconv.FormatUint(uint64(tid), 10) + "/" + name)
		return answer{raw, err}
	})
	if !ok {
		return nil, os.ErrDeadlineExceeded
	}
	return a.raw, a.err
}

// wasKilled reports whether a task is on its way out because of a signal.
func wasKilled(tid uint32) bool { return killedBy(tid) != 0 }

// killedBy is the signal because of which a task is on its way out, 0 if there is none. exit_code distinguishes a
// process that was killed from one whose threads end since it returned from main; PF_SIGNALED is set for both. A task
// that cannot be looked at is in execve and alive.
func killedBy(tid uint32) unix.Signal {
	raw, err := readProc(tid, "stat", procWait)
	if err != nil {
		return 0
	}
	flags, code, ok := parseStat(raw)
	if !ok || flags&pfExiting == 0 {
		return 0
	}
	return unix.Signal(code & 0x7f)
}

// readSmall reads the beginning of a file, enough for what is looked for in /proc, with as few calls as possible: it is
// done at each close.
func readSmall(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	buf := make([]byte, 4096)
	n, err := unix.Read(fd, buf)
	if closeErr := unix.Close(fd); err == nil {
		err = closeErr
	}
	return buf[:max(n, 0)], err
}

// parseStat finds the flags and the exit code in the text of /proc/PID/stat.
func parseStat(raw []byte) (flags, exitCode uint64, ok bool) {
	const flagsField, exitCodeField = 9, 52
	flags, ok = statField(raw, flagsField)
	if !ok {
		return 0, 0, false
	}
	exitCode, ok = statField(raw, exitCodeField)
	return flags, exitCode, ok
}

// statField is a number in the text of /proc/PID/stat. Fields are counted from 1, as proc(5) does.
func statField(raw []byte, field int) (uint64, bool) {
	end := bytes.LastIndexByte(raw, ')') // the command in front may hold anything
	if end < 0 {
		return 0, false
	}
	fields := bytes.Fields(raw[end+1:])
	if len(fields) < field-2 {
		return 0, false
	}
	n, err := strconv.ParseUint(string(fields[field-3]), 10, 64)
	return n, err == nil
}

// killPending reports whether SIGKILL waits for a task, or the task is no longer there.
func killPending(tid uint32) bool {
	if tid == 0 {
		return false
	}
	raw, err := readProc(tid, "status", procWait)
	if err != nil {
		return os.IsNotExist(err)
	}
	return signalIn(raw, "SigPnd:") || signalIn(raw, "ShdPnd:")
}

// signalIn reports whether SIGKILL is in the mask on the line of that name.
func signalIn(status []byte, line string) bool {
	_, rest, ok := bytes.Cut(status, []byte("\n"+line))
	if !ok {
		return false
	}
	word, _, _ := bytes.Cut(rest, []byte("\n"))
	mask, err := strconv.ParseUint(string(bytes.TrimSpace(word)), 16, 64)
	const sigkill = 9
	return err == nil && mask&(1<<(sigkill-1)) != 0
}

// callContext returns a context that ends when the caller of an operation is being killed, or the file system is
// closed. Other signals do not end it. Most operations wait for nothing: the caller is watched only once somebody asks
// when the context ends.
func (lt *lifetime) callContext(cancel <-chan struct{}, tid uint32) (context.Context, context.CancelFunc) {
	c := &callContext{Context: lt.ctx, interrupted: cancel, tid: tid}
	return c, c.over
}

type callContext struct {
	context.Context // of the file system
	interrupted     <-chan struct{}
	tid             uint32

	watch  sync.Once
	caller context.Context
	stop   context.CancelFunc
}

func (c *callContext) Done() <-chan struct{} { return c.watched().Done() }

func (c *callContext) Err() error { return c.watched().Err() }

func (c *callContext) Value(key any) any { return c.watched().Value(key) }

// watched is the context that really ends.
func (c *callContext) watched() context.Context {
	c.watch.Do(func() {
		c.caller, c.stop = context.WithCancel(c.Context)
		go c.await(c.caller, c.stop) // ends with over, which the handler calls
	})
	return c.caller
}

// over ends the context: its operation is done.
func (c *callContext) over() {
	c.watch.Do(func() {
		c.caller, c.stop = context.WithCancel(c.Context)
	})
	c.stop()
}

// await ends the context when the caller is being killed.
func (c *callContext) await(ctx context.Context, stop context.CancelFunc) {
	select {
	case <-ctx.Done():
		return
	case <-c.interrupted:
	}
	tick := time.NewTicker(killPoll)
	defer tick.Stop()
	for !killPending(c.tid) {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
	stop()
}
