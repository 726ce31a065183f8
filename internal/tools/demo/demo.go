// Package demo runs a small cluster on one machine for somebody to look at: nodes with their own processes, data
// directories and mounts, a file copied in on one and read back on all.
package demo

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/terminal"
)

// Options say what to show.
type Options struct {
	Program string // the rdmcfs binary
	Nodes   int    // 0 = 4
	File    string // to copy in; "" = SizeBytes made up
	Size    int64  // bytes of the made-up file; 0 = 256 MiB
	Once    bool   // end after the digests, instead of staying
	Out     io.Writer
}

const (
	defaultNodes = 4
	defaultSize  = 256 << 20
	nodesMax     = 16
	parentDir    = "/var/tmp"
	readyTimeout = 60 * time.Second
	stopTimeout  = 20 * time.Second
	pollInterval = 100 * time.Millisecond
)

// ErrUsage is the class of options that make no sense.
var ErrUsage = errors.New("demo")

// ErrDiffers is returned when the nodes do not all show the same bytes.
var ErrDiffers = errors.New("demo: the nodes show different bytes")

// Run shows the demo until ctx ends, or once. It leaves no process, mount or file behind.
func Run(ctx context.Context, o Options) (err error) {
	if o.Nodes == 0 {
		o.Nodes = defaultNodes
	}
	if o.Size == 0 {
		o.Size = defaultSize
	}
	if o.Nodes < 1 || o.Nodes > nodesMax {
		return fmt.Errorf("%w: %d nodes: want 1 to %d", ErrUsage, o.Nodes, nodesMax)
	}
	if o.Size < 0 {
		return fmt.Errorf("%w: a file of %d bytes: want a size above 0", ErrUsage, o.Size)
	}
	d := &demo{opts: o}
	if err := d.checkRoom(parentDir); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("demo: mounting needs root: run 'sudo make demo': %w", os.ErrPermission)
	}
	defer func() { err = errors.Join(err, d.close()) }()
	if err := d.start(ctx); err != nil {
		return err
	}
	if err := d.show(ctx); err != nil || o.Once {
		return err
	}
	d.say("\nThe cluster stays up. Try:\n")
	d.say("  echo hello > %s/hello; cat %s/hello\n", d.nodes[0].mount, d.nodes[len(d.nodes)-1].mount)
	d.say("  %s status --data %s\n", o.Program, d.nodes[0].data)
	d.say("  kill -9 %d   # a node dies; start it again with: %s mount %s --data %s\n",
		d.nodes[len(d.nodes)-1].cmd.Process.Pid, o.Program, d.nodes[len(d.nodes)-1].mount, d.nodes[len(d.nodes)-1].data)
	d.say("Ctrl-C ends it and removes everything.\n")
	<-ctx.Done()
	return nil
}

// demo is one run.
type demo struct {
	opts  Options
	dir   string
	nodes []*node
}

// node is one member: its process serves its mount.
type node struct {
	name, addr, data, mount string
	cmd                     *exec.Cmd
	done                    chan struct{} // closed when cmd has ended
}

func (d *demo) say(format string, args ...any) { terminal.Printf(d.opts.Out, format, args...) }

// start makes the cluster and waits until all nodes are up.
func (d *demo) start(ctx context.Context) error {
	dir, err := os.MkdirTemp(parentDir, "rdmcfs-demo-")
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	d.dir = dir
	d.say("Starting %d nodes under %s\n", d.opts.Nodes, dir)
	var line []string
	for i := range d.opts.Nodes {
		n, err := d.newNode(i)
		if err != nil {
			return err
		}
		if i == 0 {
			line, err = d.found(ctx, n)
		} else {
			err = d.cli(ctx, n, nil, append(line, "--no-start", "--listen", n.addr, "--name", n.name)...)
		}
		if err != nil {
			return err
		}
		if err := d.launch(ctx, n); err != nil {
			return err
		}
	}
	return d.awaitUp(ctx)
}

func (d *demo) newNode(i int) (*node, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("node%d", i+1)
	n := &node{name: name, addr: addr,
		data: filepath.Join(d.dir, name), mount: filepath.Join(d.dir, "mnt"+name[len("node"):])}
	if err := os.Mkdir(n.mount, 0o755); err != nil {
		return nil, fmt.Errorf("demo: %w", err)
	}
	d.nodes = append(d.nodes, n)
	return n, nil
}

