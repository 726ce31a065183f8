package node

import (
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// transfers describes what this node pushes to others.
type transfers struct {
	self    meta.NodeID
	members *members
	paths   *paths
	repl    *replicate.Replicator
}

// list are the sessions that this node pushes now.
func (ts *transfers) list() []admin.Transfer {
	var out []admin.Transfer
	for _, t := range ts.repl.Transfers() {
		out = append(out, ts.line(t))
	}
	return out
}

// line is what status and watch show of a transfer.
func (ts *transfers) line(t replicate.TransferStatus) admin.Transfer {
	line := admin.Transfer{
		Session: t.Content.String(), Path: t.Path, SizeBytes: t.Stream, Writer: uint32(ts.self), Epoch: t.Epoch,
		CatchUp: t.CatchUp, Started: t.Began, Phase: string(t.Phase), Ended: t.Ended, Outcome: string(t.Ending),
		Reason: t.Text,
		Choice: shownChoice(t.Choice),
	}
	if t.Ending != "" {
		line.Phase = ""
	}
	if p, err := ts.paths.of(t.Ino); err == nil && t.Path == "" {
		line.Path = p
	}
	names := ts.members.book().nodes
	for _, m := range t.Members {
		line.Members = append(line.Members, admin.TransferMember{
			Node: uint32(m.Node), Name: names[m.Node].Name, Bytes: m.Bytes, BytesPerSec: int64(m.Rate),
			State: memberWords[m.State], Reason: m.Text, Behind: m.Behind,
		})
	}
	return line
}

// shownChoice is how the blocks of a transfer go, nil if that was not chosen yet.
func shownChoice(c schedule.Choice) *admin.Choice {
	if c.Algorithm == 0 {
		return nil
	}
	if c.Calls {
		return &admin.Choice{Algorithm: "calls", Reasons: c.Reasons}
	}
	return &admin.Choice{Algorithm: c.Algorithm.String(), BlockBytes: c.BlockSize, Window: c.Window, Reasons: c.Reasons}
}

// memberWords are the states of a member of a transfer in the words of status.
var memberWords = map[string]string{
	"asked": "waiting", "receiving": "receiving", "checking": "syncing", "stored": "stored", "out": "ejected",
}
