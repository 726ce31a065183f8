package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/format"
	"github.com/rdmcfs/rdmcfs/internal/terminal"
)

type upgradeCmd struct {
	Finish bool `help:"Use the newest format that all nodes know. Older versions can't start any more."`
	jsonFlag
}

// Run shows what runs on each node, or ends the upgrade.
func (c *upgradeCmd) Run(a *app) error {
	st, err := a.client.Upgrade(a.ctx, admin.UpgradeRequest{Finish: c.Finish})
	if err != nil {
		return err
	}
	if c.JSON {
		return a.printJSON(st)
	}
	printUpgrade(a.out, st)
	return nil
}

// printUpgrade shows what runs on each node and what to do next.
func printUpgrade(w io.Writer, st admin.Upgrade) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	terminal.Printf(t, "NODE\tNAME\tSTATE\tVERSION\tFORMATS\n")
	for _, n := range st.Nodes {
		terminal.Printf(t, "%d\t%s\t%s\t%s\t%s\n", n.ID, n.Name, n.State, n.Version,
			format.Range{Oldest: n.OldestFormat, Newest: n.NewestFormat})
	}
	t.Flush()
	switch {
	case st.Common > st.Format:
		terminal.Printf(w, "The cluster uses format %d, and all nodes know %d: 'rdmcfs upgrade --finish' begins to use it.\n"+
			"Until then each node can go back to an older version.\n", st.Format, st.Common)
	case st.Newest > st.Format:
		terminal.Printf(w, "The cluster uses format %d. Next: install the newer version on %s.\n", st.Format,
			strings.Join(older(st), ", "))
	default:
		terminal.Printf(w, "The cluster uses format %d, the newest that its nodes know.\n", st.Format)
	}
}

// older are the nodes that hold the next format back.
func older(st admin.Upgrade) (names []string) {
	for _, n := range st.Nodes {
		if n.NewestFormat <= st.Format {
			names = append(names, n.Name)
		}
	}
	return names
}

// printPrograms shows which versions the nodes run, if that is not one, and whether an upgrade can be finished.
func printPrograms(w io.Writer, st admin.Status) {
	names, order := map[string][]string{}, []string(nil)
	common := ^uint64(0)
	for _, n := range st.Nodes {
		common = min(common, n.NewestFormat)
		text := fmt.Sprintf("%s (format %s)", n.Version, format.Range{Oldest: n.OldestFormat, Newest: n.NewestFormat})
		if names[text] == nil {
			order = append(order, text)
		}
		names[text] = append(names[text], n.Name)
	}
	if len(order) > 1 {
		for _, text := range order {
			terminal.Printf(w, "version %s: %s\n", text, strings.Join(names[text], " "))
		}
	}
	if len(st.Nodes) > 0 && common > st.Format && st.Format > 0 {
		terminal.Printf(w, "the cluster uses format %d, and all nodes know %d: see 'rdmcfs upgrade'\n", st.Format, common)
	}
}
