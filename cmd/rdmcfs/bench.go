package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/exitcode"
	"github.com/rdmcfs/rdmcfs/internal/node"
	"github.com/rdmcfs/rdmcfs/internal/terminal"
	"github.com/rdmcfs/rdmcfs/internal/tools/bench"
	"github.com/rdmcfs/rdmcfs/internal/units"
	"github.com/rdmcfs/rdmcfs/rdma"
)

type benchCmd struct {
	Multicast benchMulticastCmd `cmd:"" help:"Measure the multicast alone, memory to memory between processes, on this machine or on many."`
	Member    benchMemberCmd    `cmd:"" hidden:"" help:"A member process that 'bench multicast' started."`
}

type benchMulticastCmd struct {
	Members    int      `help:"Processes that take part." default:"4"`
	Groups     []int    `help:"Group sizes, each at most --members, which is the default." placeholder:"N,..."`
	Sizes      []string `help:"Bytes per message: 1, 10KB, 64KiB, 1GiB." default:"64MiB" placeholder:"SIZE,..."`
	Blocks     []string `help:"Bytes per block, or auto." default:"auto" placeholder:"SIZE,..."`
	Algorithms []string `help:"auto, all, or some of sequential, chain, binomial-tree, binomial-pipeline, twin, …" default:"auto" placeholder:"NAME,..."`
	Senders    []string `help:"How many members send at once, each in its own group: one, half, all." default:"one" placeholder:"WHO,..."`
	Count      int      `help:"Rounds of each case." default:"10"`
	Batch      int      `help:"Messages that each sender sends in a round; with small --sizes it gives messages a second." default:"1"`
	Depth      int      `help:"Messages of the batch that a sender has under way at once; 0 is all, 1 gives the latency." default:"0"`

	LinkRate string `help:"Bytes a second that a link carries, like 25MB, for the choice of blocks; auto measures." default:"auto" placeholder:"SIZE"`

	Congestion string `help:"Congestion control of the sockets; 'default' leaves the machine's." default:"cubic"`
	Window     int    `help:"Block buffers of each member; 0 chooses." default:"0"`
	Grants     int    `help:"Buffers posted as receives at once; 0 chooses." default:"0"`
	Sends      int    `help:"Block sends outstanding at once; 0 chooses." default:"0"`

	Rank   int           `help:"On several machines: this process's number, 0 to members-1. 0 prints." default:"-1"`
	Room   string        `help:"On several machines: where rank 0 waits for the others." placeholder:"HOST:PORT"`
	Listen string        `help:"On several machines: this host's address for data; port 0 picks one." placeholder:"IP:PORT"`
	Wait   time.Duration `help:"On several machines: how long to wait for the others." default:"60s"`

	Namespaces string `help:"As root: put the members in network namespaces PREFIX-0, -1, … with shaped links." placeholder:"PREFIX"`
	Rate       string `help:"Rate of each link with --namespaces, as tc(8) has it, or unshaped; 200mbit if not given." placeholder:"RATE"`
	Script     string `help:"With --namespaces: the script that makes them; test/netns/netns.sh if not given." placeholder:"PATH"`

	rdmaFlags

	Explain bool `help:"Measure nothing: tell which algorithm, block size and window are used, and why."`
	CSV     bool `name:"csv" help:"Print CSV."`
	JSON    bool `name:"json" help:"Print one JSON value per case."`
}

// plan is what the flags ask for.
func (c *benchMulticastCmd) plan() (bench.Plan, error) {
	p := bench.Plan{
		Members: c.Members, GroupSizes: c.Groups, Senders: c.Senders, Rounds: c.Count, Batch: c.Batch, Depth: c.Depth,
		Congestion: c.Congestion, Window: c.Window, Grants: c.Grants, MaxSends: c.Sends, Algorithms: c.Algorithms,
	}
	var err error
	if p.Sizes, err = bench.ParseSizes(c.Sizes); err != nil {
		return p, err
	}
	if p.BlockSizes, err = bench.ParseBlocks(c.Blocks); err != nil {
		return p, err
	}
	if !strings.EqualFold(c.LinkRate, bench.Auto) {
		rate, err := bench.ParseBytes(c.LinkRate)
		if err != nil {
			return p, err
		}
		p.LinkRate = float64(rate)
	}
	if isAll := func(name string) bool { return strings.EqualFold(name, "all") }; slices.ContainsFunc(c.Algorithms,
		isAll) {
		all := p.AllAlgorithms()
		p.Algorithms = append(all, slices.DeleteFunc(slices.Clone(c.Algorithms), func(name string) bool {
			return isAll(name) || slices.ContainsFunc(all, func(known string) bool { return strings.EqualFold(name, known) })
		})...)
	}
	_, err = p.Cases()
	return p, err
}

