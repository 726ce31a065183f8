package node

import (
	"context"
	"io"
	"net"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/rdmcfs/rdmcfs/fs"
	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog"
	"github.com/rdmcfs/rdmcfs/internal/control"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/format"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/rdma"
	"golang.org/x/sys/unix"
)

// Host is what a node stands on. The zero value is the machine that the process runs on.
type Host struct {
	// Listen and Dial carry control; nil is TCP.
	Listen func(addr string) (net.Listener, error)
	Dial   control.DialFunc
	// Device is the whole fabric; nil is that of Config.Fabric.
	Device func() (rdma.Device, error)
	// State opens the replicated state; nil is badger in a directory.
	State func() (*meta.DB, error)
	// Log holds the directory of the raft log; nil is the machine's file system.
	Log raftlog.FS
	// LogSegment is the size of a log file, in bytes; 0 is the usual.
	LogSegment int64
	// ReadCache bounds the memory for blocks that are read from other nodes, in bytes; 0 is the usual.
	ReadCache int64
	// Attach sends a mount its requests; nil is the kernel.
	Attach func(requests fuse.RawFileSystem) (fs.Kernel, error)
	// Admin is given the answers to the command line; nil is a socket in the data directory.
	Admin func(admin.Handlers) (io.Closer, error)
	// Wall is the machine's clock; nil is time.Now. Elapsed times are never taken from it.
	Wall func() time.Time
	// Passed is called at each labelled point (docs/TESTING.md), and Step before each change of the contents that a
	// power loss may undo ([content.Options]). They may be nil.
	Passed func(point string)
	Step   func(step, path string) error
	// Formats are the formats that the program knows; the zero value is format.Known.
	Formats format.Range
}

func (h Host) formats() format.Range {
	if h.Formats == (format.Range{}) {
		return format.Known
	}
	return h.Formats
}

func (h Host) wall() time.Time {
	if h.Wall == nil {
		return time.Now()
	}
	return h.Wall()
}

// awake is how long the machine has run, with the time that it slept or was suspended. It is 0 where clocks are
// simulated.
func (h Host) awake() time.Duration {
	var ts unix.Timespec
	if h.Wall != nil || unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

// watchLines calls up whenever a line of the machine is up again, until ctx ends. Simulated lines give no news.
func (h Host) watchLines(ctx context.Context, up func()) error {
	if h.Dial != nil {
		return nil
	}
	return control.WatchLines(ctx, up)
}

// local refuses a data directory on a mount of rdmcfs. Where another kernel serves the mounts none can be above it.
func (h Host) local(d dataDir) error {
	if h.Attach != nil {
		return nil
	}
	return d.local()
}

// listen returns nil if package control is to open the port.
func (h Host) listen(addr string) (net.Listener, error) {
	if h.Listen == nil {
		return nil, nil
	}
	return h.Listen(addr)
}

func (h Host) openState(dir string, opts meta.Options) (*meta.DB, error) {
	if h.State == nil {
		return meta.Open(dir, opts)
	}
	return h.State()
}

// serveAdmin answers the command line until the returned server is closed, and those who read at the port of --http.
func (n *node) serveAdmin(h admin.Handlers) (io.Closer, error) {
	n.http.setAnswers(httpAnswers{Handlers: h, creds: n.creds, db: n.db})
	if n.cfg.Host.Admin != nil {
		return n.cfg.Host.Admin(h)
	}
	return admin.Serve(admin.SocketPath(n.cfg.DataDir), h, n.log)
}
