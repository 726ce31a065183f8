package strike

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
)

// TestFaultCalls: a node answers, refuses, is cut off and is gone.
func TestFaultCalls(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := &calls{self: 2, network: newDropper()}
	served.handle = func(_ context.Context, from meta.NodeID, kind replicate.Kind, payload []byte) ([]byte, error) {
		if kind != replicate.KindFinish {
			return nil, errors.New("not of this kind")
		}
		return append([]byte{byte(from)}, payload...), nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var serving sync.WaitGroup
	serving.Go(func() { served.serve(ctx, &droppedListener{listener, served.network}) })
	caller := &calls{self: 1, network: newDropper(), addresses: []string{"", listener.Addr().String()}}
	if got, err := caller.Call(ctx, 2, replicate.KindFinish, []byte("how far")); err != nil ||
		string(got) != "\x01how far" {
		t.Errorf("answered %q, %v", got, err)
	}
	if _, err := caller.Call(ctx, 2, replicate.KindStop, nil); err == nil ||
		!strings.Contains(err.Error(), "node 2: not of this kind") {
		t.Errorf("refused with %v", err)
	}
	served.network.drop()
	cutOff, giveUp := context.WithCancel(ctx)
	result := make(chan error, 1)
	go func() {
		_, err := caller.Call(cutOff, 2, replicate.KindFinish, nil)
		result <- err
	}()
	giveUp()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("a node that is cut off: %v", err)
	}
	listener.Close()
	cancel()
	serving.Wait()
	if _, err := caller.Call(t.Context(), 2, replicate.KindFinish, nil); err == nil {
		t.Error("a node that is gone has answered")
	}
}

func TestLongCallsAreRefused(t *testing.T) {
	if _, _, err := readCall(bytes.NewReader([]byte{1, 0xff, 0xff, 0xff, 0xff}), 1); err == nil ||
		!strings.Contains(err.Error(), "4294967295 bytes") {
		t.Errorf("%v", err)
	}
}

// TestFaultLog: the log founds a cluster and ends a node's incarnation, as members hear it.
func TestFaultLog(t *testing.T) {
	var told []order
	log := newHistory(func(o order) { told = append(told, o) })
	defer log.db.Close()
	if err := errors.Join(log.found(3), log.declareDown(0)); err != nil {
		t.Fatal(err)
	}
	db := meta.OpenMemory()
	defer db.Close()
	for i, o := range told {
		if o.Order != orderEntry || o.Index != uint64(i+1) {
			t.Fatalf("entry %d: %+v", i, o)
		}
		if _, _, err := db.Apply(o.Index, o.Time, o.Entry); err != nil {
			t.Fatal(err)
		}
	}
	for rank, want := range []meta.NodeState{meta.NodeDown, meta.NodeUp, meta.NodeUp} {
		if n, err := db.Node(nodeOf(rank)); err != nil || n.State != want || rankOf(n.ID) != rank {
			t.Errorf("rank %d: %+v, %v", rank, n, err)
		}
	}
}
