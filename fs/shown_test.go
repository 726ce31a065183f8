package fs

import (
	"context"
	"errors"
	"log/slog"
	"testing"
)

// barrier is a cluster whose Show fails.
type barrier struct {
	Cluster
	calls int
}

func (b *barrier) Show(ctx context.Context, _ uint64) error {
	b.calls++
	return errors.Join(ctx.Err(), errors.New("behind"))
}

// A wait that ended because its caller was killed is not taken for one: the next caller waits. One that ended because
// a node did not answer in time is not repeated.
func TestShowIsWaitedForOnce(t *testing.T) {
	b := &barrier{}
	f := &fileSystem{cluster: b, log: slog.New(slog.DiscardHandler)}
	raise(&f.shown.changed, 7)
	killed, kill := context.WithCancel(t.Context())
	kill()
	for i, ctx := range []context.Context{killed, t.Context(), t.Context()} {
		f.show(ctx)
		if want := min(i+1, 2); b.calls != want {
			t.Fatalf("after call %d: %d waits, want %d", i+1, b.calls, want)
		}
	}
}
