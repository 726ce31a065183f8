//go:build linux && (amd64 || arm64) && !nordma

package verbs

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"
)

// Room for datagrams. Datagrams that find none are lost, and their sender repeats them.
const (
	bellRecvs = 256
	bellSends = 64
	bellSlot  = 128 // bytes: routing header and message
)

// bellPair is the upper half of the ids of the bell's own requests; pairs count from 1.
const bellPair = 0

// bell is the device's queue pair for datagrams: with it pairs tell each other that they are ready, or gone.
type bell struct {
	dev         *device
	handle      uintptr
	cq          *deviceCQ
	number, key uint32
	mem         []byte // bellRecvs slots, then bellSends
	mr          uintptr
	mrKey       uint32
	muted       atomic.Bool

	mu     sync.Mutex            // protects all below; the innermost lock
	routes map[ahAttr]*bellRoute // used by new pairs
	left   []*bellRoute          // may be used by older pairs only
	free   []int                 // slots to send from
	closed bool
	broken bool // the device has stopped the pair: mend
	send   sendWR
	recv   recvWR
	piece  sge
	bad    uintptr
	args   [3]uintptr
}

func (d *device) newBell() (*bell, error) {
	b := &bell{dev: d, routes: make(map[ahAttr]*bellRoute)}
	var err error
	const size = (bellRecvs + bellSends) * bellSlot
	if b.mem, err = unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS); err != nil {
		return nil, fmt.Errorf("verbs: map datagrams: %w", err)
	}
	if err := b.open(); err != nil {
		return nil, errors.Join(err, b.release())
	}
	return b, nil
}

func (b *bell) open() error {
	d := b.dev
	mr, errno := d.lib.call(d.lib.regMR, d.pd, uintptr(unsafe.Pointer(&b.mem[0])), uintptr(len(b.mem)), accessLocalWrite)
	if mr == 0 {
		return pinError(len(b.mem), errno)
	}
	b.mr, b.mrKey = mr, *field[uint32](mr, mrLocalKey)
	var err error
	if b.cq, err = d.newDeviceCQ(bellRecvs + bellSends); err != nil {
		return err
	}
	if b.handle, err = d.createQP(qpDatagram, b.cq, b.cq,
		qpCap{sends: bellSends, recvs: bellRecvs, sendSGE: 1, recvSGE: 1}); err != nil {
		return err
	}
	var key [4]byte
	rand.Read(key[:])
	b.key = binary.LittleEndian.Uint32(key[:]) &^ (1 << 31) // the upper half belongs to the kernel
	b.number = *field[uint32](b.handle, qpNumber)
	b.cq.attach(bellPair, b)
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.startLocked()
}

// startLocked brings the pair from state Reset to where it receives and sends.
func (b *bell) startLocked() error {
	d := b.dev
	b.free = b.free[:0]
	for i := range bellSends {
		b.free = append(b.free, bellRecvs+i)
	}
	attr := &qpAttr{state: qpInit, port: uint8(d.port), qkey: b.key}
	if err := d.modify("prepare datagrams", b.handle, attr, maskInitDatagram); err != nil {
		return err
	}
	for i := range bellRecvs {
		if err := b.postRecvLocked(i); err != nil {
			return err
		}
	}
	if err := d.modify("receive datagrams", b.handle, &qpAttr{state: qpRTR}, maskState); err != nil {
		return err
	}
	return d.modify("send datagrams", b.handle, &qpAttr{state: qpRTS}, maskRTSDatagram)
}

// mend starts the pair again if the device has stopped it, as a port that went down does.
func (b *bell) mend() error {
	b.mu.Lock()
	broken := b.broken && !b.closed
	b.mu.Unlock()
	if !broken {
		return nil
	}
	b.cq.mu.Lock() // no earlier completion may pass for a later one
	defer b.cq.mu.Unlock()
	if err := b.dev.modify("stop datagrams", b.handle, &qpAttr{state: qpError}, maskState); err != nil {
		return err
	}
	b.cq.drainLocked()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || !b.broken {
		return nil
	}
	if err := b.dev.modify("reset datagrams", b.handle, &qpAttr{state: qpReset}, maskState); err != nil {
		return err
	}
	if err := b.startLocked(); err != nil {
		return err
	}
	b.broken = false
	return nil
}

func (b *bell) slot(i int) []byte { return b.mem[i*bellSlot : (i+1)*bellSlot] }

// describeLocked sets the piece of memory that the next request is about.
func (b *bell) describeLocked(i, n int) uintptr {
	b.piece = sge{addr: address64(unsafe.Pointer(&b.slot(i)[0])), length: uint32(n), lkey: b.mrKey}
	return uintptr(unsafe.Pointer(&b.piece))
}

func (b *bell) postRecvLocked(i int) error {
	b.recv = recvWR{id: requestID(bellPair, idRecv, uint64(i)), list: b.describeLocked(i, bellSlot), listLen: 1}
	return b.postLocked(b.dev.ops.postRecv, unsafe.Pointer(&b.recv))
}

