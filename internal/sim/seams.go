package sim

import (
	"context"
	"errors"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
)

var errNoted = errors.New("sim: noted, to be proposed by the shell")

// notedLog takes down what the replication proposes; the shell proposes it.
type notedLog struct{ ops []meta.Op }

// Propose implements replicate.Log.
func (n *notedLog) Propose(_ context.Context, op meta.Op) (meta.Result, error) {
	n.ops = append(n.ops, op)
	return meta.Result{}, errNoted
}

// Barrier implements replicate.Log.
func (n *notedLog) Barrier(context.Context, uint64) ([]meta.NodeID, error) { return nil, errNoted }

// noPeers and noGroups are never asked: calls and groups are the shell's.
type noPeers struct{}

// Call implements replicate.Peers.
func (noPeers) Call(context.Context, meta.NodeID, replicate.Kind, []byte) ([]byte, error) {
	return nil, errNoted
}

type noGroups struct{}

// NewGroup implements replicate.Groups.
func (noGroups) NewGroup(rdmc.GroupConfig) (replicate.Group, error) { return nil, errNoted }

type simClock struct{ w *world }

// Now implements replicate.Clock.
func (c simClock) Now() time.Time { return c.w.time() }

// After implements replicate.Clock; nothing that waits is run.
func (c simClock) After(time.Duration) (<-chan time.Time, func()) {
	return make(chan time.Time), func() {}
}
