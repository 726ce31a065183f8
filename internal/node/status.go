package node

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// status is what this node knows of itself and the cluster.
func (n *node) status(context.Context) (admin.Status, error) {
	log := n.raft.status()
	index, digest := n.db.Digest()
	files, bytes := n.db.StatFS()
	lease := n.proposer.lease()
	st := admin.Status{
		Version: n.cfg.Version, Cluster: n.id.Cluster, Generation: n.id.Generation,
		Node: uint32(n.id.Node), Name: n.id.Name, Listen: n.id.Listen, State: n.state(log),
		Incarnation: lease.Incarnation, Started: n.started,
		Leader: uint32(nodeOf(log.Leader)), Quorum: !log.NoQuorum, ChangesRefused: cluster{n}.changesRefused(log),
		AppliedIndex: n.db.Index(), CommitIndex: log.Commit, Digest: fmt.Sprintf("%x", digest), DigestIndex: index,
		Files: files, Bytes: bytes, RemovedKept: meta.Removals{DB: n.db}.Count(), RemovedMost: meta.RemovedMax,
		Transfers: n.transfers(), Unpublished: n.unpublished(), Unresolved: n.proposer.unresolved(),
		Mounts: n.mounts.list(), Passthrough: n.mounts.passthrough(), Fabric: n.device.String(), ControlRings: n.overRings(),
		Space: n.space(),
	}
	for _, v := range numbers(log.Voters) {
		st.Voters = append(st.Voters, uint32(v))
	}
	nodes, err := n.nodeStatus(log)
	if err != nil && !errors.Is(err, meta.ErrDamaged) {
		return st, err
	}
	st.Nodes, st.Damaged = nodes, n.damageKnown()
	st.Warnings = append(n.warnings(st), clockWarnings(st, n.clockStatus())...)
	unmet, err := n.policed.of(n.db, n.members)
	if err != nil && !errors.Is(err, meta.ErrDamaged) {
		return st, err
	}
	st.Warnings = append(st.Warnings, unmet...)
	return st, nil
}

// stateServing is the state of a node of which all is well.
const stateServing = "serving"

func (n *node) state(log consensus.Status) string {
	switch {
	case n.ctx.Err() != nil:
		return "stopping"
	case n.isRebuilding():
		return stateRebuilding
	case !n.ready.Load():
		return "starting"
	case log.NoQuorum || n.proposer.lease().Incarnation == 0:
		return "cut-off"
	}
	return stateServing
}

// changesRefused is why this node's mounts can change nothing though there is a quorum.
func (c cluster) changesRefused(log consensus.Status) string {
	if log.NoQuorum {
		return ""
	}
	if err := c.unsound(); err != nil {
		return err.Error()
	}
	switch {
	case !c.n.db.SpaceFor(&meta.Unlink{}):
		return "the disk of the data directory is full"
	case c.n.db.SpaceLow():
		return "the disk of the data directory is nearly full; files can still be removed"
	case log.ReadOnly != "" && log.Leader == log.ID:
		return log.ReadOnly
	case leaderReadOnly(log, time.Now()):
		return c.n.nodeName(nodeOf(log.Leader)) + ", which leads, can't write its log: its disk is full or broken"
	}
	if c.n.proposer.lease().Incarnation == 0 {
		return notLetIn
	}
	return ""
}

// leaderReadOnly reports whether the leader, another node, has said of late that it can't write its log.
func leaderReadOnly(log consensus.Status, now time.Time) bool {
	p := log.Progress[log.Leader]
	return p.ReadOnly && now.Sub(p.LastSeen) <= leaseTime
}

const notLetIn = "the cluster has not let this node in"

