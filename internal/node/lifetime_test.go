package node

import (
	"errors"
	"log/slog"
	"testing"
)

// The first failure ends a node, and is the reason that it gives.
func TestFirstFailureEndsTheNode(t *testing.T) {
	l := newLifetime(t.Context(), slog.New(slog.DiscardHandler))
	if err := l.err(); err != nil || l.ctx.Err() != nil {
		t.Fatalf("%v, %v", err, l.ctx.Err())
	}
	first := errors.New("first")
	l.fail(first)
	l.fail(errors.New("second"))
	if err := l.err(); !errors.Is(err, first) || l.ctx.Err() == nil {
		t.Errorf("%v, %v", err, l.ctx.Err())
	}
}
