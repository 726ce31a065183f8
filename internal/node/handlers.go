package node

import (
	"context"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
)

// handlers are the answers to the command line. Each has the parts of the node that it needs.
func (n *node) handlers() admin.Handlers {
	self, lost := n.id.Node, &lostLooks{}
	nodes := &nodeReport{self: self, db: n.db, peers: n.peers, repl: n.repl, clock: n.clock, room: n.repl.NoRoom}
	moves := &transfers{self: self, members: n.members, paths: n.paths, repl: n.repl}
	kept := &versions{self: self, db: n.db, paths: n.paths, staging: n.staging,
		removed: removedFiles{db: n.db, paths: n.paths, proposer: n.proposer}}
	rules := &policies{db: n.db, members: n.members, paths: n.paths, proposer: n.proposer}
	where := &holdings{db: n.db, members: n.members, paths: n.paths, policies: rules, nodes: nodes, damage: n.damage}
	status := &statusReport{about: n.about, state: n.state, db: n.db, store: n.store, staging: n.staging, raft: &n.raft,
		proposer: n.proposer, cluster: n.cluster, mounts: n.mounts, devices: n.devices, nodes: nodes, transfers: moves,
		damage: n.damage,
		warnings: &warnings{db: n.db, members: n.members, raft: &n.raft, health: n.health, digests: n.digests,
			clock: n.clock, paths: n.paths, lost: lost}}
	watch := &watchReport{ctx: n.life.ctx, db: n.db, raft: &n.raft, repl: n.repl, watchers: &n.watchers,
		transfers: moves, nodes: nodes, versions: kept,
		changes: &changeReport{ctx: n.life.ctx, changes: &n.changes, db: n.db, paths: n.paths}}
	restore := &restorer{ctx: n.life.ctx, db: n.db, store: n.store, staging: n.staging, versions: kept, paths: n.paths,
		proposer: n.proposer, repl: n.repl}
	wait := &waits{ctx: n.life.ctx, db: n.db, raft: &n.raft, nodes: nodes, holdings: where, lost: lost,
		damage: n.damage}
	drain := &drains{db: n.db, members: n.members, anonymous: n.anonymous, strays: n.strays, paths: n.paths,
		nodes: nodes}
	upgrade := &upgrades{db: n.db, anonymous: n.anonymous}
	scrubs := &scrubber{self: n.id.Node, db: n.db, store: n.store, paths: n.paths, members: n.members, damage: n.damage,
		repl: n.repl}
	fscks := &fscks{self: self, db: n.db, paths: n.paths, members: n.members, peers: n.peers,
		strays: n.strays, stock: n.stock, compare: n.digests.compareNow}
	trail := &auditor{db: n.db, members: n.members, log: n.log, propose: n.proposer.request}
	return admin.Handlers{
		Status: status.status, Watch: watch.watch,
		Mount: n.mounts.mount, Unmount: n.mounts.unmount,
		MountWait: func(ctx context.Context, req admin.MountWaitRequest) error { return n.mounts.wait(ctx, req.Dir) },
		Where:     where.where, Versions: kept.list, Wait: wait.wait,
		Restore: func(ctx context.Context, req admin.RestoreRequest, each func(admin.Progress)) (admin.Version, error) {
			return audited(trail, always, func(ctx context.Context, req admin.RestoreRequest) (admin.Version, error) {
				return restore.restore(ctx, req, each)
			})(ctx, req)
		},
		Policy: audited(trail, setsPolicy, rules.showOrSet), Token: audited(trail, always, n.authority.token),
		Evict:   audited(trail, always, n.evictions.evict),
		Drain:   audited(trail, func(req admin.DrainRequest) bool { return !req.Look }, drain.drain),
		Upgrade: audited(trail, func(req admin.UpgradeRequest) bool { return req.Finish }, upgrade.upgrade),
		Scrub:   scrubs.scrub, Fsck: fscks.fsck, Backup: n.backup, Audit: trail.list,
		Stop: func(context.Context) error { n.life.cancel(); return nil },
		Metrics: metricsHandler(&gauges{db: n.db, store: n.store, staging: n.staging, raft: &n.raft, repl: n.repl,
			memory: n.memory, devices: n.devices, nodes: nodes}),
	}
}
