package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/meta"
)

// A program that was answered "unknown" goes on, and must not be overtaken by what it did before: an unlink that
// failed with EIO must not remove the file that the same program makes under that name afterwards. So a node proposes
// nothing while the outcome of an earlier proposal is unknown, and opens no file for writing. This costs no time: a
// log that can take a new proposal can also answer the old ones.

const (
	// orderWait and orderWaitPatient are how long a proposal waits for the outcome of earlier ones that are unknown.
	orderWait        = 5 * time.Second
	orderWaitPatient = 25 * time.Second
	// orderRetry is how often the earlier ones are proposed again meanwhile.
	orderRetry = 250 * time.Millisecond
)

// noteUnknown notes, before its caller hears of it, that the outcome of a proposal is unknown.
func (p *proposer) noteUnknown(lease meta.Lease, seq uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if lease == p.self {
		p.unknown[seq] = true
	}
}

// awaitKnown waits until no outcome of an incarnation's proposals is unknown. It fails when the log refuses the earlier
// ones, or takes too long: nothing has been proposed then. A patient caller waits longer, and
// through refusals. It reports whether it had to wait.
func (p *proposer) awaitKnown(ctx context.Context, lease meta.Lease, patient bool) (waited bool, err error) {
	bound := orderWait
	if patient {
		bound = orderWaitPatient
	}
	known, _ := p.askAgain(lease, true)
	if known == nil {
		return false, nil
	}
	end, again := time.NewTimer(bound), time.NewTicker(orderRetry)
	defer end.Stop()
	defer again.Stop()
	for known != nil {
		select {
		case <-known:
		case <-again.C:
		case <-end.C:
			return true, fmt.Errorf("node: an earlier change has not been decided in %v: %w", bound, consensus.ErrNoQuorum)
		case <-ctx.Done():
			return true, ctx.Err()
		case <-p.ctx.Done():
			return true, consensus.ErrClosed
		}
		var refused error
		known, refused = p.askAgain(lease, false)
		if refused != nil && !patient {
			return true, fmt.Errorf("node: an earlier change is not decided: %w", refused)
		}
	}
	return true, nil
}

// settleAll waits, for a bounded time, until no outcome is unknown.
func (p *proposer) settleAll(ctx context.Context) error {
	_, err := p.awaitKnown(ctx, p.lease(), true)
	return err
}

// isSettled reports whether no outcome is unknown.
func (p *proposer) isSettled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.unknown) == 0
}

// askAgain makes proposals whose outcome is unknown be proposed again. It returns a channel that is closed when no
// outcome is unknown, nil if none is already, and the last refusal since the first call.
func (p *proposer) askAgain(lease meta.Lease, first bool) (known <-chan struct{}, refused error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if lease != p.self || len(p.unknown) == 0 {
		return nil, nil
	}
	if first {
		p.refused = nil
	}
	p.wakeLocked()
	return p.known, p.refused
}

// wakeLocked makes proposals whose outcome is unknown be proposed again at once.
func (p *proposer) wakeLocked() {
	close(p.again)
	p.again = make(chan struct{})
}

// noteRefusal notes that the log refused an attempt to learn an outcome. A waiting caller sees it at its next look.
func (p *proposer) noteRefusal(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !errors.Is(err, consensus.ErrUnknown) {
		p.refused = err
	}
}

// wakeWaitersLocked wakes the callers that wait in awaitKnown: no outcome is unknown any more.
func (p *proposer) wakeWaitersLocked() {
	close(p.known)
	p.known = make(chan struct{})
}

// opText is an operation in the words of status.
func opText(op meta.Op) string {
	switch op := op.(type) {
	case *meta.Create:
		return "creation of " + op.Name
	case *meta.Reserve:
		return "creation of " + op.Name
	case *meta.Link:
		return "link " + op.Name
	case *meta.Unlink:
		return "removal of " + op.Name
	case *meta.Rmdir:
		return "removal of " + op.Name
	case *meta.Rename:
		return "rename of " + op.OldName + " to " + op.NewName
	case *meta.SetAttr:
		return "change of attributes"
	case *meta.Publish:
		return "new version of " + cmp.Or(op.Hint, op.LinkName, "a file")
	}
	return strings.ToLower(strings.TrimPrefix(fmt.Sprintf("%T", op), "*meta."))
}
