//go:build linux && (amd64 || arm64) && !nordma

package verbs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// Open opens the device, port and GID that the configuration asks for: the first that works. Errors: ErrNoLibrary,
// ErrNoDevice, and joined with it ErrLockedMemory or the system's.
func Open(cfg Config) (rdma.Device, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	l, err := loadLibrary()
	if err != nil {
		return nil, err
	}
	d, err := l.find(cfg, l.try)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// errFound ends the search.
var errFound = errors.New("found")

// find opens, by try, the first device that fits.
func (l *library) find(
	cfg Config, try func(cfg Config, name string, handle uintptr) (*device, error),
) (*device, error) {
	var found *device
	var reasons refusals
	err := l.eachDevice(func(name string, handle uintptr) error {
		if cfg.Device != "" && cfg.Device != name {
			reasons = append(reasons, fmt.Errorf("%s is another one", name))
			return nil
		}
		d, err := try(cfg, name, handle)
		if err != nil {
			reasons = append(reasons, explained(err))
			return nil
		}
		found = d
		return errFound
	})
	switch {
	case found != nil:
		return found, nil
	case err != nil:
		return nil, err
	case len(reasons) == 0:
		return nil, errNone()
	}
	what := cfg.Device
	if what == "" {
		what = "usable device"
	}
	return nil, fmt.Errorf("%w: no %s: %w", ErrNoDevice, what, reasons)
}

// refusals are why none of the devices is used.
type refusals []error

// Error is one line.
func (r refusals) Error() string {
	texts := make([]string, len(r))
	for i, err := range r {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}

// Unwrap returns all.
func (r refusals) Unwrap() []error { return r }

// try opens a device, finds the port and GID, and sets it up.
func (l *library) try(cfg Config, name string, handle uintptr) (*device, error) {
	if *field[int32](handle, deviceTransport) == transportIWARP {
		return nil, errIWARP(name)
	}
	context, err := l.object("open "+name, l.openDevice, handle)
	if err != nil {
		return nil, err
	}
	d := &device{cfg: cfg, lib: l, context: context, stop: make(chan struct{}), pairs: make(map[token]*queuePair),
		byHandle: make(map[uintptr]*queuePair), queues: make(map[uintptr]*deviceCQ), regions: make(map[*region]struct{})}
	if err = d.choose(name); err == nil {
		if err = d.setUp(); err != nil {
			err = fmt.Errorf("set up %s: %w", name, err)
		}
	}
	if err != nil {
		return nil, errors.Join(err, d.free())
	}
	return d, nil
}

func errIWARP(name string) error {
	return fmt.Errorf("%s is an iWARP card; only InfiniBand and RoCE are used", name)
}

func (d *device) choose(name string) error {
	info, err := d.lib.describe(name, d.context)
	if err != nil {
		return err
	}
	at, err := choosePlace(&info, &d.cfg)
	if err != nil {
		return err
	}
	d.info, d.port = info, at.port.Number
	d.at.Store(at)
	return nil
}

// setUp makes everything that the device has one of.
func (d *device) setUp() error {
	d.ops = operationsOf{
		pollCQ: *field[uintptr](d.context, contextPollCQ), notifyCQ: *field[uintptr](d.context, contextNotifyCQ),
		postSend: *field[uintptr](d.context, contextPostSend), postRecv: *field[uintptr](d.context, contextPostRecv),
	}
	var err error
	if d.pd, err = d.lib.object("allocate protection domain", d.lib.allocPD, d.context); err != nil {
		return err
	}
	if d.channel, err = d.lib.object("create completion channel", d.lib.createChannel, d.context); err != nil {
		return err
	}
	if d.completions, err = pollable(*field[int32](d.channel, channelFD), "completions"); err != nil {
		return err
	}
	if d.asyncs, err = pollable(*field[int32](d.context, contextAsyncFD), "events"); err != nil {
		return err
	}
	inline, err := d.probeInline()
	if err != nil {
		return err
	}
	d.limits, d.readsOut, d.readsIn = usableLimits(&d.info.Limits, d.at.Load().port.MessageBytesMax, inline)
	d.present = presenceOf("/sys/class/infiniband_verbs", d.info.Name)
	if d.bell, err = d.newBell(); err != nil {
		return err
	}
	return d.listen() // last: events find all that they are about
}

// unitsOf is how many of a card's units (64 bytes) a request takes, with its list or inline bytes, and with its share
// of the requests that are not reported.
const unitsOf = 8

// usableLimits cuts a device's limits to what the package's own structures hold, and to where every pair can be made.
func usableLimits(l *Limits, messageMax uint32, inline int) (limits rdma.Limits, readsOut, readsIn uint8) {
	entries := l.SGE
	if l.ReadSGE > 0 {
		entries = min(entries, l.ReadSGE)
	}
	const readsMax = 16
	return rdma.Limits{
		MaxQueueDepth: max(1, min(l.QueueDepth/unitsOf, l.CompletionDepth/2, depthMax)),
		MaxSGE:        max(1, min(entries, sgeMax)),
		MaxInline:     min(inline, inlineMax),
		MaxMessage:    int(min(messageMax, 1<<30)),
	}, uint8(max(1, min(l.ReadsOut, readsMax))), uint8(max(1, min(l.ReadsIn, readsMax)))
}

// probeInline finds out how many bytes a request can carry itself: no call reports that.
func (d *device) probeInline() (int, error) {
	cq, err := d.newDeviceCQ(2)
	if err != nil {
		return 0, err
	}
	defer cq.destroy()
	var last error
	for n := inlineMax; n >= 0; n = n/2 - n%2 {
		qp, err := d.createQP(qpReliable, cq, cq, qpCap{sends: 1, recvs: 1, sendSGE: 1, recvSGE: 1, inline: uint32(n)})
		if err == nil {
			return n, d.lib.check("destroy queue pair", d.lib.destroyQP, qp)
		}
		if last = err; n == 0 {
			break
		}
	}
	return 0, last
}

// pollable makes a file of a descriptor of the library's, for Go's poller. The library keeps its own.
func pollable(fd int32, name string) (*os.File, error) {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("verbs: descriptor of %s: %w", name, err)
	}
	if err := syscall.SetNonblock(own, true); err != nil { // of both
		_ = syscall.Close(own)
		return nil, fmt.Errorf("verbs: descriptor of %s: %w", name, err)
	}
	return os.NewFile(uintptr(own), name), nil
}

// presenceOf finds the file that goes away with the device, or nothing.
func presenceOf(dir, device string) string {
	all, err := filepath.Glob(filepath.Join(dir, "uverbs*", "ibdev"))
	if err != nil {
		return ""
	}
	for _, path := range all {
		if text, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(text)) == device {
			return path
		}
	}
	return ""
}
