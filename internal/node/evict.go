package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"syscall"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/internal/control"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/credentials"
	"github.com/rdmcfs/rdmcfs/meta"
)

// evictions remove nodes from the cluster, and care for what must not go with them.
type evictions struct {
	self      meta.NodeID
	db        *meta.DB
	members   *members
	raft      *lateRaft
	anonymous anonymous
	losses    *losses
	key       *keyFetch
	drop      func(node uint32) // ends the connections with a node
	log       *slog.Logger
}

// evictPatience is how long an eviction waits until the others are a quorum without the node.
const evictPatience = 20 * time.Second

// replacePatience is the same for a join that replaces a node: the machine that asks waits for the answer.
const replacePatience = 5 * time.Second

// evictTries is how often the log is asked to evict a node while copies and members change meanwhile.
const evictTries = 100

// evict removes a node for good. A node that has what no other node has goes only if the request accepts that loss.
func (e *evictions) evict(ctx context.Context, req admin.EvictRequest) (admin.EvictResult, error) {
	if req.Node == uint32(e.self) {
		return admin.EvictResult{}, admin.Errorf(admin.CodeInvalid,
			"a node can't evict itself: run the command on another one")
	}
	id := meta.NodeID(req.Node)
	name := e.members.name(id)
	if !req.Lose && !othersTake(id, e.members.book().nodes) {
		return admin.EvictResult{}, admin.Errorf(admin.CodeNeeded,
			"%s is not evicted: all nodes that would be left are draining and take no files; "+
				"end that with 'rdmcfs drain NODE --undo' first", name)
	}
	l, err := atRest(ctx, func() (loss, error) { return e.losses.of(ctx, id) })
	if err != nil {
		return admin.EvictResult{}, err
	}
	if !req.Lose && !l.nothing() {
		return admin.EvictResult{}, e.refused(name, l)
	}
	if req.Lose {
		err = e.evictLosing(ctx, req, name)
	} else {
		err = e.evictSpare(ctx, req, name, l)
	}
	if err != nil {
		return admin.EvictResult{}, err
	}
	e.drop(req.Node)
	out := admin.EvictResult{Lost: l.Contents, Unpublished: l.strays.Count, Notice: e.losses.text(name, l)}
	if unmet, err := unmetPolicies(e.db, e.members); err != nil {
		e.log.Warn("policies after an eviction", "err", err)
	} else if len(unmet) > 0 {
		out.Notice = strings.TrimPrefix(out.Notice+"; "+strings.Join(unmet, "; "), "; ")
	}
	return out, nil
}

// evictLosing makes the log evict a node with all that it alone has. The log asks for another look if the node's vote
// is needed after all: others are evicted at the same time.
func (e *evictions) evictLosing(ctx context.Context, req admin.EvictRequest, name string) error {
	for range evictTries {
		if err := e.spareVoter(ctx, meta.NodeID(req.Node)); err != nil {
			return err
		}
		res, err := e.anonymous.propose(ctx, &meta.Evict{Node: meta.NodeID(req.Node), Reason: req.Reason})
		if err != nil {
			return adminError("evict", err)
		}
		if res.Errno != syscall.EAGAIN {
			return evictErrno(req.Node, res.Errno)
		}
		if !pause(ctx, dutyInterval) {
			return ctx.Err()
		}
	}
	return admin.Errorf(admin.CodeUnavailable, "%s is not evicted: voters of the cluster come and go; try again", name)
}

// evictSpare makes the log evict a node that nothing depends on. The log refuses if something came since, and asks for
// another look if the members or their copies changed.
func (e *evictions) evictSpare(ctx context.Context, req admin.EvictRequest, name string, l loss) error {
	id, d := meta.NodeID(req.Node), l.Depending
	for range evictTries {
		from := d
		if from.View != e.db.View() {
			from = meta.Depending{} // begin again
		}
		look, err := e.db.OnlyOn(id, from.Checked, lossesListed)
		if err != nil {
			return err
		}
		if from.Checked > 0 && look.View != from.View {
			d = meta.Depending{} // what was looked at before belongs to another view
			continue
		}
		if look.Contents > 0 {
			l.Depending = look
			return e.refused(name, l)
		}
		d = look
		if err := e.spareVoter(ctx, id); err != nil {
			return err
		}
		res, err := e.anonymous.propose(ctx, &meta.EvictSpare{Node: id, Reason: req.Reason, View: d.View, Checked: d.Checked})
		if err != nil {
			return adminError("evict", err)
		}
		if res.Errno != syscall.EAGAIN && res.Errno != syscall.EBUSY {
			return evictErrno(req.Node, res.Errno)
		}
		d = meta.Depending{}
		if !pause(ctx, dutyInterval) {
			return ctx.Err()
		}
	}
	return admin.Errorf(admin.CodeUnavailable,
		"%s is not evicted: members of the cluster come and go, or lose copies; try again", name)
}

// othersTake reports whether a node is left that takes new files when one goes.
func othersTake(leaver meta.NodeID, nodes map[meta.NodeID]meta.Node) bool {
	for id, n := range nodes {
		if id != leaver && n.DrainIndex == 0 && n.State != meta.NodeJoined && n.State != meta.NodeEvicted {
			return true
		}
	}
	return false
}

