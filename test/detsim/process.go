package detsim

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/rdmcfs/rdmcfs/fs"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/node"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/rdma"
)

// process is a daemon: node.Run with the world below it. A killed process goes on without a world: its lines are cut,
// and nothing reads the files it writes.
type process struct {
	m      *machine
	host   string
	dead   bool // protected by the network's lock
	cancel context.CancelFunc
	done   chan struct{}
	err    error

	kernel atomic.Pointer[kernel]
	admin  atomic.Pointer[admin.Handlers]
}

func (m *machine) newProcess() *process {
	return &process{m: m, host: m.host, done: make(chan struct{})}
}

const (
	logSegment = 64 << 10 // small: a power loss looks at each sector of it
	readCache  = 2 << 20  // small: all machines share the memory of one
)

// world is what the process stands on.
func (p *process) world() node.Host {
	m := p.m
	n := m.w.net
	return node.Host{
		Listen: func(at string) (net.Listener, error) { return n.listen(p, at) },
		Dial:   func(ctx context.Context, _, to string) (net.Conn, error) { return n.dial(ctx, p, to) },
		Device: func() (rdma.Device, error) { return m.w.fabric.Device(p.host), nil },
		State:  func() (*meta.DB, error) { return m.db, nil },
		Log:    logDisk{m.disk, m.dir, m}, LogSegment: logSegment, ReadCache: readCache,
		Attach: func(requests fuse.RawFileSystem) (fs.Kernel, error) {
			k := newKernel(requests)
			p.kernel.Store(k)
			return k, nil
		},
		Admin: func(h admin.Handlers) (io.Closer, error) {
			p.admin.Store(&h)
			return nothing{}, nil
		},
		Wall:   func() time.Time { return time.Now().Add(m.ahead) },
		Passed: p.passed,
		Step:   p.step,
	}
}

// passed is called at each labelled point of the product.
func (p *process) passed(point string) {
	m := p.m
	if m.p != p || m.wish == nil || m.wish.point != point {
		return
	}
	if m.wish.count--; m.wish.count > 0 {
		return
	}
	m.w.crash(m, m.wish.power, "at "+point)
}

// step is called before each change of the contents.
func (p *process) step(step, path string) error {
	p.passed(contentPoint + step)
	m := p.m
	if m.p != p {
		return nil // it is gone: nobody sees what it does
	}
	if m.slowDisk > 0 && strings.HasPrefix(step, "fsync") {
		pass(m.w.between(0, m.slowDisk))
		if m.p != p {
			return nil
		}
	}
	if err := m.remains.step(step, path); err != nil && !errors.Is(err, os.ErrNotExist) {
		m.w.fail("%s: %s of %s: %v", m.host, step, path, err)
	}
	return nil
}

type nothing struct{}

func (nothing) Close() error { return nil }

// ready reports whether programs can use the mount.
func (p *process) ready() bool { return p.kernel.Load() != nil && p.m.p == p }

// start begins a process on the machine's disks.
func (m *machine) start() {
	w := m.w
	if w.over && w.failed() {
		return // nobody would stop it
	}
	m.lives++
	m.dark = false
	m.touch()
	p := m.newProcess()
	m.p, m.ended = p, nil
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	cfg := node.Config{DataDir: m.dir, Version: "sim", Mounts: []admin.MountRequest{{Dir: "/mnt"}}, Log: m.logger(),
		Host: p.world()}
	w.tell("%s starts, state at %d", m.host, m.db.Index())
	if m.remains == nil {
		m.allDurable()
	}
	w.work.Go(func() {
		defer close(p.done)
		p.err = node.Run(ctx, cfg)
		if m.p == p {
			m.p, m.ended = nil, p.err
			w.tell("%s has ended: %v", m.host, p.err)
		}
	})
}

// stop ends a process as a service manager does, and waits for that.
func (m *machine) stop() {
	p := m.p
	if p == nil {
		return
	}
	p.cancel()
	<-p.done
}

// keep copies the disks as they are now.
func (m *machine) keep(to string) *disks {
	m.w.copyDir(m.dir, to)
	return &disks{dir: to, db: m.db.Clone(), disk: m.disk.PowerLoss(func(int) int { return 1 })}
}

// kill ends a process as kill -9 does, or with the power of its machine. What was written and not synced may be lost
// then.
func (m *machine) kill(power bool, why string) {
	p, w := m.p, m.w
	if p == nil {
		return
	}
	w.net.mu.Lock()
	p.dead = true
	w.net.mu.Unlock()
	m.p = nil
	m.dark = power
	lost := func(int) int { return 1 } // what was written stays
	if power {
		lost = w.intn
	}
	synced, applied := m.db.Synced(), m.db.Index()
	keep := synced + uint64(w.intn(int(applied-synced)+1))
	m.db = m.db.CrashClone(keep)
	m.disk = m.disk.PowerLoss(lost)
	dir := filepath.Join(w.dir, m.host+"."+itoa(m.lives))
	w.copyDir(m.dir, dir)
	m.dir, m.wish = dir, nil
	m.keepContents(power)
	w.fabric.Kill(p.host)
	w.net.kill(p, power)
	if m.stopped {
		m.goOn()
	}
	p.cancel()
	w.tell("%s is killed (power %t, %s): applied %d synced %d keeps %d", m.host, power, why, applied, synced, keep)
}

// keepContents makes the machine's directory, a copy, hold what is left of the contents.
func (m *machine) keepContents(power bool) {
	content := filepath.Join(m.dir, "content")
	if !power {
		m.remains = m.remains.copied(content)
		return
	}
	left, err := m.remains.lose(content, m.w.intn)
	if err != nil {
		m.w.fail("%s: contents after a power loss: %v", m.host, err)
		return
	}
	m.remains = left
}

// allDurable notes that the contents are durable as they are in the machine's directory.
func (m *machine) allDurable() {
	content := filepath.Join(m.dir, "content")
	m.remains = newRemains(content)
	if err := os.MkdirAll(content, 0o700); err != nil {
		m.w.fail("%v", err)
	} else if err := m.remains.durable(); err != nil {
		m.w.fail("%v", err)
	}
}

// touch notes that a fault has touched a machine.
func (m *machine) touch() { m.calm = time.Now() }

// handlers are the answers to the command line, nil while there are none.
func (m *machine) handlers() *admin.Handlers {
	if m.p == nil {
		return nil
	}
	return m.p.admin.Load()
}
