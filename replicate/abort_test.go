package replicate

import (
	"context"
	"log/slog"
	"syscall"
	"testing"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
)

// fullWindow refuses while an earlier proposal of this node is unresolved, as apply does.
type fullWindow struct {
	noLog
	refusals int
}

func (l *fullWindow) Propose(context.Context, meta.Op) (meta.Result, error) {
	if l.refusals--; l.refusals >= 0 {
		return meta.Result{Errno: syscall.EAGAIN}, nil
	}
	return meta.Result{}, nil
}

// TestAbortIsProposedUntilItIsTaken: members keep what they have of a session until the log has ended it.
func TestAbortIsProposedUntilItIsTaken(t *testing.T) {
	c := metatest.New(t, 1)
	q := newAbortQueue(Config{
		Self: func() meta.Lease { return c.Lease(1) }, Names: c.DB, Log: &fullWindow{refusals: 1},
		Logger: slog.New(slog.DiscardHandler),
	})
	id := c.Session(1)
	if q.settled(t.Context(), id) {
		t.Error("an abort that was not taken counts as the end of its session")
	}
	if !q.settled(t.Context(), id) {
		t.Error("taken, and proposed again")
	}
}