// Run measures, or explains.
func (c *benchMulticastCmd) Run(a *app) error {
	p, err := c.plan()
	if err == nil {
		err = c.check()
	}
	if err != nil {
		return benchError(err)
	}
	if c.Explain {
		return c.explain(a, p)
	}
	format := bench.Table
	switch {
	case c.CSV:
		format = bench.CSV
	case c.JSON:
		format = bench.JSON
	}
	printer := bench.NewPrinter(a.out, format)
	var printErr error
	onResult := func(r bench.Result) { printErr = errors.Join(printErr, printer.Print(r)) }
	if c.Rank >= 0 {
		err = c.member(a, p, onResult)
	} else {
		err = c.local(a, p, onResult)
	}
	return benchError(errors.Join(err, printErr))
}

// check finds flags that do not go together.
func (c *benchMulticastCmd) check() error {
	several := c.Room != "" || c.Listen != ""
	switch {
	case c.CSV && c.JSON:
		return withCode(exitcode.Usage, "--csv and --json: give one of them")
	case c.Explain && (c.CSV || c.JSON):
		return withCode(exitcode.Usage, "--explain prints text: leave out --csv and --json, or --explain to measure")
	case c.Rank < 0 && several:
		return withCode(exitcode.Usage, "--room and --listen are for several machines: give --rank 0 to %d too, each once",
			c.Members-1)
	case c.Rank >= c.Members || c.Rank < -1:
		return withCode(exitcode.Usage, "--rank %d of --members %d: give 0 to %d", c.Rank, c.Members, c.Members-1)
	case c.Rank >= 0 && (c.Room == "" || c.Listen == ""):
		return withCode(exitcode.Usage,
			"--rank needs --room HOST:PORT, where rank 0 waits for the others, and --listen IP:PORT, an address of this host")
	case c.Rank >= 0 && isAnyAddress(c.Listen):
		return withCode(exitcode.Usage, "--listen %s: the others dial it, so give an address of this host", c.Listen)
	case c.Rank >= 0 && c.Namespaces != "":
		return withCode(exitcode.Usage, "--namespaces is for one machine, --rank for several: give one of them")
	case c.Rank >= 0 && !isAddress(c.Room):
		return withCode(exitcode.Usage, "--room %s: give HOST:PORT, where rank 0 waits for the others", c.Room)
	case c.Rank >= 0 && !isAddress(c.Listen):
		return withCode(exitcode.Usage, "--listen %s: give IP:PORT, an address of this host; port 0 picks one", c.Listen)
	case c.Script != "" && c.Namespaces == "":
		return withCode(exitcode.Usage, "--script makes --namespaces: give these too")
	case c.Rate != "" && c.Namespaces == "":
		return withCode(exitcode.Usage,
			"--rate shapes links between --namespaces: give these too, or --link-rate if that is what the links have")
	case c.Fabric == string(node.FabricVerbs) && c.Namespaces != "":
		return withCode(exitcode.Usage,
			"--fabric verbs: not with --namespaces, where the addresses of RDMA devices are not: use --fabric tcp")
	case c.Wait <= 0:
		return withCode(exitcode.Usage, "--wait %v: give a time above 0", c.Wait)
	}
	return bench.CheckCongestion(c.Congestion)
}

// isAddress reports whether an address is a host and the number of a port.
func isAddress(addr string) bool {
	_, port, err := net.SplitHostPort(addr)
	_, bad := strconv.ParseUint(port, 10, 16)
	return err == nil && bad == nil
}

// isAnyAddress reports whether an address to listen at means all interfaces: nobody can dial it.
func isAnyAddress(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	return err == nil && (host == "" || net.ParseIP(host).IsUnspecified())
}

func (c *benchMulticastCmd) explain(a *app, p bench.Plan) error {
	cases, err := p.Cases()
	if err != nil {
		return benchError(err)
	}
	for _, one := range cases {
		if c.Fabric == string(node.FabricVerbs) {
			if one, err = one.OverRDMA(); err != nil {
				return benchError(err)
			}
		}
		fmt.Fprint(a.out, bench.Explain(one)) // tidy: many lines, of numbers and the program's own words
	}
	return nil
}

// member is one of several machines' processes.
func (c *benchMulticastCmd) member(a *app, p bench.Plan, onResult func(bench.Result)) error {
	if err := checkMemory(p, 1); err != nil {
		return err
	}
	open, err := c.openRDMA(a)
	if err != nil {
		return err
	}
	return bench.Process{
		OpenRDMA: open, Plan: p, Rank: c.Rank, Room: c.Room, Listen: c.Listen, Wait: c.Wait, OnResult: onResult,
		OnRefused: func(err error) { terminal.Println(a.err, "rdmcfs:", err) },
	}.Run(a.ctx)
}