func evictErrno(node uint32, errno syscall.Errno) error {
	switch errno {
	case 0:
		return nil
	case syscall.ENOENT:
		return admin.Errorf(admin.CodeNotFound, "there is no node %d", node)
	}
	return fmt.Errorf("evict node %d: %w", node, errno)
}

// refused says what would be lost and what to do.
func (e *evictions) refused(name string, l loss) error {
	return admin.Errorf(admin.CodeNeeded,
		"%s is not evicted: %s. 'rdmcfs drain %s' has the others fetch copies; unpublished files are published or dropped "+
			"on %s with 'rdmcfs restore'; 'rdmcfs evict %s --lose' gives them up", name, e.losses.text(name, l), name, name,
		name)
}

// spareVoter waits until the cluster can do without a node's vote and its signing key: an evicted node ends at once,
// and voters that are no quorum then could never be changed again.
func (e *evictions) spareVoter(ctx context.Context, leaver meta.NodeID) error {
	ctx, cancel := context.WithTimeout(ctx, evictPatience)
	defer cancel()
	for {
		st := e.raft.status()
		step, why := votersWithout(leaver, e.self, st.Voters, e.members.book()),
			"without node %d the voters that are up are no quorum, or they are being changed"
		switch {
		case st.NoQuorum:
			return nil // the log refuses the eviction itself
		case !step.safe || st.Joint:
		case e.keyStays(ctx, leaver, st):
			return nil
		default:
			why = "no other voter is known to have got the signing key of node %d yet"
		}
		if !st.Joint && step.change {
			if err := e.handOver(ctx, step.add, leaver); err != nil && !errors.Is(err, consensus.ErrConfChange) {
				e.log.Info("voters change before an eviction", "node", leaver, "err", err)
			}
		}
		if !pause(ctx, dutyInterval) {
			return admin.Errorf(admin.CodeUnavailable, why+": not evicted; see 'rdmcfs status', try again when all are up",
				leaver)
		}
	}
}

// keyStays reports whether the signing key stays when a node leaves that may be the only one to have it: without the
// key no machine can join any more. The key stays if this node stays and has it, if a voter that is up has it, or if
// the leaver has none or is not up. If this node votes, it gets the key from one of them.
func (e *evictions) keyStays(ctx context.Context, leaver meta.NodeID, st consensus.Status) bool {
	b := e.members.book()
	if leaver != e.self && e.key.key.authority.Load() != nil || b.nodes[leaver].State != meta.NodeUp {
		return true
	}
	ask := func(node meta.NodeID) error {
		ctx, cancel := context.WithTimeout(ctx, signingCheck)
		defer cancel()
		return e.key.from(ctx, node) // refused until the log has it that this node votes
	}
	for _, voter := range numbers(st.Voters) {
		if voter == leaver || voter == e.self || b.nodes[voter].State != meta.NodeUp {
			continue
		}
		if err := ask(voter); err == nil || errors.Is(err, control.ErrNotYours) {
			return true
		}
	}
	err := ask(leaver)
	return err == nil || errors.Is(err, credentials.ErrNoAuthority)
}

// leaveStep is what has to be done about the voters before one leaves.
type leaveStep struct {
	safe   bool          // nothing has to be done
	change bool          // the leaver gives up its vote, while it is there to agree
	add    []meta.NodeID // nodes that take the vote over
}

// votersWithout judges the voters for the case that one leaves. While others of them are gone the policy's change
// comes first. A node that was replaced is up, and the store that votes under its number is gone.
func votersWithout(leaver, self meta.NodeID, voters []consensus.ID, b *book) leaveStep {
	up, votes := 0, false
	for _, v := range voters {
		node := nodeOf(v)
		votes = votes || node == leaver
		if node != leaver && b.raft[node] == v && b.nodes[node].State == meta.NodeUp {
			up++
		}
	}
	switch {
	case !votes || up > len(voters)/2:
		return leaveStep{safe: true}
	case up < len(voters)-1:
		return leaveStep{}
	case up == 0:
		return leaveStep{change: true, add: []meta.NodeID{self}}
	}
	return leaveStep{change: true}
}

// spareReplaced waits a while until the cluster can do without the vote of a node that is to be replaced, and without
// its signing key if that is this node: the store that votes ends with the join.
func (e *evictions) spareReplaced(ctx context.Context, name string) error {
	for deadline := time.Now().Add(replacePatience); ; {
		st, b := e.raft.status(), e.members.book()
		rec, known := b.named(name)
		if !known || rec.Store == [16]byte{} || st.NoQuorum {
			return nil // it has no store, or the log refuses the join itself
		}
		refused := joinRefused(syscall.EAGAIN)
		if !st.Joint && votersWithout(rec.ID, e.self, st.Voters, b).safe {
			if e.keyStays(ctx, rec.ID, st) {
				return nil
			}
			refused = fmt.Errorf("node: join: no other voter is known to have got the signing key of that node yet: %w; "+
				"try again when the others are up: the token has not been used", control.ErrUnavailable)
		}
		if time.Now().After(deadline) || !pause(ctx, dutyInterval) {
			return refused
		}
	}
}

func (e *evictions) handOver(ctx context.Context, add []meta.NodeID, leaver meta.NodeID) error {
	raft, err := e.raft.get()
	if err != nil {
		return err
	}
	ids := e.members.book().raft
	var more []consensus.ID
	for _, id := range add {
		more = append(more, ids[id])
	}
	return raft.ChangeVoters(ctx, more, []consensus.ID{ids[leaver]})
}
