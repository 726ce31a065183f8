package replicate

import (
	"context"
	"errors"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/session"
)

// mender keeps the contents of the store right, readable without the daemon, and near their bases.
type mender struct {
	cfg       *Config
	applied   applied
	remote    *remoteReads
	lost      *reports                  // contents that the log wrongly believes to be here
	failed    *failedCommits            // to be repeated
	deep      chan meta.ContentID       // deltas to look at
	unchecked chan meta.ContentID       // contents to check before they are read without the daemon
	settle    func(meta.ContentID) bool // carries out what the log says of a content: that of verdicts
}

func newMender(cfg *Config, applied applied, remote *remoteReads, lost *reports, failed *failedCommits) *mender {
	return &mender{cfg: cfg, applied: applied, remote: remote, lost: lost, failed: failed,
		deep: make(chan meta.ContentID, 256), unchecked: make(chan meta.ContentID, 256)}
}

// keepWhole mends what the store found damaged, until ctx ends: at once, and again now and then. Blocks come from other
// holders. A content that can't be mended that way is given up and reported to the log as lost, and catch-up brings it
// again. keepWhole also repeats commits that failed.
func (m *mender) keepWhole(ctx context.Context) {
	timer, stop := m.cfg.Clock.After(m.cfg.Tuning.MendEvery)
	defer func() { stop() }()
	for again := true; ; {
		for _, id := range m.failed.take() {
			m.settle(id)
		}
		for _, id := range m.cfg.Store.Damaged() {
			if ctx.Err() != nil {
				return
			}
			if again || !m.lost.waiting(metaID(id)) { // what was given up just now is not tried for each new damage
				m.mend(ctx, metaID(id))
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-timer:
			again = true
			timer, stop = m.cfg.Clock.After(m.cfg.Tuning.MendEvery)
		case <-m.cfg.Store.DamageFound():
			again = false
		}
	}
}

// mend brings a damaged content back to what the log committed.
func (m *mender) mend(ctx context.Context, id meta.ContentID) {
	if m.applied.judge(id) != session.Published {
		return
	}
	if holds, err := m.cfg.Names.Holds(m.cfg.Self().Node, id); err != nil || !holds {
		return // already reported to the log: catch-up brings it
	}
	m.remote.counters.damaged.Add(1)
	err := m.mendBlocks(ctx, id)
	if err == nil {
		m.remote.counters.mended.Add(1)
		m.cfg.Logger.Info("damaged content mended", "content", id)
		return
	}
	if ctx.Err() != nil || errors.Is(err, content.ErrBusy) {
		return // it is being merged or mended: the next time
	}
	m.cfg.Logger.Warn("damaged content given up", "content", id, "err", err)
	m.lost.add(id)
}

var (
	errUnmendable = errors.New("replicate: not to be mended block by block")
	errNoHolder   = errors.New("replicate: no other holder has what is damaged here")
)

func (m *mender) mendBlocks(ctx context.Context, id meta.ContentID) error {
	damage, err := m.cfg.Store.Check(ctx, storeID(id))
	if err != nil {
		return err
	}
	if damage == nil {
		return nil
	}
	if len(damage.Blocks) == 0 {
		return errUnmendable
	}
	r, err := m.remote.open(ctx, id, m.cfg.Self().Node)
	if err != nil {
		return errors.Join(errNoHolder, err)
	}
	defer r.Close()
	for _, i := range damage.Blocks {
		block, err := r.block(ctx, i)
		if err != nil {
			return errors.Join(errNoHolder, err)
		}
		if err := m.cfg.Store.Mend(ctx, storeID(id), i, block); err != nil {
			return err
		}
	}
	if damage, err = m.cfg.Store.Check(ctx, storeID(id)); err == nil && damage != nil {
		err = content.ErrCorrupt
	}
	return err
}

func (m *mender) damaged(id meta.ContentID) bool {
	info, err := m.cfg.Store.Stat(storeID(id))
	return err != nil || info.Damaged || !m.cfg.Store.Whole(storeID(id), info.Size)
}

func (m *mender) committedDamaged(id meta.ContentID) bool {
	state, ok := m.cfg.Store.State(storeID(id))
	return ok && state == content.Committed && m.damaged(id)
}

// missing reports to the log a content that the log believes to be here and that is not.
func (m *mender) missing(id meta.ContentID) {
	c, err := m.cfg.Names.Content(id)
	if err != nil || c.Inline {
		return
	}
	if _, ok := m.cfg.Store.State(storeID(id)); ok {
		return
	}
	if holds, err := m.cfg.Names.Holds(m.cfg.Self().Node, id); err == nil && holds {
		m.cfg.Logger.Warn("content is missing here", "content", id)
		m.lost.add(id)
	}
}

// checkSoon queues a content to be checked as a whole in the background. A content that finds no room is checked after
// its next open.
func (m *mender) checkSoon(id meta.ContentID) {
	select {
	case m.unchecked <- id:
	default:
	}
}

// keepChecking checks contents that are to be read without the daemon, until ctx ends.
func (m *mender) keepChecking(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case id := <-m.unchecked:
			if info, err := m.cfg.Store.Stat(storeID(id)); err == nil && info.Checked {
				continue // asked for twice
			}
			_, err := m.cfg.Store.Check(ctx, storeID(id)) // damage is mended by keepWhole
			if err != nil && ctx.Err() == nil {
				m.cfg.Logger.Warn("check of a content", "content", id, "err", err)
			}
		}
	}
}

// noteDelta queues a committed content to be looked at that may be the end of a long chain of deltas.
func (m *mender) noteDelta(c meta.Content) {
	if c.Base.IsZero() || c.Size <= smallMax {
		return
	}
	select {
	case m.deep <- c.ID:
	default: // looked at with the next version
	}
}

// keepShallow merges long chains of deltas in the background, until ctx ends.
func (m *mender) keepShallow(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case id := <-m.deep:
			info, err := m.cfg.Store.Stat(storeID(id))
			if err != nil || info.Depth < mergeDepth {
				continue
			}
			if err := m.cfg.Store.Merge(ctx, storeID(id)); err != nil && ctx.Err() == nil {
				m.cfg.Logger.Debug("deltas not merged", "content", id, "depth", info.Depth, "err", err)
			}
		}
	}
}
