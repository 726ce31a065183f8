package fs

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/rdmcfs/rdmcfs/meta"
)

// lateCluster is a cluster with a node that shows nothing, and a leader that says so unless err is set.
type lateCluster struct {
	Cluster
	err   error
	calls int
}

func (b *lateCluster) Show(ctx context.Context, _ uint64, _ bool) ([]meta.NodeID, error) {
	b.calls++
	return []meta.NodeID{2}, errors.Join(ctx.Err(), b.err)
}

// A wait may end because its caller was killed, or because it can't be known which nodes show the changes. It does not
// count: the next caller waits. A wait that ended because a node did not answer in time is not repeated.
func TestShowIsWaitedForOnce(t *testing.T) {
	b := &lateCluster{}
	ns := &namespace{cluster: b, log: slog.New(slog.DiscardHandler)}
	raise(&ns.barrier.changed, 7)
	killed, kill := context.WithCancel(t.Context())
	kill()
	for i, call := range []struct {
		ctx   context.Context
		err   error
		fails bool
		calls int
	}{
		{killed, nil, true, 1}, {t.Context(), errors.New("no leader"), true, 2}, {t.Context(), nil, false, 3},
		{t.Context(), nil, false, 3},
	} {
		b.err = call.err
		if err := ns.show(call.ctx, true); (err != nil) != call.fails || b.calls != call.calls {
			t.Fatalf("call %d: %v, %d waits, want %d", i+1, err, b.calls, call.calls)
		}
	}
}
