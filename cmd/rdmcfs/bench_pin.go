package main

import (
	"os"

	"github.com/rdmcfs/rdmcfs/internal/bench"
	"github.com/rdmcfs/rdmcfs/internal/exitcode"
	"github.com/rdmcfs/rdmcfs/rdma/pin"
)

type benchPinCmd struct {
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
func (c *benchPinCmd) plan() (p bench.PinPlan, err error) {
	p = bench.PinPlan{Strategies: pin.Strategies(), Rounds: c.Count}
	p.Link.SlotBytes, p.Link.Slots, p.Link.Depth = 64<<10, 8, c.Depth
	if len(c.Strategies) > 0 {
		p.Strategies = nil
	}
	for _, name := range c.Strategies {
		s, err := pin.ParseStrategy(name)
		if err != nil {
			return p, withCode(exitcode.Usage, "%v", err)
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
		return p, withCode(exitcode.Usage, "--fragment %s, --eager %s, --depth %d: 0 makes no sense", c.Fragment, c.Eager, c.Depth)
	}
	p.Link.Fragment, p.Link.Offset = int64(fragment), int64(eager)
	return p, nil
}

// check refuses plans that make no sense, or do not fit into memory, before the first is measured.
func (c *benchPinCmd) check(p bench.PinPlan, rates []uint64) error {
	if len(rates) == 0 {
		return withCode(exitcode.Usage, "--rate: give one or more, or 0")
	}
	for _, p.Rate = range rates {
		if err := p.Check(); err != nil {
			return benchError(err)
		}
	}
	return fits(p.Memory(), "take smaller --sizes or a smaller --reuse-size")
}

// Run measures.
func (c *benchPinCmd) Run(a *app) error {
	format := bench.Table
	switch {
	case c.CSV && c.JSON:
		return withCode(exitcode.Usage, "--csv and --json: give one of them")
	case c.CSV:
		format = bench.CSV
	case c.JSON:
		format = bench.JSON
	}
	p, err := c.plan()
	if err != nil {
		return benchError(err)
	}
	program, err := os.Executable()
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
	var runs []bench.PinRun
	for _, p.Rate = range rates {
		results, err := bench.Pin(a.ctx, p, []string{program, "bench", "pin-member"})
		if err != nil {
			return benchError(err)
		}
		runs = append(runs, bench.PinRun{Plan: p, Results: results})
	}
	return bench.PinPrint(a.out, format, runs)
}

// rates are what --rate says.
func (c *benchPinCmd) rates() (out []uint64, err error) {
	for _, text := range c.Rate {
		n, err := bench.ParseBytes(text)
		if err != nil {
			return nil, benchError(err)
		}
		out = append(out, n)
	}
	return out, nil
}

type benchPinMemberCmd struct{}

// Run is the receiving process.
func (c *benchPinMemberCmd) Run(a *app) error {
	return benchError(bench.RunPinMember(a.ctx, os.Stdin, a.out))
}
