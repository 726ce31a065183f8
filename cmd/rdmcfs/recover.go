package main

import (
	"fmt"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/exitcode"
	"github.com/rdmcfs/rdmcfs/internal/node"
	"github.com/rdmcfs/rdmcfs/internal/terminal"
	"github.com/rdmcfs/rdmcfs/internal/units"
)

type recoverCmd struct {
	Begin      bool   `help:"Go on with what this node has: it votes alone, in a new generation of the cluster."`
	Force      bool   `help:"With --begin: also while a majority of the voters is there."`
	Follow     string `help:"Take the state of the node that has begun a generation." placeholder:"NODE"`
	Generation uint32 `help:"With --follow: the number that --begin has printed." placeholder:"N"`
	jsonFlag
}

// Run shows what a stopped node has, or makes it go on after most voters were lost for good.
func (c *recoverCmd) Run(a *app) error {
	switch {
	case (c.Follow == "") != (c.Generation == 0) || c.Begin && c.Follow != "" || c.Force && !c.Begin:
		return withCode(exitcode.Usage, "want --begin, or --follow NODE with --generation N, or none of them")
	case !c.Begin && c.Follow == "":
		return c.show(a)
	}
	left := admin.Remaining{Name: "this node"} // if its state is that of a recovery that was cut short
	if c.Begin {
		if known, err := nodeRemaining(a.data); err == nil {
			left = known
		}
	}
	generation, err := nodeRecover(a.ctx, node.RecoverConfig{DataDir: a.data, Generation: c.Generation, Lead: c.Follow,
		Force: c.Force})
	if err != nil {
		return err
	}
	if c.JSON {
		return a.printJSON(map[string]uint32{"generation": generation})
	}
	if c.Follow != "" {
		terminal.Printf(a.out, "This node follows in generation %d. Start it: it takes the state of %s.\n", generation,
			c.Follow)
		return nil
	}
	terminal.Printf(a.out, "Generation %d begins with %s. Start it. On each other node that is left, while its daemon "+
		"does not run:\n  rdmcfs recover --follow %s --generation %d\nThen evict the nodes that are lost.\n",
		generation, left.Name, c.followed(left), generation)
	return nil
}

func (c *recoverCmd) followed(left admin.Remaining) string {
	if left.Node == 0 {
		return "NODE"
	}
	return fmt.Sprint(left.Node)
}

func (c *recoverCmd) show(a *app) error {
	left, err := nodeRemaining(a.data)
	if err != nil {
		return err
	}
	if c.JSON {
		return a.printJSON(left)
	}
	printRemaining(a, left)
	return nil
}

func printRemaining(a *app, left admin.Remaining) {
	terminal.Printf(a.out, "node %d (%s), generation %d: %s, %s\n", left.Node, left.Name, left.Generation,
		filesText(left.Files), units.Bytes(int64(left.Bytes)))
	term := "no voter" // all that it has was decided, but it does not know in what term
	if left.Votes {
		term = fmt.Sprintf("voter, term %d", left.Term)
	}
	terminal.Printf(a.out, "last change that it knows: %s, index %d, %s\n", term, left.Index, timeText(left.Time))
	for _, n := range left.Nodes {
		votes := ""
		if n.Voter {
			votes = ", voter"
		}
		terminal.Printf(a.out, "  it knows node %d (%s) at %s%s\n", n.ID, n.Name, n.Addr, votes)
	}
	if !left.Signs {
		terminal.Println(a.out, "It does not have the signing key: if no node that is left has it, no machine can join any "+
			"more, and the nodes refuse each other when their certificates end, after 30 days at most.")
	}
	terminal.Printf(a.out, "Nothing was changed. Only if a majority of the voters is lost for good: run this on each "+
		"node that is left.\nChoose the voter with the highest term, and of those the highest index. A node "+
		"that is no voter goes before it if its last change is later.\nThere, run 'rdmcfs recover --begin'. "+
		"What only others knew is lost.\n")
}

func timeText(t time.Time) string {
	if t.IsZero() {
		return "at no time"
	}
	return t.Local().Format(time.DateTime + ".000000")
}

// nodeRemaining returns what the node of a data directory has while it does not run.
var nodeRemaining = func(data string) (admin.Remaining, error) { return node.Remaining(data, node.Host{}) }

// nodeRecover makes it go on.
var nodeRecover = node.Recover
