//go:build linux && (amd64 || arm64) && !nordma

package verbs

import (
	"fmt"
	"os"
	"syscall"
	"time"
	"unsafe"
)

// presenceInterval is how often the device is looked for: a driver that cannot take itself from under a program reports
// nothing when it is removed, and waits for the program instead.
const presenceInterval = 500 * time.Millisecond

// listen starts the goroutines that take events; Close ends them.
func (d *device) listen() error {
	for _, s := range []struct {
		file *os.File
		take func() syscall.Errno
	}{{d.completions, d.completionEvents()}, {d.asyncs, d.deviceEvents()}} {
		raw, err := s.file.SyscallConn()
		if err != nil {
			return fmt.Errorf("verbs: poll %s: %w", s.file.Name(), err)
		}
		d.tasks.Go(func() { d.takeEvents(raw, s.take) })
	}
	if d.present != "" {
		d.tasks.Go(d.watchPresence)
	}
	return nil
}

// takeEvents sleeps in Go's poller between events, until the file is closed or the device is gone.
func (d *device) takeEvents(raw syscall.RawConn, take func() syscall.Errno) {
	var errno syscall.Errno
	ready := func(uintptr) bool {
		errno = take()
		return errno != syscall.EAGAIN
	}
	for {
		if err := raw.Read(ready); err != nil {
			return
		}
		if errno != 0 && errno != syscall.EINTR {
			d.lose(fmt.Sprintf("its events ended: %v", errno))
			return
		}
	}
}

// completionEvents makes the function that takes one event of the completion channel.
func (d *device) completionEvents() func() syscall.Errno {
	event := new(struct{ queue, context uintptr })
	get := []uintptr{d.channel, uintptr(unsafe.Pointer(&event.queue)), uintptr(unsafe.Pointer(&event.context))}
	ack := []uintptr{0, 1}
	return func() syscall.Errno {
		if r, errno := d.lib.invoke(d.lib.getCQ, get); int32(r) != 0 {
			return errno
		}
		d.mu.Lock()
		q := d.queues[event.queue] // before the event is acknowledged: until then the queue is not destroyed
		d.mu.Unlock()
		ack[0] = event.queue
		d.lib.invoke(d.lib.ackCQ, ack)
		if q != nil {
			q.rearm()
		}
		return 0
	}
}

// deviceEvents makes the function that takes one event of the device.
func (d *device) deviceEvents() func() syscall.Errno {
	event := new(asyncEvent)
	args := []uintptr{d.context, uintptr(unsafe.Pointer(event))}
	ack := args[1:]
	return func() syscall.Errno {
		if r, errno := d.lib.invoke(d.lib.getAsync, args); int32(r) != 0 {
			return errno
		}
		pair := d.pairOf(event)
		d.lib.invoke(d.lib.ackAsync, ack)
		d.happened(event, pair)
		return 0
	}
}

// pairOf finds the pair that an event is about, before it is acknowledged and the pair can be destroyed.
func (d *device) pairOf(e *asyncEvent) *queuePair {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.byHandle[e.element]
}

// happened acts on an event of the device.
func (d *device) happened(e *asyncEvent, pair *queuePair) {
	switch e.kind {
	case eventQPFatal, eventQPRequest, eventQPAccess, eventWorkQueueBad:
		if pair != nil {
			pair.mu.Lock()
			pair.failByPeerLocked() // what failed here has its own completion
			pair.mu.Unlock()
		}
	case eventPortError:
		if uint32(e.element) == uint32(d.port) {
			d.cfg.Log.Warn("port down", "device", d.Name())
			d.failAll()
		}
	case eventPortActive, eventLIDChange, eventReregister, eventGIDChange:
		if uint32(e.element) != uint32(d.port) {
			return
		}
		if e.kind == eventPortActive {
			d.cfg.Log.Info("port active", "device", d.Name())
		}
		d.lookAgain()
	case eventDeviceFatal:
		d.lose("the driver reports a fatal error")
	case eventCQError:
		d.lose("a completion queue overflowed")
	}
}

// lookAgain finds out where the device is reached now. New pairs use that; the others stay as they are, and fail if
// that is nowhere.
func (d *device) lookAgain() {
	was := d.at.Load()
	port, err := d.lib.portOf(d.context, d.info.Name, d.port)
	if err != nil {
		d.cfg.Log.Warn("look at the port again", "device", d.Name(), "error", err)
		return
	}
	now, err := was.moved(&port, d.cfg.GID)
	if err != nil {
		d.cfg.Log.Warn("the port has lost its address", "device", d.Name(), "reason", err)
		return
	}
	d.at.Store(now)
	d.bell.forgetRoutes()
	if now.gid != was.gid || now.port.LID != was.port.LID || now.port.MTU != was.port.MTU {
		d.cfg.Log.Info("the port has changed", "device", d.String())
	}
}

// watchPresence looks for the device until it is gone or closed.
func (d *device) watchPresence() {
	ticker := time.NewTicker(presenceInterval)
	defer ticker.Stop()
	for {
		select {
		case <-d.stop:
			return
		case <-ticker.C:
		}
		if _, err := os.Stat(d.present); os.IsNotExist(err) {
			d.lose("it was removed")
			return
		}
	}
}
