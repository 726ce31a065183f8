package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/exitcode"
	"github.com/rdmcfs/rdmcfs/internal/node"
	"github.com/rdmcfs/rdmcfs/internal/terminal"
)

const (
	startTimeout = 60 * time.Second
	stopTimeout  = 60 * time.Second
	askTimeout   = 10 * time.Second
)

// nodeFlags are common to init and join.
type nodeFlags struct {
	Listen    string            `help:"HOST:PORT of this machine that the other nodes reach." required:"" placeholder:"HOST:PORT"`
	Advertise string            `help:"Another HOST:PORT that the others should use, as behind NAT." placeholder:"HOST:PORT"`
	Name      string            `help:"Name of this node; the host name if not given."`
	Label     map[string]string `help:"Label for placement, such as rack=a; can be repeated." placeholder:"KEY=VALUE" mapsep:","`
	NoStart   bool              `help:"Do not leave a daemon running."`
	daemonFlags
	jsonFlag
}

// nodeName is the name given, or the host's.
func (f nodeFlags) nodeName() string {
	if f.Name != "" {
		return f.Name
	}
	host, err := os.Hostname()
	if err != nil {
		return ""
	}
	return host
}

// starts is what a daemon that is started uses: the address of --http, and RDMA. Both are tried before anything is
// made. Flags of a daemon that is not started are refused. Variables and the configuration file are not: a later
// command takes them.
func (f nodeFlags) starts(a *app) (http string, fabric node.Fabric, err error) {
	serves, err := f.http()
	if err == nil {
		fabric, err = f.fabric()
	}
	if err != nil || !f.NoStart {
		return serves.Addr, fabric, err
	}
	if given := f.given(a.standing); len(given) > 0 {
		return "", node.Fabric{}, withCode(exitcode.Usage, "--no-start starts no daemon that %s could be for: give it to "+
			"'rdmcfs mount' or 'rdmcfs daemon' when you start the node, or leave out --no-start", strings.Join(given, ", "))
	}
	return "", node.Fabric{}, nil
}