// local starts all members on this machine.
func (c *benchMulticastCmd) local(a *app, p bench.Plan, onResult func(bench.Result)) error {
	program, nodes, end, err := c.prepare(a, p)
	if err != nil {
		return err
	}
	defer end()
	if nodes != nil && p.LinkRate == 0 {
		pace, err := bench.IperfPace(a.ctx, nodes, 0, 1)
		if p.LinkRate, p.LinkBusy = pace.Rate, pace.Busy; err != nil {
			terminal.Println(a.err, "rdmcfs: the links are measured by a burst, without iperf3:", err)
		}
	}
	flags := c.rdmaFlags
	if nodes != nil {
		flags.Fabric = string(node.FabricTCP)
	}
	return bench.Local(a.ctx, p, append([]string{program, "bench", "member"}, flags.words()...), nodes, onResult)
}

// prepare looks for what members on this machine need: memory, the program and, if they are asked for, namespaces,
// which end removes.
func (c *benchMulticastCmd) prepare(a *app, p bench.Plan) (program string, nodes *bench.Links, end func(), err error) {
	if err := checkMemory(p, p.Members); err != nil {
		return "", nil, nil, err
	}
	if program, err = os.Executable(); err != nil || c.Namespaces == "" {
		return program, nil, func() {}, err
	}
	if nodes, err = c.namespaces(a.ctx); err != nil {
		return "", nil, nil, err
	}
	return program, nodes, func() {
		if err := nodes.Close(); err != nil {
			terminal.Println(a.err, "rdmcfs:", err)
		}
	}, nil
}

// namespaces makes the namespaces by the script of the source tree.
func (c *benchMulticastCmd) namespaces(ctx context.Context) (*bench.Links, error) {
	script, err := filepath.Abs(cmp.Or(c.Script, "test/netns/netns.sh"))
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(script); err != nil {
		return nil, withCode(exitcode.NotFound, "--namespaces needs the script test/netns/netns.sh of the source tree, "+
			"which is not at %s: run in the source tree, or give --script PATH", script)
	}
	if os.Geteuid() != 0 {
		return nil, withCode(exitcode.Denied, "--namespaces needs root: run it with sudo, or without --namespaces")
	}
	if _, err := os.Stat("/run/netns-" + c.Namespaces); err == nil {
		return nil,
			withCode(exitcode.Exists,
				"there are namespaces %[1]s-0 already: take another --namespaces PREFIX, or remove them: CLUSTER=%[1]s %[2]s down",
				c.Namespaces, script)
	}
	return bench.NewLinks(ctx, script, c.Namespaces, c.Members, cmp.Or(c.Rate, "200mbit"), "")
}

// processBytes is what a member's process takes in addition to its messages, at least.
const processBytes = 24 << 20

// checkMemory refuses what would not fit, with some room for block buffers.
func checkMemory(p bench.Plan, processes int) error {
	need, err := p.Memory(processes)
	if err != nil {
		return err
	}
	return fits(min(need, math.MaxInt64/2)+uint64(processes)*processBytes,
		"take smaller --sizes, a smaller --batch, fewer --senders or --members")
}

// fits refuses messages that need more memory than is free here.
func fits(need uint64, advice string) error {
	have, err := bench.FreeMemory()
	if err == nil && need > have-have/8 {
		return withCode(exitcode.Full, "the messages need %s of memory, of which %s are free here: %s",
			units.Bytes(int64(need)), units.Bytes(int64(have)), advice)
	}
	return nil
}

// benchError gives an error of package bench its exit code.
func benchError(err error) error {
	if err == nil {
		return nil
	}
	text := strings.TrimPrefix(err.Error(), bench.ErrUsage.Error()+": ")
	switch {
	case errors.Is(err, bench.ErrUsage):
		return withCode(exitcode.Usage, "%s", text)
	case errors.Is(err, bench.ErrDiffers):
		return &exitError{exitcode.Differs, err}
	}
	if code, ok := bench.ExitCode(err); ok {
		return &exitError{code, err}
	}
	return err
}

// openRDMA is what a member process needs to open the device that the flags ask for; nil where they ask for none.
func (f rdmaFlags) openRDMA(a *app) (func() (rdma.Device, error), error) {
	fabric, err := f.rdma()
	if err != nil || fabric.Mode == node.FabricTCP {
		return nil, err
	}
	return func() (rdma.Device, error) { return fabric.OpenWanted("", slog.New(slog.NewTextHandler(a.err, nil))) }, nil
}

type benchMemberCmd struct{ rdmaFlags }

// Run is the member process.
func (c *benchMemberCmd) Run(a *app) error {
	open, err := c.openRDMA(a)
	if err != nil {
		return err
	}
	return benchError(bench.RunChild(a.ctx, os.Stdin, a.out, open))
}
