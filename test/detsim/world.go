package detsim

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog/simfs"
	"github.com/rdmcfs/rdmcfs/internal/control"
	"github.com/rdmcfs/rdmcfs/internal/node"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/rdma/mem"
)

// world is one run: machines, the lines between them, programs, and what is known of their files.
type world struct {
	seed  uint64
	dir   string // of all machines' files
	trace func(string)
	start time.Time

	mu      sync.Mutex // protects what follows; taken last
	rng     *rand.Rand
	hash    uint64
	events  int
	err     error
	buffers [][]byte      // to read into
	quiet   chan struct{} // closed when faults are to end
	over    bool          // no work any more
	ended   bool          // no machine runs any more

	net              *network
	fabric           *mem.Fabric
	machines         []*machine
	token            string
	ports            int
	joining, leaving bool
	pids             uint32
	files            *record
	stats            Stats
	wrongTime        bool           // most voters' clocks were wrong at some time
	copies           int            // that the policy asks for; 0: on every node
	programs         atomic.Int32   // that run
	work             sync.WaitGroup // programs, faults and processes
}

// Stats counts what a run has seen.
type Stats struct {
	Acked, Failed, Unknown, Checked        int
	Kills, PowerLosses, Stops, Cuts, Jumps int
	Emptied, PutBack, Joins, Evictions     int
	AtPoints, SlowDisks, Rotten, Replaced  int
	Healed                                 []time.Duration // of RunComeback: how long it took each time
	Refused                                int
}

func newWorld(seed uint64, dir string, trace func(string)) *world {
	w := &world{seed: seed, dir: dir, trace: trace, quiet: make(chan struct{}), start: time.Now(),
		rng: rand.New(rand.NewPCG(seed, 1)), hash: fnv.New64a().Sum64()}
	w.net = newNetwork(w)
	w.fabric = mem.NewFabric(mem.Config{Seed: seed, DelayMin: latencyMin, DelayMax: latencyMax})
	w.files = newRecord(w)
	return w
}

func itoa(n int) string { return strconv.Itoa(n) }

// pass lets virtual time pass.
func pass(d time.Duration) { time.Sleep(d) } // tidy: it takes no time

// tell adds a line to the trace.
func (w *world) tell(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	line := fmt.Sprintf("%11.6f ", time.Since(w.start).Seconds()) + fmt.Sprintf(format, args...)
	for _, b := range []byte(line) {
		w.hash = (w.hash ^ uint64(b)) * 1099511628211
	}
	w.events++
	w.trace(line)
}

// stacksMax bounds what is printed of the goroutines of a run that fails.
const stacksMax = 16 << 20

// fail ends the run with the first guarantee that does not hold.
func (w *world) fail(format string, args ...any) {
	w.mu.Lock()
	first := w.err == nil
	if first {
		w.err = fmt.Errorf(format, args...)
	}
	w.mu.Unlock()
	if first {
		buf := make([]byte, stacksMax)
		defer w.trace(string(buf[:runtime.Stack(buf, true)]))
	}
	w.tell("FAILED: "+format, args...)
}

func (w *world) failed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err != nil
}

func (w *world) intn(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rng.IntN(n)
}

func (w *world) chance(oneIn int) bool { return w.intn(oneIn) == 0 }

func (w *world) between(a, b time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return a + time.Duration(w.rng.Int64N(int64(b-a)+1))
}

func (w *world) latency() time.Duration { return w.between(latencyMin, latencyMax) }

// machine is what outlives a process: its disks, its clock, and who it is.
type machine struct {
	w        *world
	index    int // in world.machines
	host     string
	dir      string // of the present process: each has its own copy
	db       *meta.DB
	disk     *simfs.Disk
	ahead    time.Duration // of its clock
	lives    int
	gone     bool // for good: evicted
	leaves   bool // it is to be evicted
	draining bool
	p        *process  // nil while it does not run
	ended    error     // of the process that ended by itself last
	faults   int       // that hold it now
	calm     time.Time // no fault has touched it since
	older    *disks    // as they were some time ago
	dark     bool      // its power is off
	stopped  bool
	remains  *remains      // of its contents after a power loss
	wish     *wish         // where it is to be killed, nil for nowhere
	slowDisk time.Duration // an fsync takes up to this
}

// wish is a point at which a process is to be killed, when it has passed it count times.
type wish struct {
	point string
	count int
	power bool
}

// disks is a copy of what a machine keeps.
type disks struct {
	dir  string
	db   *meta.DB
	disk *simfs.Disk
}

func (w *world) powerless(host string) bool {
	for _, m := range w.machines {
		if m.host == host {
			return m.dark
		}
	}
	return false
}

func (m *machine) addr() string { return m.host + ":7400" }

func (w *world) newMachine() *machine {
	m := &machine{w: w, index: len(w.machines), host: "n" + itoa(len(w.machines)+1), db: meta.OpenMemory(),
		disk: simfs.New(), calm: time.Now()}
	m.dir = filepath.Join(w.dir, m.host+".0")
	w.machines = append(w.machines, m)
	return m
}

// copyDir copies the files of a machine: what a process that ended writes later is not seen.
func (w *world) copyDir(from, to string) {
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		w.fail("copy of %s: %v", from, err)
	}
}

// logger writes a node's log lines next to the trace.
func (m *machine) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(lineWriter{m},
		&slog.HandlerOptions{Level: slog.LevelInfo, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}}))
}

type lineWriter struct{ m *machine }

func (l lineWriter) Write(b []byte) (int, error) {
	line := fmt.Sprintf("%11.6f      %s: %s", time.Since(l.m.w.start).Seconds(), l.m.host, strings.TrimSpace(string(b)))
	l.m.w.trace(line)
	return len(b), nil
}

// live lists the machines with a running process, in order.
func (w *world) live() []*machine {
	var out []*machine
	for _, m := range w.machines {
		if m.p != nil && m.p.ready() {
			out = append(out, m)
		}
	}
	return out
}

// until waits for a condition, in steps, for a bounded time.
func (w *world) until(limit, step time.Duration, cond func() bool) bool {
	for end := time.Now().Add(limit); time.Now().Before(end); pass(step) {
		if w.failed() {
			return false
		}
		if cond() {
			return true
		}
	}
	return false
}

// found makes the first machine's node, and join makes another one's.
func (w *world) found(m *machine) {
	p := m.newProcess()
	token, err := node.Init(node.InitConfig{DataDir: m.dir, Listen: m.addr(), Name: m.host, Host: p.world()})
	if err != nil {
		w.fail("init: %v", err)
		return
	}
	w.token = token.Token
	m.start()
}

func (w *world) join(m *machine, seed *machine) error {
	return w.joinWith(m, node.JoinConfig{Seed: seed.addr(), Token: w.token})
}

func (w *world) joinWith(m *machine, cfg node.JoinConfig) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	cfg.DataDir, cfg.Listen, cfg.Name, cfg.Host = m.dir, m.addr(), m.host, m.newProcess().world()
	_, err := node.Join(ctx, cfg)
	if errors.Is(err, control.ErrClock) {
		m.ahead = 0 // its operator does as it says
		_, err = node.Join(ctx, cfg)
	}
	if err == nil {
		m.start()
	}
	return err
}
