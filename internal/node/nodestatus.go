package node

import (
	"fmt"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/internal/control"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/units"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
)

// nodeReport describes the nodes of the cluster, as this one knows them.
type nodeReport struct {
	self   meta.NodeID
	db     *meta.DB
	peers  *control.Peers
	repl   *replicate.Replicator
	clock  *clock
	room   func(meta.NodeID) (replicate.NoRoom, bool)
	drains drainLooks
}

// list is a line per member.
func (r *nodeReport) list(log consensus.Status) ([]admin.Node, error) {
	clocks := r.clock.status()
	records, err := r.db.Nodes()
	if err != nil {
		return nil, err
	}
	out := make([]admin.Node, 0, len(records))
	for _, rec := range records {
		line := admin.Node{
			ID: uint32(rec.ID), Name: rec.Name, Addr: rec.Addr, Labels: rec.Labels, State: stateWords[rec.State],
			Reason: rec.Reason,
			Voter:  rec.Voter, Incarnation: rec.Incarnation, Connected: rec.ID == r.self || r.peers.Connected(uint32(rec.ID)),
			ClockAhead: clocks.Off[raftID(rec.ID, rec.Store)],
			Version:    rec.Program.Version,
		}
		line.NoRoom = r.noRoom(rec.ID)
		known := rec.Program.Formats.Said()
		line.OldestFormat, line.NewestFormat = known.Oldest, known.Newest
		if line.OwedCount, line.OwedBytes, err = r.db.OwedCount(rec.ID); err != nil {
			return nil, err
		}
		if line.OwedCount > 0 {
			line.OwedReason = r.owedReason(rec, meta.Content{})
		}
		p, ok := progressKnown(log, raftID(rec.ID, rec.Store), time.Now())
		if line.Unheard = !ok; ok {
			line.LastSeen = p.LastSeen
			if log.Commit > p.Visible {
				line.BehindIndex, line.BehindReason = log.Commit-p.Visible, r.repl.WhyBehind(rec.ID, p.Visible)
			}
		} else if unheard(log, rec) {
			line.BehindReason = r.repl.WhyBehind(rec.ID, 0)
		}
		if line.Draining = rec.DrainIndex != 0; line.Draining {
			d, err := r.drains.of(r.db, rec.ID)
			if err != nil {
				return nil, err
			}
			line.NeededCount, line.NeededBytes = d.Contents, d.Bytes
		}
		out = append(out, line)
	}
	return out, nil
}

// progressKnown returns how far a node is, if this one can know. The leader hears of all nodes. On another node only
// the reports that pass through it count: what it heard before reports took another way, or before another node led, is
// out of date.
func progressKnown(log consensus.Status, id consensus.ID, now time.Time) (consensus.Progress, bool) {
	p, ok := log.Progress[id]
	if id != log.ID && log.Leader != log.ID && now.Sub(p.LastSeen) > leaseTime {
		return consensus.Progress{}, false
	}
	return p, ok
}

// unheard reports whether this node leads and a node that is up has not reported to it: that node may be behind in
// anything.
func unheard(log consensus.Status, rec meta.Node) bool {
	_, heard := log.Progress[raftID(rec.ID, rec.Store)]
	return log.Leader != 0 && log.Leader == log.ID && rec.State == meta.NodeUp && !heard
}

var stateWords = map[meta.NodeState]string{
	meta.NodeJoined: "joined", meta.NodeUp: "up", meta.NodeDown: "down", meta.NodeEvicted: "evicted",
}

// noRoom says what a node has refused of late for lack of space; "" if nothing, as far as is known here.
func (r *nodeReport) noRoom(id meta.NodeID) string {
	n, ok := r.room(id)
	switch {
	case !ok:
		return ""
	case n.FreeBytes == 0:
		return "it refused a content of " + units.Bytes(n.NeedBytes) + " for lack of space, and takes none"
	}
	return fmt.Sprintf("it refused a content of %s for lack of space, and takes %s at most", units.Bytes(n.NeedBytes),
		units.Bytes(n.FreeBytes))
}

// owedReason is why a content is owed, or the oldest where none is named; "" if it is not owed.
func (r *nodeReport) owedReason(rec meta.Node, c meta.Content) string {
	if rec.State == meta.NodeDown {
		return meta.OwedDown.String()
	}
	owed, err := r.db.OwedTo(rec.ID, max(c.Published, 1)-1, 1)
	if err != nil || len(owed) == 0 || !c.ID.IsZero() && owed[0].Content != c.ID {
		return ""
	}
	reason := owedWords(owed[0])
	if owed[0].Reason == meta.OwedSlow {
		if why := r.repl.WhySlow(rec.ID, owed[0].Content); why != "" {
			reason += ": " + why
		}
	}
	if full := r.noRoom(rec.ID); full != "" {
		reason += ": " + full
	}
	return reason
}

// owedWords is the reason in words. A node that is to have a content since the members have changed may have been up
// all the time.
func owedWords(o meta.Owed) string {
	if o.Unplaced && o.Reason == meta.OwedJoined {
		return "takes over from another node"
	}
	return o.Reason.String()
}
