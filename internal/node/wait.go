package node

import (
	"context"
	"errors"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
)

// waits answers when nothing is owed any more.
type waits struct {
	ctx      context.Context // ends with the node
	db       *meta.DB
	raft     *lateRaft
	nodes    *nodeReport
	holdings *holdings
	lost     *lostLooks
	damage   *damage
}

// waitPoll is how often a wait looks at what is owed.
const waitPoll = 100 * time.Millisecond

// wait returns when nothing is owed any more, or the time is up. What was acknowledged before the call counts.
func (ws *waits) wait(ctx context.Context, req admin.WaitRequest) (admin.WaitResult, error) {
	var over <-chan time.Time
	limit := ctx
	if req.Timeout > 0 {
		timer := time.NewTimer(req.Timeout)
		defer timer.Stop()
		over = timer.C
		var cancel context.CancelFunc
		limit, cancel = context.WithTimeout(ctx, req.Timeout)
		defer cancel()
	}
	if err := ws.learn(limit); err != nil {
		return admin.WaitResult{}, err
	}
	tick := time.NewTicker(waitPoll)
	defer tick.Stop()
	for {
		owed, lost, err := ws.outstanding(req)
		if err != nil || len(owed) == 0 {
			return admin.WaitResult{Done: err == nil, Lost: lost}, err
		}
		select {
		case <-ctx.Done():
			return admin.WaitResult{}, ctx.Err()
		case <-ws.ctx.Done():
			return admin.WaitResult{}, admin.Errorf(admin.CodeUnavailable, "the node ends")
		case <-over:
			return admin.WaitResult{Nodes: owed, Lost: lost}, nil
		case <-tick.C:
		}
	}
}

// learn waits until this node knows what the log had at the call. A node that is cut off knows it when it is back.
func (ws *waits) learn(ctx context.Context) error {
	for {
		raft, err := ws.raft.get()
		if err == nil {
			_, err = raft.ReadBarrier(ctx)
		}
		switch {
		case err == nil:
			return nil
		case ws.ctx.Err() != nil:
			return admin.Errorf(admin.CodeUnavailable, "the node ends")
		case !pause(ctx, waitPoll):
			return admin.Errorf(admin.CodeUnavailable, "what is owed now is not known here: 'rdmcfs status' shows which "+
				"voters are missing (%v)", err)
		}
	}
}

// outstanding lists the nodes that a wait waits for. If the log lists nothing, this node may know of damage that the
// log does not know of. What the log has heard in the meantime is owed, or counted as lost.
func (ws *waits) outstanding(req admin.WaitRequest) (out []admin.Node, lost int, err error) {
	out, lost, err = ws.stillOwed(req)
	if err != nil || len(out) > 0 || req.Path != "" || !asked(req.Nodes, uint32(ws.damage.self)) {
		return out, lost, err
	}
	count, bytes, err := ws.damage.unreported()
	if err == nil && count == 0 {
		return ws.stillOwed(req)
	}
	nodes, lerr := ws.nodes.list(ws.raft.status())
	for _, line := range nodes {
		if line.ID == uint32(ws.damage.self) {
			out = append(out, damagedToo(line, count, bytes))
		}
	}
	return out, lost, errors.Join(err, lerr)
}

// damagedToo is the line of this node with damage of which the log does not know.
func damagedToo(line admin.Node, count int, bytes int64) admin.Node {
	line.OwedCount, line.OwedBytes = line.OwedCount+count, line.OwedBytes+bytes
	line.OwedReason = orDefault(line.OwedReason, meta.OwedLost.String())
	return line
}

// lacks is the line of a node that lacks one file, and is not owed it: this node knows of damage that the log does not
// know of, or the file rides in the log, which the node has not read that far.
func (ws *waits) lacks(line admin.Node, bytes int64) admin.Node {
	if line.ID == uint32(ws.damage.self) {
		return damagedToo(line, 1, bytes)
	}
	line.OwedCount, line.OwedBytes, line.OwedReason = 1, bytes, meta.OwedUnreachable.String()
	if line.State != "up" {
		line.OwedReason = meta.OwedDown.String()
	}
	return line
}

// stillOwed lists the nodes that a wait waits for, and counts what no node has any more.
func (ws *waits) stillOwed(req admin.WaitRequest) (out []admin.Node, lost int, err error) {
	nodes, err := ws.nodes.list(ws.raft.status())
	if err != nil {
		return nil, 0, err
	}
	nowhere, err := ws.lost.of(ws.db)
	if err != nil {
		return nil, 0, err
	}
	lacking, size := func(admin.Node) bool { return true }, int64(0)
	if req.Path != "" {
		w, err := ws.holdings.where(ws.ctx, admin.WhereRequest{Path: req.Path})
		if err != nil {
			return nil, 0, err
		}
		lacks := map[uint32]bool{}
		size = w.SizeBytes
		for _, h := range w.Holders {
			lacks[h.Node] = !h.Holds
		}
		lacking = func(line admin.Node) bool { return lacks[line.ID] }
	}
	for _, line := range nodes {
		if req.Path == "" && line.OwedCount == 0 || !asked(req.Nodes, line.ID) || !lacking(line) {
			continue
		}
		if req.Path == "" {
			if only, err := owedLostOnly(ws.db, line, nowhere); only || err != nil {
				if err != nil {
					return nil, 0, err
				}
				continue
			}
		}
		if req.Path != "" && line.OwedCount == 0 {
			line = ws.lacks(line, size)
		}
		out = append(out, line)
	}
	return out, len(nowhere), nil
}

// owedLostOnly reports whether everything that a node is owed is contents that no node has.
func owedLostOnly(db interface {
	OwedTo(meta.NodeID, uint64, int) ([]meta.Owed, error)
}, line admin.Node, nowhere []meta.Content) (bool, error) {
	if line.OwedCount > len(nowhere) {
		return false, nil
	}
	lost := make(map[meta.ContentID]bool, len(nowhere))
	for _, c := range nowhere {
		lost[c.ID] = true
	}
	owed, err := db.OwedTo(meta.NodeID(line.ID), 0, len(nowhere)+1)
	for _, o := range owed {
		if !lost[o.Content] {
			return false, err
		}
	}
	return err == nil, err
}

func asked(nodes []uint32, id uint32) bool {
	for _, n := range nodes {
		if n == id {
			return true
		}
	}
	return len(nodes) == 0
}
