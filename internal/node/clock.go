package node

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
)

// clock is the cluster's time as this node knows it.
type clock struct {
	wall func() time.Time // the machine's clock
	raft *lateRaft
}

// now is the cluster's time as this node knows it: tokens and certificates go by it. Before the log is open it is the
// machine's.
func (c *clock) now() time.Time {
	if raft := c.raft.node.Load(); raft != nil {
		return raft.Now()
	}
	return c.wall()
}

// status is what this node knows of the clocks.
func (c *clock) status() consensus.ClockStatus {
	if raft := c.raft.node.Load(); raft != nil {
		return raft.Clocks()
	}
	return consensus.ClockStatus{}
}

// clockSynced reports whether the kernel says that a time service keeps its clock. A clock that was set by hand since
// does not count.
func clockSynced() bool {
	var state unix.Timex
	got, err := unix.Adjtimex(&state)
	return err == nil && got != unix.TIME_ERROR && state.Status&unix.STA_UNSYNC == 0
}

// clockWarnings says which clocks are to be set. If no majority agrees on the time, nobody can tell which clock is
// right.
func clockWarnings(st admin.Status, clocks consensus.ClockStatus) []string {
	var out []string
	for _, node := range st.Nodes {
		if node.ClockAhead != 0 {
			out = append(out, fmt.Sprintf("the clock of %s is %s: set it; the cluster goes by the others' meanwhile",
				nameOf(st, meta.NodeID(node.ID)),
				aheadText(node.ClockAhead)))
		}
	}
	if !clocks.Sure && clocks.Apart > consensus.ClockAgree && clocks.First != clocks.Last {
		out = append(out, fmt.Sprintf("the clock of %s is %v behind that of %s: set the wrong one",
			nameOf(st, nodeOf(clocks.First)),
			clocks.Apart.Round(time.Second), nameOf(st, nodeOf(clocks.Last))))
	}
	if clocks.Unconfirmed != 0 {
		out = append(out,
			fmt.Sprintf("the clock of this machine is %s the last time in the log, and no other clock and no time service "+
				"confirms it: kept versions, tokens "+
				"and certificates go by the log's time for another %v. If the clock is right, nothing is to be done; else set it",
				apartText(clocks.Unconfirmed), clocks.ConfirmedIn.Round(time.Second)))
	}
	return out
}

// apartText goes on with what the clock is compared to.
func apartText(by time.Duration) string {
	if by < 0 {
		return aheadText(by)
	}
	return aheadText(by) + " of"
}

func aheadText(by time.Duration) string {
	if by < 0 {
		return fmt.Sprintf("%v behind", -by.Round(time.Second))
	}
	return fmt.Sprintf("%v ahead", by.Round(time.Second))
}

// nameOf is a node's name, or its number.
func nameOf(st admin.Status, id meta.NodeID) string {
	for _, n := range st.Nodes {
		if n.ID == uint32(id) && n.Name != "" {
			return n.Name
		}
	}
	return fmt.Sprintf("node %d", id)
}
