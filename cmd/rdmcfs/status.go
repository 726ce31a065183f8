package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/terminal"
	"github.com/rdmcfs/rdmcfs/internal/units"
)

type statusCmd struct{ jsonFlag }

// Run shows the state of the node and the cluster.
func (c *statusCmd) Run(a *app) error {
	st, err := a.status()
	if err != nil {
		return err
	}
	if c.JSON {
		return a.printJSON(st)
	}
	printStatus(a.out, st, time.Now())
	return nil
}

// printStatus is status for people: what is wrong first, then nodes, then what moves.
func printStatus(w io.Writer, st admin.Status, now time.Time) {
	for _, warning := range st.Warnings {
		terminal.Printf(w, "! %s\n", warning)
	}
	terminal.Printf(w, "cluster %s, %s, %s, %s\n", st.Cluster, countText(len(st.Nodes), "node"), filesText(st.Files),
		units.Bytes(int64(st.Bytes)))
	terminal.Printf(w, "leader %s, voters %s; %s\n", nodeText(st, st.Leader), voterText(st), changesText(st))
	terminal.Printf(w, "this is %s, %s; log index %d, namespace digest %s at %d\n", nodeText(st, st.Node), st.State,
		st.AppliedIndex, st.Digest, st.DigestIndex)
	printNodes(w, st, now)
	for _, n := range st.Nodes {
		if n.BehindReason != "" {
			terminal.Printf(w, "%s is behind: it %s\n", nodeText(st, n.ID), n.BehindReason)
		}
	}
	printPrograms(w, st)
	printTransfers(w, st)
	for _, u := range st.Unpublished {
		terminal.Printf(w, "unpublished: %s, %s, id %s: %s\n", u.Path, units.Bytes(u.SizeBytes), u.ID, u.Reason)
	}
	for _, u := range st.Unresolved {
		terminal.Printf(w, "outcome unknown since %s: %s\n", sinceText(u.Since, now), u.What)
	}
	printLocal(w, st)
}

// filesText counts inodes, without the root, which is there though nobody has made it.
func filesText(inodes uint64) string {
	return fmt.Sprintf("%d files and directories", max(inodes, 1)-1)
}

// changesText says whether the mounts of this node can change something.
func changesText(st admin.Status) string {
	switch {
	case st.State == "rebuilding":
		return "nothing is served here until the state is rebuilt"
	case !st.Quorum:
		return "NO QUORUM: changes fail until more voters are back; reads go on"
	case st.ChangesRefused != "":
		return "changes fail here: " + st.ChangesRefused
	case st.Leader == 0:
		return "changes wait until there is a leader"
	}
	return "changes are possible"
}

func printNodes(w io.Writer, st admin.Status, now time.Time) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	terminal.Printf(t, "NODE\tNAME\tADDRESS\tSTATE\tSEEN\tBEHIND\tOWED\n")
	for _, n := range st.Nodes {
		state := stateText(n) + drainText(n)
		seen := "-"
		switch {
		case n.ID == st.Node:
			seen = "here"
		case !n.LastSeen.IsZero():
			seen = sinceText(n.LastSeen, now)
		}
		terminal.Printf(t, "%d\t%s\t%s\t%s\t%s\t%s\t%s\n", n.ID, n.Name, n.Addr, state, seen, behindText(n),
			owedText(n))
	}
	t.Flush()
}

// stateText is a node's state, with the reason.
func stateText(n admin.Node) string {
	if n.Reason == "" {
		return n.State
	}
	return n.State + " (" + n.Reason + ")"
}

// drainText says what still depends on a node that is draining.
func drainText(n admin.Node) string {
	switch {
	case !n.Draining:
		return ""
	case n.NeededCount == 0:
		return ", drained"
	}
	return fmt.Sprintf(", draining: %s, %s", countText(n.NeededCount, "content"), units.Bytes(n.NeededBytes))
}

func behindText(n admin.Node) string {
	switch {
	case n.Unheard:
		return "?"
	case n.BehindIndex == 0:
		return "-"
	case n.BehindIndex == 1:
		return "1 entry"
	}
	return strconv.FormatUint(n.BehindIndex, 10) + " entries"
}

// owedText says what a node is owed and why.
func owedText(n admin.Node) string {
	if n.OwedCount == 0 {
		return "-"
	}
	text := fmt.Sprintf("%s, %s", countText(n.OwedCount, "content"), units.Bytes(n.OwedBytes))
	if n.OwedReason != "" {
		text += " (" + n.OwedReason + ")"
	}
	return text
}

func printTransfers(w io.Writer, st admin.Status) {
	for _, tr := range st.Transfers {
		what := "from"
		if tr.CatchUp {
			what = "catching up, from"
		}
		terminal.Printf(w, "transfer %s, %s, %s %s\n", tr.Path, units.Bytes(tr.SizeBytes), what, nodeText(st, tr.Writer))
		for _, m := range tr.Members {
			terminal.Printf(w, "  %s\n", memberLine(tr, m, barWidth))
		}
	}
}

func printLocal(w io.Writer, st admin.Status) {
	for _, m := range st.Mounts {
		how := "passthrough"
		if !m.Passthrough {
			how = "through the daemon"
		}
		terminal.Printf(w, "mount %s: %s, %s\n", m.Dir, m.State, how)
	}
	if !st.Passthrough.On && st.Passthrough.Why != "" && len(st.Mounts) > 0 {
		terminal.Printf(w, "passthrough is off: %s; %s\n", st.Passthrough.Why, st.Passthrough.Cost)
	}
	fabric := st.Fabric
	if st.ControlRings > 0 {
		fabric += fmt.Sprintf(", %d connections of control over RDMA", st.ControlRings)
	}
	terminal.Printf(w, "fabric %s; disk %s free of %s (%s)\n", fabric, units.Bytes(int64(st.Space.FreeBytes)),
		units.Bytes(int64(st.Space.TotalBytes)), st.Space.State)
}

// nodeText is a node's name, or its number.
func nodeText(st admin.Status, id uint32) string {
	if id == 0 {
		return "none"
	}
	for _, n := range st.Nodes {
		if n.ID == id && n.Name != "" {
			return n.Name
		}
	}
	return "node " + strconv.FormatUint(uint64(id), 10)
}

func voterText(st admin.Status) string {
	names := make([]string, len(st.Voters))
	for i, id := range st.Voters {
		names[i] = nodeText(st, id)
	}
	return strings.Join(names, " ")
}