// loopback is a loopback address that other programs hardly use. At 127.0.0.1 any connection that another program opens
// may take a port between the time that it is found free and the start of its node.
const loopback = "127.77.0.4"

// freeAddr is an address at which nobody listens now.
func freeAddr() (string, error) {
	ln, err := net.Listen("tcp", net.JoinHostPort(loopback, "0"))
	if err != nil {
		return "", fmt.Errorf("demo: %w", err)
	}
	defer ln.Close()
	return ln.Addr().String(), nil
}

// found makes the cluster and returns the arguments with which the others join.
func (d *demo) found(ctx context.Context, n *node) ([]string, error) {
	var token admin.Token
	if err := d.cli(ctx, n, &token, "init", "--no-start", "--listen", n.addr, "--name", n.name, "--json"); err != nil {
		return nil, err
	}
	return []string{"join", token.Listen, "--token", token.Token}, nil
}

// cli runs the program for a node; answer, if not nil, gets its JSON.
func (d *demo) cli(ctx context.Context, n *node, answer any, args ...string) error {
	cmd := exec.CommandContext(ctx, d.opts.Program, append(args, "--data", n.data)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Stderr = d.opts.Out
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("demo: %s: rdmcfs %s: %w", n.name, args[0], err)
	}
	if answer == nil {
		return nil
	}
	if err := json.Unmarshal(out, answer); err != nil {
		return fmt.Errorf("demo: %s: rdmcfs %s printed %q: %w", n.name, args[0], out, err)
	}
	return nil
}

// launch starts a node with its mount. It has a process group of its own, so that Ctrl-C reaches the demo only,
// which ends the nodes in order.
func (d *demo) launch(ctx context.Context, n *node) error {
	logf, err := os.Create(n.data + ".log")
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	defer logf.Close()
	cmd := exec.Command(d.opts.Program, "mount", n.mount, "--data", n.data)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Stdout, cmd.Stderr = logf, logf
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("demo: start %s: %w", n.name, err)
	}
	n.cmd, n.done = cmd, make(chan struct{})
	go func() {
		cmd.Wait()
		close(n.done)
	}()
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	return d.poll(ctx, func() (bool, error) {
		st, err := n.client().Status(ctx)
		if err == nil && len(st.Mounts) > 0 && st.Mounts[0].State == "mounted" {
			return true, nil
		}
		select {
		case <-n.done:
			raw, _ := os.ReadFile(n.data + ".log")
			return false, fmt.Errorf("demo: %s ended while starting:\n%s", n.name, raw)
		default:
			return false, nil
		}
	})
}

func (n *node) client() *admin.Client { return admin.NewClient(admin.SocketPath(n.data)) }

// awaitUp waits until the first node sees all nodes up.
func (d *demo) awaitUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	return d.poll(ctx, func() (bool, error) {
		st, err := d.nodes[0].client().Status(ctx)
		if err != nil {
			return false, nil
		}
		up := 0
		for _, n := range st.Nodes {
			if n.State == "up" {
				up++
			}
		}
		return up == len(d.nodes), nil
	})
}

func (d *demo) poll(ctx context.Context, cond func() (bool, error)) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		if ok, err := cond(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("demo: the nodes are not ready: %w", ctx.Err())
		case <-tick.C:
		}
	}
}

// close ends the nodes, detaches what they left, and removes the files.
func (d *demo) close() error {
	for _, n := range d.nodes {
		if n.cmd != nil {
			n.cmd.Process.Signal(syscall.SIGTERM)
		}
	}
	var errs error
	for _, n := range d.nodes {
		errs = errors.Join(errs, n.end())
	}
	if d.dir != "" {
		errs = errors.Join(errs, os.RemoveAll(d.dir))
	}
	return errs
}

// end waits for the node's process, or ends it, and for any process that the user started again on its data.
func (n *node) end() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if n.cmd != nil {
		select {
		case <-n.done:
		case <-ctx.Done():
			n.cmd.Process.Kill()
			<-n.done
		}
	}
	if client := n.client(); client.Stop(ctx) == nil {
		client.Gone(ctx)
	}
	for syscall.Unmount(n.mount, syscall.MNT_DETACH) == nil {
	}
	return nil
}

// madeUp writes size random bytes to path.
func madeUp(path string, size int64) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	defer f.Close()
	if _, err := io.CopyN(f, rand.Reader, size); err != nil {
		return fmt.Errorf("demo: make up a file: %w", err)
	}
	return f.Close()
}
