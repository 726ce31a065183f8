// Command pinbench measures what registering memory costs, and the ways to hide it, between two processes on this
// machine, over TCP from pinned memory (io_uring).
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"

	"github.com/alecthomas/kong"

	"github.com/rdmcfs/rdmcfs/internal/exitcode"
	"github.com/rdmcfs/rdmcfs/internal/tools/bench"
	"github.com/rdmcfs/rdmcfs/internal/units"
	"github.com/rdmcfs/rdmcfs/lab/pin"
)

// command is the command line; its flags are the fields.
type command struct {
	Strategies []string `help:"Some of copy, on-demand, cache, pipeline, caching-pipeline; all if not given." placeholder:"NAME,..."`
	Sizes      []string `help:"Bytes per message, each buffer used once." default:"64KiB,256KiB,1MiB,4MiB,8MiB,16MiB,64MiB" placeholder:"SIZE,..."`
	Reuse      []int    `help:"How often a buffer is used; 0 leaves that table out." default:"1,2,3,5,10,20,50,100" placeholder:"N,..."`
	ReuseSize  string   `help:"Bytes per message with --reuse." default:"8MiB" placeholder:"SIZE"`
	Count      int      `help:"Rounds of each point." default:"9"`
	Rate       []string `help:"Bytes a second that the socket is paced to, in the place of a link, one run for each; 0 lets it go as fast as two processors copy." default:"1.25GB" placeholder:"SIZE,..."`

	Fragment string `help:"Bytes that the pipelines register and write at once; up to four times as many in long messages." default:"256KiB" placeholder:"SIZE"`
	Depth    int    `help:"Fragments registered at a time at each end." default:"4"`
	Eager    string `help:"Bytes that the pipelines send by send/receive before the first fragment." default:"128KiB" placeholder:"SIZE"`

	CSV  bool `name:"csv" help:"Print CSV."`
	JSON bool `name:"json" help:"Print one JSON value per point."`
}

// plan is what the flags ask for.
func (c *command) plan() (p PinPlan, err error) {
	p = PinPlan{Strategies: pin.Strategies(), Rounds: c.Count}
	p.Link.SlotBytes, p.Link.Slots, p.Link.Depth = 64<<10, 8, c.Depth
	if len(c.Strategies) > 0 {
		p.Strategies = nil
	}
	for _, name := range c.Strategies {
		s, err := pin.ParseStrategy(name)
		if err != nil {
			return p, bad("%v", err)
		}
		p.Strategies = append(p.Strategies, s)
	}
	for _, n := range c.Reuse {
		if n != 0 {
			p.Reuses = append(p.Reuses, n)
		}
	}
	if p.Sizes, err = bench.ParseSizes(c.Sizes); err != nil {
		return p, err
	}
	var fragment, eager uint64
	for _, f := range []struct {
		text string
		into *uint64
	}{{c.ReuseSize, &p.ReuseSize}, {c.Fragment, &fragment}, {c.Eager, &eager}} {
		if *f.into, err = bench.ParseBytes(f.text); err != nil {
			return p, err
		}
	}
	if fragment == 0 || eager == 0 || c.Depth == 0 {
		return p, bad("--fragment %s, --eager %s, --depth %d: 0 makes no sense", c.Fragment, c.Eager, c.Depth)
	}
	p.Link.Fragment, p.Link.Offset = int64(fragment), int64(eager)
	return p, nil
}

// check refuses plans that make no sense, or do not fit into memory, before the first is measured.
func (c *command) check(p PinPlan, rates []uint64) error {
	if len(rates) == 0 {
		return bad("--rate: give one or more, or 0")
	}
	for _, p.Rate = range rates {
		if err := p.Check(); err != nil {
			return err
		}
	}
	have, err := bench.FreeMemory()
	if need := p.Memory(); err == nil && need > have-have/8 {
		return bad("the messages need %s of memory, of which %s are free here: "+
			"take smaller --sizes or a smaller --reuse-size",
			units.Bytes(int64(need)), units.Bytes(int64(have)))
	}
	return nil
}

// measure does what the flags ask for.
func (c *command) measure(ctx context.Context, out io.Writer, receiver []string) error {
	format := bench.Table
	switch {
	case c.CSV && c.JSON:
		return bad("--csv and --json: give one of them")
	case c.CSV:
		format = bench.CSV
	case c.JSON:
		format = bench.JSON
	}
	p, err := c.plan()
	if err != nil {
		return err
	}
	rates, err := c.rates()
	if err != nil {
		return err
	}
	if err := c.check(p, rates); err != nil {
		return err
	}
	var runs []PinRun
	for _, p.Rate = range rates {
		results, err := Pin(ctx, p, receiver)
		if err != nil {
			return err
		}
		runs = append(runs, PinRun{Plan: p, Results: results})
	}
	return PinPrint(out, format, runs)
}

// rates are what --rate says.
func (c *command) rates() (out []uint64, err error) {
	for _, text := range c.Rate {
		n, err := bench.ParseBytes(text)
		if err != nil {
			return nil, err
		}
		out = append(out, n)
	}
	return out, nil
}

// memberWord makes the program the receiving process.
const memberWord = "receive"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is main with everything as an argument; it returns the exit code: 2 for usage, 11 for bytes that differ, 1 for
// what else went wrong.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	err := do(ctx, args, stdout)
	if err == nil {
		return 0
	}
	_, _ = fmt.Fprintln(stderr, "pinbench:", err)
	var receiver *receiverError
	switch {
	case errors.Is(err, bench.ErrUsage):
		return exitcode.Usage
	case errors.Is(err, bench.ErrDiffers):
		return exitcode.Differs
	case errors.As(err, &receiver) && receiver.code > 0:
		return receiver.code
	}
	return exitcode.Failure
}

func do(ctx context.Context, args []string, stdout io.Writer) error {
	if len(args) == 1 && args[0] == memberWord {
		return RunPinMember(ctx, os.Stdin, stdout)
	}
	var c command
	parser, err := kong.New(&c, kong.Name("pinbench"),
		kong.Description("Measure what registering memory costs, and the ways to hide it."))
	if err != nil {
		return err
	}
	if _, err := parser.Parse(args); err != nil {
		return bad("%v", err)
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	return c.measure(ctx, stdout, []string{program, memberWord})
}
