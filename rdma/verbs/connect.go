//go:build linux && (amd64 || arm64) && !nordma

package verbs

import (
	"context"
	"fmt"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// errGivenUp ends a Connect whose peer has given up.
var errGivenUp = fmt.Errorf("the peer gave up: %w", rdma.ErrState)

// The first message is repeated after greetMin, and then less and less often until greetMax.
const (
	greetMin = 2 * time.Millisecond
	greetMax = 250 * time.Millisecond
)

// introduce fills in where this device is.
func (d *device) introduce(a *address) {
	at := d.at.Load()
	a.gid, a.lid, a.mtu, a.link = at.gid.GID.As16(), at.port.LID, at.port.mtuCode, at.link()
	a.readsIn = d.readsIn
	a.bellQPN, a.bellKey = d.bell.number, d.bell.key
}

func (l *place) link() uint8 {
	if l.port.LinkLayer == "InfiniBand" {
		return linkInfiniBand
	}
	return linkEthernet
}

// route is the way to a peer, for requests and for datagrams.
func (l *place) route(to *address) ahAttr {
	a := ahAttr{dgid: to.gid, sgidIndex: uint8(l.gid.Index), hopLimit: 64, port: uint8(l.port.Number), dlid: to.lid,
		isGlobal: 1}
	own := l.gid.GID.As16()
	if l.link() == linkInfiniBand && [8]byte(own[:]) == [8]byte(to.gid[:]) {
		a.isGlobal = 0 // the same subnet: the LID is enough
	}
	return a
}

// Connect joins the pair with its peer.
func (q *queuePair) Connect(ctx context.Context, remote []byte) error {
	peer, err := decodeAddress(remote)
	if err == nil {
		err = q.suits(&peer)
	}
	if err != nil {
		q.Abort()
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if err := q.beginConnect(&peer, cancel); err != nil {
		return err
	}
	if err = context.Cause(ctx); err == nil {
		err = q.bringUp()
	}
	if err == nil {
		err = q.greet(ctx)
	}
	return q.endConnect(err)
}

// suits refuses peers for reasons that no device checks.
func (q *queuePair) suits(peer *address) error {
	switch {
	case peer.token == q.local.token:
		return fmt.Errorf("verbs: connect a queue pair to itself: %w", rdma.ErrRequest)
	case peer.link != q.local.link:
		return fmt.Errorf("verbs: connect an InfiniBand port with an Ethernet port: %w", rdma.ErrRequest)
	}
	return nil
}

func (q *queuePair) beginConnect(peer *address, cancel context.CancelCauseFunc) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state != stateReset {
		return fmt.Errorf("verbs: connect: %w", q.refusalLocked())
	}
	q.state, q.cancel, q.remote = stateConnecting, cancel, *peer
	q.key = pairKey(&q.local, peer)
	return nil
}

// endConnect makes the pair ready, or ends it.
func (q *queuePair) endConnect(err error) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state == stateConnecting && err == nil {
		q.state = stateReady
		return nil
	}
	if q.state == stateConnecting {
		q.state, q.failStatus = stateError, rdma.StatusFlushed
	}
	go q.end() // awaited by Close, through done
	if err == nil {
		err = rdma.ErrState
	}
	return fmt.Errorf("verbs: connect: %w", err)
}

// bringUp makes the device take the peer's requests, and makes it able to send.
func (q *queuePair) bringUp() error {
	d, peer := q.dev, &q.remote
	at := d.at.Load()
	route := at.route(peer)
	attr := &qpAttr{state: qpRTR, ah: route, pathMTU: uint32(min(q.local.mtu, peer.mtu)), destQPN: peer.qpn,
		rqPSN:   peer.psn,
		readsIn: d.readsIn, minRNRTimer: rnrTimer}
	what := fmt.Sprintf("reach GID %v from GID %v", peer.where(), at.gid.GID.Unmap())
	if err := d.modify(what, q.handle, attr, maskRTRReliable); err != nil {
		return err
	}
	r := retryOf(d.cfg.PeerTimeout)
	attr = &qpAttr{state: qpRTS, timeout: r.shift, retryCount: r.count, rnrRetry: rnrRetry, sqPSN: q.local.psn,
		readsOut: min(d.readsOut, max(peer.readsIn, 1))}
	if err := d.modify("start queue pair", q.handle, attr, maskRTSReliable); err != nil {
		return err
	}
	by, err := d.bell.takeRoute(route)
	if err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.route, q.up = by, true
	return nil
}

// greet tells the peer that this pair is ready, until the peer tells the same.
func (q *queuePair) greet(ctx context.Context) error {
	hello := message{kind: messageReady, to: q.remote.token, from: q.local.token}
	text := hello.encode(q.key)
	for pause := greetMin; ; pause = min(2*pause, greetMax) {
		if err := q.dev.bell.mend(); err != nil {
			return err
		}
		q.dev.bell.ring(q.route, &q.remote, text)
		again := time.NewTimer(pause)
		select {
		case <-again.C:
			continue
		case <-q.heard:
		case <-ctx.Done():
		}
		again.Stop()
		return context.Cause(ctx)
	}
}

// told handles a message for this pair.
func (q *queuePair) told(m *message, text []byte) {
	if m.kind == messageGone {
		q.drain() // what the peer has done before comes first
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.key == nil || m.from != q.remote.token || !proven(text, q.key) {
		return
	}
	switch {
	case m.kind == messageGone:
		q.failLocked(rdma.StatusDisconnected)
	case !q.up || q.state == stateError:
		// The peer asks again, or will learn that this pair has ended.
	default:
		if !q.hasHeard {
			q.hasHeard = true
			close(q.heard)
		}
		if !m.seen {
			answer := message{kind: messageReady, seen: true, to: q.remote.token, from: q.local.token}
			q.dev.bell.ring(q.route, &q.remote, answer.encode(q.key))
		}
	}
}
