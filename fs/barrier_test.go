package fs

import (
	"context"
	"errors"
	"log/slog"
	"testing"
)

// lateCluster is a cluster whose Show fails.
type lateCluster struct {
	Cluster
	calls int
}

func (b *lateCluster) Show(ctx context.Context, _ uint64) error {
	b.calls++
	return errors.Join(ctx.Err(), errors.New("behind"))
}

// A wait that ended because its caller was killed is not taken for one: the next caller waits. One that ended because
// a node did not answer in time is not repeated.
func TestShowIsWaitedForOnce(t *testing.T) {
	b := &lateCluster{}
	ns := &namespace{cluster: b, log: slog.New(slog.DiscardHandler)}
	raise(&ns.barrier.changed, 7)
	killed, kill := context.WithCancel(t.Context())
	kill()
	for i, ctx := range []context.Context{killed, t.Context(), t.Context()} {
		ns.show(ctx)
		if want := min(i+1, 2); b.calls != want {
			t.Fatalf("after call %d: %d waits, want %d", i+1, b.calls, want)
		}
	}
}
