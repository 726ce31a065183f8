package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/bench"
	"github.com/rdmcfs/rdmcfs/internal/exitcode"
)

// benchFaultFlags are the flags of 'bench multicast' with a node that fails.
type benchFaultFlags struct {
	Fault  string        `help:"Strike a node while a file is replicated as the daemon does it: kill, stop (SIGSTOP), or cut its link; none sends --count files and tells who was left out by mistake." placeholder:"KIND"`
	Victim string        `help:"With --fault: leaf (sends the fewest blocks on), relay (the most) or root. Default leaf." placeholder:"WHO"`
	At     string        `help:"With --fault: the part of the file that has been sent when the victim is struck. Default 50%." placeholder:"PERCENT"`
	Detect time.Duration `help:"With --fault: the bound within which all others should have heard. Default 3s." placeholder:"TIME"`
}

// faultPlan is what the flags ask for: one case.
func (c *benchMulticastCmd) faultPlan(p bench.Plan) (bench.FaultPlan, error) {
	cases, err := p.Cases()
	if err != nil {
		return bench.FaultPlan{}, err
	}
	at, err := parsePercent(cmp.Or(c.At, "50%"))
	isAuto := func(s []string) bool { return len(s) == 1 && strings.EqualFold(s[0], bench.Auto) }
	switch {
	case err != nil:
		return bench.FaultPlan{}, err
	case !isAuto(c.Blocks) || !isAuto(c.Algorithms) || c.Window != 0 || c.Grants != 0 || c.Sends != 0:
		return bench.FaultPlan{}, withCode(exitcode.Usage, "--fault replicates files, and replication chooses by itself: leave out --blocks, --algorithms, --window, --grants and --sends")
	case len(cases) != 1 || cases[0].Senders != 1 || cases[0].Members != c.Members:
		return bench.FaultPlan{}, withCode(exitcode.Usage, "--fault measures one case: give one size, and neither --groups nor --senders")
	case c.Batch != 1 || c.Depth != 0:
		return bench.FaultPlan{}, withCode(exitcode.Usage, "--fault sends one file at a time: leave out --batch and --depth; with --fault none, --count says how many")
	case c.Rank >= 0:
		return bench.FaultPlan{}, withCode(exitcode.Usage, "--fault is for one machine, --rank for several: give one of them")
	case c.CSV:
		return bench.FaultPlan{}, withCode(exitcode.Usage, "--fault prints text or, with --json, JSON: leave out --csv")
	}
	plan := bench.FaultPlan{
		Members: c.Members, Size: cases[0].Size, Congestion: c.Congestion, Fault: c.Fault, Victim: cmp.Or(c.Victim, bench.VictimLeaf),
		At: at, Detect: cmp.Or(c.Detect, bench.DefaultDetect), Rounds: c.Count,
	}
	plan.Hold = plan.Size < holdBelow
	return plan, plan.Check()
}

// holdBelow is the size of files that might be over before the victim is struck.
const holdBelow = 64 << 20

// parsePercent reads 50% or 50 as a half.
func parsePercent(s string) (float64, error) {
	f, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(s), "%"), 64)
	if err != nil {
		return 0, withCode(exitcode.Usage, "--at %q: give a part of the file like 50%%", s)
	}
	return f / 100, nil
}

// strike runs the fault case.
func (c *benchMulticastCmd) strike(a *app, p bench.Plan) error {
	plan, err := c.faultPlan(p)
	if err != nil {
		return benchError(err)
	}
	program, nodes, end, err := c.prepare(a, p)
	if err != nil {
		return err
	}
	defer end()
	result, err := bench.Fault(a.ctx, plan, []string{program, "bench", "fault-member"}, nodes)
	if err != nil {
		return benchError(err)
	}
	if c.JSON {
		err = json.NewEncoder(a.out).Encode(result)
	} else {
		err = result.Print(a.out)
	}
	return benchError(errors.Join(err, result.Check()))
}

type benchFaultMemberCmd struct{}

// Run is a member process of the fault case.
func (c *benchFaultMemberCmd) Run(a *app) error {
	return bench.RunFaultMember(a.ctx, os.Stdin, a.out)
}