// nodeStatus is a line per member.
func (n *node) nodeStatus(log consensus.Status) ([]admin.Node, error) {
	clocks := n.clockStatus()
	records, err := n.db.Nodes()
	if err != nil {
		return nil, err
	}
	out := make([]admin.Node, 0, len(records))
	for _, rec := range records {
		line := admin.Node{
			ID: uint32(rec.ID), Name: rec.Name, Addr: rec.Addr, Labels: rec.Labels, State: stateWords[rec.State],
			Reason: rec.Reason,
			Voter:  rec.Voter, Incarnation: rec.Incarnation, Connected: rec.ID == n.id.Node || n.peers.Connected(uint32(rec.ID)),
			ClockAhead: clocks.Off[raftID(rec.ID, rec.Store)],
		}
		if line.OwedCount, line.OwedBytes, err = n.db.OwedCount(rec.ID); err != nil {
			return nil, err
		}
		if line.OwedCount > 0 {
			line.OwedReason = n.owedReason(rec, meta.Content{})
		}
		p, ok := progressKnown(log, raftID(rec.ID, rec.Store), time.Now())
		if line.Unheard = !ok; ok {
			line.LastSeen = p.LastSeen
			if log.Commit > p.Visible {
				line.BehindIndex, line.BehindReason = log.Commit-p.Visible, n.repl.WhyBehind(rec.ID, p.Visible)
			}
		} else if unheard(log, rec) {
			line.BehindReason = n.repl.WhyBehind(rec.ID, 0)
		}
		if line.Draining = rec.DrainIndex != 0; line.Draining {
			d, err := n.drains.of(n.db, rec.ID)
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
	return log.Leader == log.ID && rec.State == meta.NodeUp && !heard
}

var stateWords = map[meta.NodeState]string{
	meta.NodeJoined: "joined", meta.NodeUp: "up", meta.NodeDown: "down", meta.NodeEvicted: "evicted",
}

// owedReason is why a content is owed, or the oldest where none is named; "" if it is not owed.
func (n *node) owedReason(rec meta.Node, c meta.Content) string {
	if rec.State == meta.NodeDown {
		return meta.OwedDown.String()
	}
	owed, err := n.db.OwedTo(rec.ID, max(c.Published, 1)-1, 1)
	if err != nil || len(owed) == 0 || !c.ID.IsZero() && owed[0].Content != c.ID {
		return ""
	}
	reason := owed[0].Reason.String()
	if owed[0].Reason == meta.OwedSlow {
		if why := n.repl.WhySlow(rec.ID, owed[0].Content); why != "" {
			reason += ": " + why
		}
	}
	return reason
}

// transfers are the sessions that this node pushes now.
func (n *node) transfers() []admin.Transfer {
	var out []admin.Transfer
	for _, t := range n.repl.Transfers() {
		out = append(out, n.transfer(t))
	}
	return out
}

// transfer is what status and watch show of a transfer.
func (n *node) transfer(t replicate.TransferStatus) admin.Transfer {
	line := admin.Transfer{
		Session: t.Content.String(), Path: t.Path, SizeBytes: t.Stream, Writer: uint32(n.id.Node), Epoch: t.Epoch,
		CatchUp: t.CatchUp, Started: t.Began, Phase: string(t.Phase), Ended: t.Ended, Outcome: string(t.Ending),
		Reason: t.Text,
		Choice: shownChoice(t.Choice),
	}
	if t.Ending != "" {
		line.Phase = ""
	}
	if p, err := n.inodePath(t.Ino); err == nil && t.Path == "" {
		line.Path = p
	}
	names := n.members.book().nodes
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
	return &admin.Choice{Algorithm: c.Algorithm.String(), BlockBytes: c.BlockSize, Window: c.Window, Reasons: c.Reasons}
}

// memberWords are the states of a member of a transfer in the words of status.
var memberWords = map[string]string{
	"asked": "waiting", "receiving": "receiving", "checking": "syncing", "stored": "stored", "out": "ejected",
}

// unpublished lists staged bytes that no open file has any more.
func (n *node) unpublished() []admin.Unpublished {
	var out []admin.Unpublished
	for _, u := range n.staging.unpublished() {
		out = append(out, admin.Unpublished{
			ID: unpublishedID(u), Path: n.pathOf(u), SizeBytes: u.Size, Modified: u.Modified,
			Reason: orDefault(u.Reason, "the daemon ended while the file was being written"),
		})
	}
	return out
}

// stagedID begins the ids of unpublished bytes.
const stagedID = "staged-"

func unpublishedID(u content.Unpublished) string { return fmt.Sprintf("%s%x", stagedID, u.Token) }

// pathOf is where staged bytes belong: by the inode while it has a name, else the name that they were opened under, in
// the directory of then if that is still there.
func (n *node) pathOf(u content.Unpublished) string {
	if p, err := n.inodePath(meta.Ino(u.Origin.Ino)); err == nil {
		return p
	}
	if dir, err := n.inodePath(meta.Ino(u.Origin.Parent)); err == nil && u.Origin.Name != "" {
		return path.Join(dir, u.Origin.Name)
	}
	return u.Origin.Name
}

const depthMax = 4096

// inodePath is one path of an inode from the root of the name space.
func (n *node) inodePath(ino meta.Ino) (string, error) {
	var parts []string
	for range depthMax {
		if ino == meta.RootIno {
			return "/" + strings.Join(parts, "/"), nil
		}
		rec, err := n.db.Inode(ino)
		if err != nil {
			return "", err
		}
		parts = append([]string{rec.Name}, parts...)
		ino = rec.Parent
	}
	return "", fmt.Errorf("node: path of inode %d: more than %d directories deep", ino, depthMax)
}

// lookup finds an inode by its path from the root of the name space.
func (n *node) lookup(name string) (meta.Inode, string, error) {
	clean := path.Clean("/" + name)
	ino, err := n.db.Inode(meta.RootIno)
	if err != nil {
		return ino, clean, err
	}
	for part := range strings.SplitSeq(strings.Trim(clean, "/"), "/") {
		if part == "" {
			continue
		}
		if ino, err = n.db.Lookup(ino.Ino, part, n.proposer.lease()); err != nil {
			return ino, clean, admin.Errorf(admin.CodeNotFound, "%s: no such file or directory", clean)
		}
	}
	return ino, clean, nil
}

func (n *node) space() admin.Space {
	sp, err := n.store.Space()
	if err != nil {
		return admin.Space{State: err.Error()}
	}
	out := admin.Space{TotalBytes: uint64(sp.TotalBytes), FreeBytes: uint64(sp.FreeBytes),
		ReserveBytes: uint64(sp.ReserveBytes), State: "ok"}
	if sp.Level == content.LevelFull {
		out.State = "content-refused"
	}
	if n.db.SpaceLow() {
		out.State = "changes-refused"
	}
	return out
}

// nowhereShown is how many lost files a warning names.
const nowhereShown = 3

// nowhere warns of files whose last holder has lost their bytes, or was evicted.
func (n *node) nowhere() string {
	list, err := n.gone.of(n.db)
	if err != nil || len(list) == 0 {
		return ""
	}
	var names []string
	for _, c := range list[:min(len(list), nowhereShown)] {
		names = append(names, fmt.Sprintf("%q%s %d", n.contentPath(c), orDefault(stateNote(c), ", version"), c.Version))
	}
	count := fmt.Sprint(len(list))
	if len(list) == nowhereMost {
		count = "at least " + count
	}
	return fmt.Sprintf("no node has the bytes of %s files any more, such as %s: bring back the data directory of a "+
		"node that had them",
		count, strings.Join(names, "; "))
}

// cutOffWarning says what a node without a quorum, or that is not let in, can still do, and which voters it does not
// reach.
func cutOffWarning(st admin.Status) string {
	if st.Quorum {
		return "cut off: " + notLetIn + "; reads show what this node knew last, changes fail: it asks again by itself, " +
			"and its log says why it waits"
	}
	var missing []string
	for _, line := range st.Nodes {
		if line.Voter && !line.Connected && line.ID != st.Node {
			missing = append(missing, nameOf(st, meta.NodeID(line.ID)))
		}
	}
	text := "cut off: no quorum of voters answers"
	if len(missing) > 0 {
		text += "; no connection to " + strings.Join(missing, ", ")
	}
	return text + "; reads show what this node knew last, changes fail: start the voters, or mend the network"
}

// warnings are what the user should do something about.
func (n *node) warnings(st admin.Status) []string {
	var out []string
	if len(st.Voters) == 1 && len(st.Nodes) > 1 {
		out = append(out, fmt.Sprintf("one voter: while %s is down nothing can be changed; a third node makes it three "+
			"voters, soon after it has joined", nameOf(st, meta.NodeID(st.Voters[0]))))
	}
	if r := n.rebuilding.Load(); r != nil {
		out = append(out, r.warning(n.raft.status().Rebuild))
	}
	if why := n.raft.status().Diverged; why != "" {
		out = append(out, why)
	}
	if text := n.digests.words.Load(); text != nil {
		out = append(out, *text)
	}
	if st.State == "cut-off" && n.raft.status().Diverged == "" {
		out = append(out, cutOffWarning(st))
	}
	if st.Space.State != "ok" {
		out = append(out, "the disk of the data directory has hardly any bytes or inodes left: free some space")
	}
	for _, d := range st.Damaged {
		out = append(out, damageWarning(d))
	}
	if lost := n.nowhere(); lost != "" {
		out = append(out, lost)
	}
	if text := removedWarning(st); text != "" {
		out = append(out, text)
	}
	if len(st.Unpublished) > 0 {
		out = append(out, "there are unpublished files: see 'rdmcfs restore' to publish or drop them")
	}
	return out
}
