package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
)

// statusReport tells what this node knows of itself and the cluster.
type statusReport struct {
	about     func() admin.Status // what does not depend on the state of the cluster
	state     func(consensus.Status) string
	db        *meta.DB
	store     *content.Store
	staging   *staging
	raft      *lateRaft
	proposer  *proposer
	cluster   *cluster
	mounts    *mounts
	devices   *devices
	nodes     *nodeReport
	transfers *transfers
	damage    *damage
	warnings  *warnings
}

// status is what this node knows of itself and the cluster.
func (s *statusReport) status(context.Context) (admin.Status, error) {
	log := s.raft.status()
	index, digest := s.db.Digest()
	lease := s.proposer.lease()
	st := s.about()
	st.State, st.Space, st.Unpublished = s.state(log), spaceOf(s.store, s.db), s.staging.list()
	st.Incarnation, st.Leader, st.Quorum = lease.Incarnation, uint32(nodeOf(log.Leader)), !log.NoQuorum
	st.ChangesRefused = s.cluster.changesRefused(log)
	st.AppliedIndex, st.CommitIndex = s.db.Index(), log.Commit
	st.Digest, st.DigestIndex = fmt.Sprintf("%x", digest), index
	st.Format = s.db.Format()
	st.Files, st.Bytes = s.db.StatFS()
	st.RemovedKept, st.RemovedMost = meta.Removals{DB: s.db}.Count(), meta.RemovedMax
	st.Transfers, st.Unresolved = s.transfers.list(), s.proposer.unresolved()
	st.Mounts, st.Passthrough = s.mounts.list(), s.mounts.passthrough()
	st.ControlRings = s.devices.overRings()
	for _, v := range numbers(log.Voters) {
		st.Voters = append(st.Voters, uint32(v))
	}
	nodes, err := s.nodes.list(log)
	if err != nil && !errors.Is(err, meta.ErrDamaged) {
		return st, err
	}
	st.Nodes, st.Damaged = nodes, s.damage.known()
	st.Warnings, err = s.warnings.list(st)
	return st, err
}

// about is what this node says of itself, whatever its state.
func (n *node) about() admin.Status {
	return admin.Status{
		Version: n.cfg.Version, Cluster: n.id.Cluster, Generation: n.id.Generation, Node: uint32(n.id.Node), Name: n.id.Name,
		Listen: n.id.Listen, Started: n.started, Fabric: n.devices.all.String(),
	}
}

// leaderReadOnly reports whether the leader, another node, has said of late that it can't write its log.
func leaderReadOnly(log consensus.Status, now time.Time) bool {
	p := log.Progress[log.Leader]
	return p.ReadOnly && now.Sub(p.LastSeen) <= leaseTime
}

const notLetIn = "the cluster has not let this node in"

// spaceOf is how much room there is on the disk of the data directory.
func spaceOf(store *content.Store, db *meta.DB) admin.Space {
	sp, err := store.Space()
	if err != nil {
		return admin.Space{State: err.Error()}
	}
	out := admin.Space{TotalBytes: uint64(sp.TotalBytes), FreeBytes: uint64(sp.FreeBytes),
		ReserveBytes: uint64(sp.ReserveBytes), State: "ok"}
	if sp.Level == content.LevelFull {
		out.State = "content-refused"
	}
	if db.SpaceLow() {
		out.State = "changes-refused"
	}
	return out
}
