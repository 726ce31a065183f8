//go:build linux

package uring

import (
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Constants of linux/io_uring.h.
const (
	setupTaskrunFlag  = 1 << 9
	setupSingleIssuer = 1 << 12
	setupDeferTaskrun = 1 << 13

	enterGetEvents = 1 << 0
	enterExtArg    = 1 << 3

	sqTaskrun = 1 << 2

	opReadFixed  = 4
	opWriteFixed = 5
	opSend       = 26
	opRecv       = 27

	registerBuffers2      = 15
	registerBuffersUpdate = 16
	registerSparse        = 1 << 0

	offSQRing = 0
	offSQEs   = 0x10000000
)

type ringOffsets struct {
	head, tail, mask, entries, flagsOrOverflow, droppedOrCQEs, arrayOrFlags, _ uint32
	_                                                                          uint64
}

type ringParams struct {
	sqEntries, cqEntries, flags, threadCPU, threadIdle, features, wqFD uint32
	_                                                                  [3]uint32
	sq, cq                                                             ringOffsets
}

type sqe struct {
	opcode, flags uint8
	ioprio        uint16
	fd            int32
	off, addr     uint64
	length, op    uint32 // op: flags of the operation
	user          uint64
	buffer        uint16
	_             uint16
	_             int32
	_, _          uint64
}

type cqe struct {
	user  uint64
	res   int32
	flags uint32
}

// ring is an io_uring of one thread.
type ring struct {
	fd             int
	rings, sqes    []byte
	sqHead, sqTail *uint32
	cqHead, cqTail *uint32
	sqFlags        *uint32
	sqMask, cqMask uint32
	array, entries []uint32
	queue          []sqe
	done           []cqe
	pending        uint32 // written, not submitted
	scratch        *scratch
}

const ringEntries = 256

// newRing makes a ring with a table of slots for registered buffers.
func newRing(slots uint32) (*ring, error) {
	p := ringParams{flags: setupSingleIssuer | setupDeferTaskrun | setupTaskrunFlag}
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, ringEntries, uintptr(unsafe.Pointer(&p)), 0)
	if errno != 0 {
		return nil, fmt.Errorf("uring: io_uring_setup: %w (Linux 6.1 is needed, and kernel.io_uring_disabled = 0)", errno)
	}
	r := &ring{fd: int(fd), scratch: new(scratch)}
	if err := r.mmap(&p); err != nil {
		r.close()
		return nil, err
	}
	table := struct {
		nr, flags     uint32
		_, data, tags uint64
	}{nr: slots, flags: registerSparse}
	if err := r.register(registerBuffers2, unsafe.Pointer(&table), uint32(unsafe.Sizeof(table))); err != nil {
		r.close()
		return nil, fmt.Errorf("uring: table of %d buffers: %w", slots, err)
	}
	return r, nil
}

func (r *ring) mmap(p *ringParams) (err error) {
	size := max(int(p.sq.arrayOrFlags+4*p.sqEntries), int(p.cq.droppedOrCQEs+16*p.cqEntries))
	const prot, flags = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_SHARED | unix.MAP_POPULATE
	if r.rings, err = unix.Mmap(r.fd, offSQRing, size, prot, flags); err != nil {
		return fmt.Errorf("uring: map rings: %w", err)
	}
	if r.sqes, err = unix.Mmap(r.fd, offSQEs, int(p.sqEntries)*int(unsafe.Sizeof(sqe{})), prot, flags); err != nil {
		return fmt.Errorf("uring: map queue: %w", err)
	}
	at := func(off uint32) *uint32 { return (*uint32)(unsafe.Pointer(&r.rings[off])) }
	r.sqHead, r.sqTail, r.sqFlags, r.sqMask = at(p.sq.head), at(p.sq.tail), at(p.sq.flagsOrOverflow), *at(p.sq.mask)
	r.cqHead, r.cqTail, r.cqMask = at(p.cq.head), at(p.cq.tail), *at(p.cq.mask)
	r.array = unsafe.Slice(at(p.sq.arrayOrFlags), p.sqEntries)
	r.queue = unsafe.Slice((*sqe)(unsafe.Pointer(&r.sqes[0])), p.sqEntries)
	r.done = unsafe.Slice((*cqe)(unsafe.Pointer(&r.rings[p.cq.droppedOrCQEs])), p.cqEntries)
	return nil
}

func (r *ring) close() {
	if r.sqes != nil {
		_ = unix.Munmap(r.sqes)
	}
	if r.rings != nil {
		_ = unix.Munmap(r.rings)
	}
	_ = unix.Close(r.fd)
}

func (r *ring) register(op uintptr, arg unsafe.Pointer, n uint32) error {
	_, _, errno := unix.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(r.fd), op, uintptr(arg), uintptr(n), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// scratch is memory whose address the kernel gets as a number: on the heap, where it does not move.
type scratch struct {
	iov    unix.Iovec
	update struct {
		offset, _  uint32
		data, tags uint64
		nr, _      uint32
	}
	time unix.Timespec
	wait struct {
		mask        uint64
		maskSize, _ uint32
		time        uint64
	}
}

// buffer pins mem in a slot of the table; nil memory empties the slot.
func (r *ring) buffer(slot uint32, mem []byte) error {
	c := r.scratch
	c.iov = unix.Iovec{Base: unsafe.SliceData(mem)}
	c.iov.SetLen(len(mem))
	c.update.offset, c.update.data, c.update.nr = slot, uint64(uintptr(unsafe.Pointer(&c.iov))), 1
	_, _, errno := unix.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(r.fd), registerBuffersUpdate,
		uintptr(unsafe.Pointer(&c.update)), unsafe.Sizeof(c.update), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// push writes a request for the next enter. There is always room: each side of each pair has one under way.
func (r *ring) push(s sqe) {
	tail := *r.sqTail
	i := tail & r.sqMask
	r.queue[i] = s
	r.array[i] = i
	atomic.StoreUint32(r.sqTail, tail+1)
	r.pending++
}

// enter submits, and waits at most for timeout until something has completed; zero does not wait.
func (r *ring) enter(timeout time.Duration) error {
	if r.has() {
		timeout = 0
	}
	if timeout == 0 && r.pending == 0 && atomic.LoadUint32(r.sqFlags)&sqTaskrun == 0 {
		return nil
	}
	c := r.scratch
	c.time = unix.NsecToTimespec(int64(timeout))
	c.wait.time = uint64(uintptr(unsafe.Pointer(&c.time)))
	wait := uintptr(0)
	if timeout > 0 {
		wait = 1
	}
	n, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), uintptr(r.pending), wait,
		enterGetEvents|enterExtArg,
		uintptr(unsafe.Pointer(&c.wait)), unsafe.Sizeof(c.wait))
	switch errno {
	case 0:
		r.pending -= uint32(n)
	case unix.ETIME, unix.EINTR:
	default:
		return fmt.Errorf("uring: io_uring_enter: %w", errno)
	}
	if errno == unix.ETIME || errno == unix.EINTR { // only the queue's head shows what was submitted
		r.pending = *r.sqTail - atomic.LoadUint32(r.sqHead)
	}
	return nil
}

func (r *ring) has() bool { return *r.cqHead != atomic.LoadUint32(r.cqTail) }

// pop takes a completion.
func (r *ring) pop() (c cqe, ok bool) {
	head := *r.cqHead
	if head == atomic.LoadUint32(r.cqTail) {
		return cqe{}, false
	}
	c = r.done[head&r.cqMask]
	atomic.StoreUint32(r.cqHead, head+1)
	return c, true
}
