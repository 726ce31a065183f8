package node

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
)

// wall is what the machine's clock shows.
func (n *node) wall() time.Time { return n.cfg.Host.wall() }

// clockSynced reports whether the kernel says that a time service keeps its clock. A clock that was set by hand since
// does not count.
func clockSynced() bool {
	var state unix.Timex
	got, err := unix.Adjtimex(&state)
	return err == nil && got != unix.TIME_ERROR && state.Status&unix.STA_UNSYNC == 0
}

// now is the cluster's time as this node knows it: tokens and certificates go by it. Before the log is open it is the
// machine's.
func (n *node) now() time.Time {
	if raft := n.raft.node.Load(); raft != nil {
		return raft.Now()
	}
	return n.wall()
}

// renewalTime is the time by which this node's certificate is renewed. While the cluster's time is not known it is the
// later of the log's and the machine's: one renewal too many does no harm.
func (n *node) renewalTime() time.Time {
	now, wall := n.tokenTime(), n.wall()
	if raft := n.raft.node.Load(); raft != nil && !raft.Clocks().Known && wall.After(now) {
		return wall
	}
	return now
}

// lost reports whether no voter has let this node in since it started, or no voter answers it now. The voters may think
// that its certificate has expired: their time is not always this node's, as when clocks that were wrong were set
// right.
func (n *node) lost() bool { return n.proposer.lease().Incarnation == 0 || n.raft.status().NoQuorum }

// tokenTime is the time from which a token and a certificate count: the log decides about a token, and its time may
// be ahead. A certificate that is signed by the later of both has not ended for a node that goes by the other, as
// some do when all clocks were wrong.
func (n *node) tokenTime() time.Time {
	now := n.now()
	if log := time.Unix(0, n.db.Time()); log.After(now) {
		return log
	}
	return now
}

// clockStatus is what this node knows of the clocks.
func (n *node) clockStatus() consensus.ClockStatus {
	if raft := n.raft.node.Load(); raft != nil {
		return raft.Clocks()
	}
	return consensus.ClockStatus{}
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