func (b *bell) postLocked(function uintptr, request unsafe.Pointer) error {
	if b.closed {
		return nil
	}
	b.args = [3]uintptr{b.handle, uintptr(request), uintptr(unsafe.Pointer(&b.bad))}
	if r, _, _ := purego.SyscallN(function, b.args[:]...); int32(r) != 0 {
		return fmt.Errorf("verbs: post datagram: %w", unix.Errno(int32(r)))
	}
	return nil
}

// bellRoute is a way that datagrams take.
type bellRoute struct {
	way   ahAttr
	ah    uintptr
	users int // pairs
}

// takeRoute makes, or finds, what datagrams need to reach a peer; leaveRoute gives it back.
func (b *bell) takeRoute(way ahAttr) (*bellRoute, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left = slices.DeleteFunc(b.left, func(r *bellRoute) bool { return r.users == 0 && b.destroyed(r) })
	r := b.routes[way]
	if r == nil {
		attr := new(ahAttr)
		*attr = way
		d := b.dev
		ah, err := d.lib.object("create address handle", d.lib.createAH, d.pd, uintptr(unsafe.Pointer(attr)))
		if err != nil {
			return nil, err
		}
		r = &bellRoute{way: way, ah: ah}
		b.routes[way] = r
	}
	r.users++
	return r, nil
}

// leaveRoute is called once for each takeRoute. stale says that the route was found to lead nowhere: later pairs look
// it up again.
func (b *bell) leaveRoute(r *bellRoute, stale bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r.users--
	if stale && b.routes[r.way] == r {
		b.forgetLocked(r)
	}
}

// forgetRoutes makes later pairs look up all routes again: routes hold on to the addresses of the port and of its
// neighbours.
func (b *bell) forgetRoutes() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.routes {
		b.forgetLocked(r)
	}
}

// forgetLocked keeps what is forgotten until another route is taken: a farewell may still be on its way by it.
func (b *bell) forgetLocked(r *bellRoute) {
	delete(b.routes, r.way)
	b.left = append(b.left, r)
}

func (b *bell) destroyed(r *bellRoute) bool {
	if err := b.dev.lib.check("destroy address handle", b.dev.lib.destroyAH, r.ah); err != nil {
		b.dev.cfg.Log.Debug("datagrams", "error", err)
	}
	return true
}

// ring sends a message to a peer, if there is room. It does not wait.
func (b *bell) ring(r *bellRoute, to *address, text [messageBytes]byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.free) == 0 || b.closed || b.broken || b.muted.Load() {
		return
	}
	i := b.free[len(b.free)-1]
	n := copy(b.slot(i), text[:])
	b.send = sendWR{id: requestID(bellPair, 0, uint64(i)), list: b.describeLocked(i, n), listLen: 1, opcode: wrSend,
		flags: flagSignaled,
		addr:  uint64(r.ah), rkey: to.bellQPN, qkey: to.bellKey}
	if err := b.postLocked(b.dev.ops.postSend, unsafe.Pointer(&b.send)); err != nil {
		b.dev.cfg.Log.Debug("datagram", "error", err)
		return
	}
	b.free = b.free[:len(b.free)-1]
}

// completed takes one completion of the device. The lock of the device's queue is held.
func (b *bell) completed(wc *workCompletion) {
	i := int(wc.id & idSequence)
	if wc.id&idRecv == 0 {
		b.sent(i, wc.status)
		return
	}
	if wc.status == wcSuccess && wc.bytes == grhBytes+messageBytes {
		text := b.slot(i)[grhBytes : grhBytes+messageBytes]
		if m, ok := decodeMessage(text); ok {
			b.dev.deliver(&m, text)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.judgeLocked(wc.status) {
		return
	}
	if err := b.postRecvLocked(i); err != nil {
		b.dev.cfg.Log.Warn("datagram", "error", err)
	}
}

func (b *bell) sent(i int, status uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free = append(b.free, i)
	b.judgeLocked(status)
}

// judgeLocked notes and reports that the device has stopped the pair.
func (b *bell) judgeLocked(status uint32) bool {
	if status != wcSuccess && !b.broken {
		b.broken = true
		b.dev.cfg.Log.Debug("datagrams stopped", "status", status)
	}
	return b.broken
}

// Bounds of the wait for the last messages.
const (
	bellRounds = 50
	bellPause  = time.Millisecond
)

// close waits a moment until what was said is on its way, and frees everything.
func (b *bell) close() error {
	for range bellRounds {
		b.cq.drain()
		b.mu.Lock()
		quiet := len(b.free) == bellSends
		b.mu.Unlock()
		if quiet {
			break
		}
		<-time.After(bellPause)
	}
	return b.release()
}

func (b *bell) release() error {
	b.mu.Lock()
	b.closed = true
	routes := slices.AppendSeq(b.left, maps.Values(b.routes))
	b.routes, b.left = nil, nil
	b.mu.Unlock()
	l := b.dev.lib
	var err error
	if b.handle != 0 {
		err = l.check("destroy datagrams", l.destroyQP, b.handle)
	}
	for _, r := range routes {
		err = errors.Join(err, l.check("destroy address handle", l.destroyAH, r.ah))
	}
	if b.cq != nil {
		b.cq.destroy()
	}
	if b.mr != 0 {
		err = errors.Join(err, l.check("deregister datagrams", l.deregMR, b.mr))
	}
	return errors.Join(err, unix.Munmap(b.mem))
}
