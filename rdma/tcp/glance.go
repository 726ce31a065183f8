package tcp

import (
	"encoding/binary"
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// glance makes the runtime look into its poller. A scheduler that always has a goroutine to run leaves that to a thread
// which does it every 10 to 20 ms: as long as the watch runs on, the other connections of a process with one processor
// would wait for that.
type glance struct {
	file *os.File // an eventfd
	rc   syscall.RawConn
	fn   func(fd uintptr) bool
	rung bool
}

// bell is what is written to an eventfd.
var bell = binary.NativeEndian.AppendUint64(nil, 1)

func (g *glance) open() error {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("tcp: eventfd: %w", err)
	}
	g.file, g.fn = os.NewFile(uintptr(fd), "glance"), g.tryLook
	if g.rc, err = g.file.SyscallConn(); err != nil {
		_ = g.file.Close()
	}
	return err
}

func (g *glance) close() { _ = g.file.Close() }

// look waits in the poller for what is there already. All others that wait there and need not get ready too.
func (g *glance) look() {
	g.rung = false
	_ = g.rc.Read(g.fn) // without the poller it returns at once
}

// tryLook is called by the poller's wait: false waits. Each write is an event. The Go scheduler does not know of the
// call: otherwise it would wake the runtime's monitor, a thread which then wakes 50 times with 20 µs of sleep between,
// and interrupts whatever runs (decisions/025).
func (g *glance) tryLook(fd uintptr) bool {
	if g.rung {
		return true
	}
	g.rung = true
	n, _, errno := unix.RawSyscall(unix.SYS_WRITE, fd, uintptr(unsafe.Pointer(unsafe.SliceData(bell))), uintptr(len(bell)))
	return errno != 0 || int(n) != len(bell)
}