// checkAdvertise refuses a host name that has no address, before a token is used for it. It takes askTimeout at most.
func (f nodeFlags) checkAdvertise(ctx context.Context) error {
	host, _, err := net.SplitHostPort(f.Advertise)
	if err != nil || host == "" || net.ParseIP(host) != nil {
		return nil // what is wrong with it is said later
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if _, err := net.DefaultResolver.LookupHost(ctx, host); err != nil {
		return withCode(exitcode.Usage, "--advertise=%s: %v: check the name, or give its address", f.Advertise, err)
	}
	return nil
}

type initCmd struct {
	nodeFlags
	TTL time.Duration `name:"ttl" help:"How long the printed token is good." default:"24h"`
}

// Run makes the cluster, starts the node, and prints the line for the others.
func (c *initCmd) Run(a *app) error {
	if err := checkTTL(c.TTL); err != nil {
		return err
	}
	http, fabric, err := c.starts(a)
	if err != nil {
		return err
	}
	if err := c.checkAdvertise(a.ctx); err != nil {
		return err
	}
	token, err := nodeInit(a.ctx, initParams{Data: a.data, Listen: c.Listen, Advertise: c.Advertise, Name: c.nodeName(),
		Labels: c.Label, TokenTTL: c.TTL, HTTP: http, Fabric: fabric})
	if err != nil {
		return err
	}
	a.tellDisk()
	if !c.NoStart {
		if err := a.startDaemon(a.ctx, c.words()...); err != nil {
			return fmt.Errorf("the cluster is made, but its daemon did not start: %w", err)
		}
	}
	if c.JSON {
		return a.printJSON(token)
	}
	terminal.Printf(a.out,
		"On each other machine, with an address of its own, until %s ('rdmcfs token' makes a new line):\n",
		token.Expires.Local().Format(time.DateTime))
	a.printJoinLine(token)
	return nil
}

// checkTTL refuses a token that would be good for no time. The daemon takes 0 for its own default.
func checkTTL(ttl time.Duration) error {
	if ttl <= 0 {
		return withCode(exitcode.Usage, "--ttl=%v: want more than 0, such as 24h", ttl)
	}
	return nil
}

// printJoinLine prints what to type on the machine that joins.
func (a *app) printJoinLine(t admin.Token) {
	terminal.Printf(a.out, "  rdmcfs join %s --token %s --listen HOST:PORT\n", t.Listen, t.Token)
}

type joinCmd struct {
	Addr  string `arg:"" help:"HOST:PORT of any member."`
	Token string `help:"Token that 'rdmcfs init' or 'rdmcfs token' printed." required:"" env:"RDMCFS_TOKEN"`
	nodeFlags
	Replace bool `help:"Take the place of the node of this name, which is lost. Needs a token made with --replace."`
}

// Run makes this machine a node and starts it.
func (c *joinCmd) Run(a *app) error {
	http, fabric, err := c.starts(a)
	if err != nil {
		return err
	}
	if err := c.checkAdvertise(a.ctx); err != nil {
		return err
	}
	name, err := nodeJoin(a.ctx, joinParams{Data: a.data, Addr: c.Addr, Token: c.Token, Listen: c.Listen,
		Advertise: c.Advertise, Name: c.nodeName(), Labels: c.Label, Replace: c.Replace, HTTP: http, Fabric: fabric})
	if err != nil {
		return err
	}
	a.tellDisk()
	if !c.NoStart {
		if err := a.startDaemon(a.ctx, c.words()...); err != nil {
			return fmt.Errorf("this machine is %s of the cluster now, but its daemon did not start: %w", name, err)
		}
	}
	if c.JSON {
		return a.printJSON(map[string]string{"name": name})
	}
	terminal.Printf(a.out, "This machine is %s of the cluster. Next: rdmcfs mount DIR\n", name)
	return nil
}

type daemonCmd struct {
	logFlags
	daemonFlags
}

// Run is the daemon without a mount.
func (c *daemonCmd) Run(a *app) error {
	return a.runDaemon(a.ctx, nil, c.daemonFlags, c.logFlags)
}

// memProfileRate is how many bytes are allocated for each that the heap profile samples: Go's usual rate.
const memProfileRate = 512 << 10

// startOver is how long after it is ready a daemon is busy with its start: nodes connect, and states are compared.
const startOver = 10 * time.Second

// runDaemon runs the node in this process until the context ends, and informs the parent and systemd when it is ready.
func (a *app) runDaemon(ctx context.Context, mounts []admin.MountRequest, flags daemonFlags, log logFlags) error {
	fabric, err := flags.fabric()
	if err != nil {
		return err
	}
	http, err := flags.http()
	if err != nil {
		return err
	}
	if http.Pprof {
		runtime.MemProfileRate = memProfileRate
	}
	if _, err := a.status(); err == nil {
		return withCode(exitcode.Exists, "a daemon runs on %s already: stop it with 'rdmcfs stop', or use another --data",
			a.data)
	}
	waiting := newReadiness()
	defer waiting.close()
	told := make(chan struct{})
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer close(told)
		if _, err := a.client.Ready(ctx); err == nil {
			waiting.ready()
			freeStartMemory(ctx)
		}
	}()
	err = nodeRun(ctx, runParams{Data: a.data, Mounts: mounts, Fabric: fabric, HTTP: http, Log: a.logger(log)})
	cancel()
	<-told
	if err != nil {
		waiting.failed(err)
	}
	return err
}

// freeStartMemory gives back what the start has used and the daemon needs no more, when the start is over. It is more
// than an idle daemon keeps, and the garbage collector would hold on to it for long.
func freeStartMemory(ctx context.Context) {
	over := time.NewTimer(startOver)
	defer over.Stop()
	select {
	case <-ctx.Done():
	case <-over.C:
		debug.FreeOSMemory()
	}
}

type stopCmd struct{}

// Run ends the daemon and waits for its end.
func (c *stopCmd) Run(a *app) error {
	ctx, cancel := context.WithTimeout(a.ctx, stopTimeout)
	defer cancel()
	return a.client.StopAndWait(ctx)
}

type metricsCmd struct{}

// Run copies the counters.
func (c *metricsCmd) Run(a *app) error {
	ctx, cancel := context.WithTimeout(a.ctx, askTimeout)
	defer cancel()
	return a.client.Metrics(ctx, a.out)
}

// status asks the daemon, within askTimeout.
func (a *app) status() (admin.Status, error) {
	ctx, cancel := context.WithTimeout(a.ctx, askTimeout)
	defer cancel()
	return a.client.Status(ctx)
}
