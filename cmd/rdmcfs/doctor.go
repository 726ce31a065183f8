package main

import (
	"github.com/rdmcfs/rdmcfs/internal/exitcode"
	"github.com/rdmcfs/rdmcfs/internal/terminal"
	"github.com/rdmcfs/rdmcfs/internal/tools/doctor"
)

type doctorCmd struct {
	fabricFlags
	jsonFlag
}

// Run examines the machine. It needs no daemon.
func (c *doctorCmd) Run(a *app) error {
	fabric, err := c.fabric()
	if err != nil {
		return err
	}
	host := doctor.ThisHost(func() doctor.RDMA { return lookAtRDMA(fabric) })
	findings := doctor.Examine(host, doctor.Settings{DataDir: a.data, Fabric: c.Fabric, Named: c.RDMADevice != "" ||
		c.RDMAGID != ""})
	if c.JSON {
		if err := a.printJSON(findings); err != nil {
			return err
		}
	}
	problems := 0
	for _, f := range findings {
		if f.Level == doctor.Problem {
			problems++
		}
		if !c.JSON {
			printFinding(a, f)
		}
	}
	if problems > 0 {
		return withCode(exitcode.Problem, "%s found: rdmcfs can't work here yet", countText(problems, "problem"))
	}
	return nil
}

// tellDisk warns of a data directory on a disk that is not made for one.
func (a *app) tellDisk() {
	for _, f := range doctor.Disk(doctor.ThisHost(nil), a.data) {
		terminal.Printf(a.err, "%s: %s: %s; %s\n", f.Level, f.Text, f.Cost, f.Advice)
	}
}

func printFinding(a *app, f doctor.Finding) {
	terminal.Printf(a.out, "%-8s%s: %s\n", f.Level, f.Topic, f.Text)
	if f.Cost != "" {
		terminal.Printf(a.out, "        costs: %s\n", f.Cost)
	}
	if f.Advice != "" {
		terminal.Printf(a.out, "        do: %s\n", f.Advice)
	}
}
