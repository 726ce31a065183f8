package main

import (
	"encoding/json"
	"fmt"

	"github.com/rdmcfs/rdmcfs/internal/exitcode"
	"github.com/rdmcfs/rdmcfs/internal/sim"
	"github.com/rdmcfs/rdmcfs/internal/terminal"
)

type simCmd struct {
	Seed  uint64 `help:"First seed." default:"1"`
	Seeds uint64 `help:"How many seeds to run, one after the other." default:"1"`
	Nodes int    `help:"Nodes at first; 0 lets the seed choose 3 to 7." default:"0"`
	Trace bool   `help:"Print what happens, line by line."`
	JSON  bool   `name:"json" help:"Print one JSON value per seed."`
}

// simLine is what is printed of one seed as JSON.
type simLine struct {
	Seed    uint64    `json:"seed"`
	Nodes   int       `json:"nodes"`
	Trace   string    `json:"trace"`
	Seconds float64   `json:"virtual_seconds"`
	Stats   sim.Stats `json:"stats"`
	Error   string    `json:"error,omitempty"`
}

// Run runs simulated clusters until one breaks a guarantee, or all are through, or Ctrl-C.
func (c *simCmd) Run(a *app) error {
	for seed := c.Seed; seed < c.Seed+c.Seeds && a.ctx.Err() == nil; seed++ {
		o := sim.Options{Seed: seed, Nodes: c.Nodes}
		if c.Trace && !c.JSON {
			o.Trace = func(line string) { terminal.Println(a.out, line) }
		}
		r := sim.Run(o)
		if err := c.print(a, r); err != nil {
			return err
		}
		if r.Err != nil {
			return withCode(exitcode.Differs, "seed %d: %v; replay it with: rdmcfs sim --seed %d --trace", seed, r.Err, seed)
		}
	}
	return a.ctx.Err()
}

func (c *simCmd) print(a *app, r sim.Result) error {
	if c.JSON {
		line := simLine{r.Seed, r.Nodes, fmt.Sprintf("%016x", r.Hash), r.Virtual.Seconds(), r.Stats, ""}
		if r.Err != nil {
			line.Error = r.Err.Error()
		}
		return json.NewEncoder(a.out).Encode(line)
	}
	s := &r.Stats
	err := terminal.Printf(a.out, "seed %d: %d nodes, %.0f s, %d entries, %d closes, %d kills, %d power losses, %d partitions, %d joins, trace %016x\n",
		r.Seed, r.Nodes, r.Virtual.Seconds(), s.Entries, s.Acked, s.Kills, s.PowerLosses, s.Partitions, s.Joins, r.Hash)
	return err
}
