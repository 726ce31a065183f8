package control

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/format"
)

// bare is a fabric that adds nothing: what was agreed on is the connection. It counts what it made.
type bare struct{ made atomic.Int32 }

type bareConn struct{ net.Conn }

func (b *bare) Dial(_ context.Context, agreed net.Conn) (net.Conn, error) {
	b.made.Add(1)
	return bareConn{agreed}, nil
}

func (b *bare) Accept(ctx context.Context, agreed net.Conn) (net.Conn, error) {
	return b.Dial(ctx, agreed)
}

// TestNoFabricWithinAFabric: what goes over a fabric may carry calls, but no agreement on another.
func TestNoFabricWithinAFabric(t *testing.T) {
	f := newFabricated(t)
	server, fabric := NewServer(quiet()), &bare{}
	server.HandleCall(kindTest, echo)
	port := listen(t, PortConfig{Identity: f.node(1), Server: server, Fabric: fabric})
	addr, caller := port.Addr().String(), f.node(2)

	peers := peersTo(t, caller, addr, func(cfg *PeersConfig) { cfg.Fabric = fabric })
	if got, err := peers.Call(bounded(t), 1, kindTest, []byte("over it")); err != nil || string(got) != "over it" {
		t.Errorf("%q, %v", got, err)
	}
	if n := fabric.made.Load(); n != 2 {
		t.Errorf("%d ends of a fabric's connection, want 2", n)
	}

	agreed, err := dialTLS(bounded(t), (&net.Dialer{}).DialContext, addr, caller.ClientConfig(1, ProtocolFabric),
		saying(0, format.End{}))
	if err != nil {
		t.Fatal(err)
	}
	defer agreed.Close()
	inner, err := shakeHands(bounded(t), bareConn{agreed}, addr, caller.ClientConfig(1, ProtocolFabric),
		saying(0, format.End{}))
	var refused *RemoteError
	if !errors.As(err, &refused) {
		if err == nil {
			inner.Close()
		}
		t.Errorf("an agreement within a fabric: %v", err)
	}
	if n := fabric.made.Load(); n != 3 {
		t.Errorf("%d ends of a fabric's connections, want 3", n)
	}
}
