package node

import (
	"context"
	"errors"
	"testing"
)

// A mount that has ended is no error, though the call was cancelled too: a daemon in the foreground ends with its mount.
func TestMountThatHasEnded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p := &mountPoint{dir: "/mnt", gone: make(chan struct{})}
	if err := p.awaitGone(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("a mount that is still there: %v", err)
	}
	close(p.gone)
	for range 100 {
		if err := p.awaitGone(ctx); err != nil {
			t.Fatal(err)
		}
	}
}
