package control

import (
	"context"
	"crypto/tls"
	"sync/atomic"
	"time"
)

const (
	// watchEvery is how often the bytes of a watched call are looked at.
	watchEvery = 200 * time.Millisecond
	// answersAheadMax bounds the bytes of other answers that count as the progress of a call: more can't be ahead of
	// its own.
	answersAheadMax = 24 << 20
)

// watch looks how the bytes of one call move over its connection.
type watch struct {
	moved func(left int64)
	end   atomic.Int64 // of the request, in bytes of the connection; 0 while it waits for room in the outbox
}

// CallMoving is Call for requests and answers of many bytes. Over TCP these have a connection of their own, so that
// short calls do not wait behind them. moved, which may be nil, is called from another goroutine whenever bytes have
// moved that must move before the call can end: bytes of the request and of what is queued ahead of it, or of answers.
// left is how many bytes of the request, and ahead of it, are still to go; below 0 means all of them, and they wait for
// room. moved is not called any more when CallMoving has returned.
func (p *Peers) CallMoving(
	ctx context.Context, node, kind uint32, payload []byte, moved func(left int64),
) ([]byte, error) {
	c, err := p.client(ctx, node)
	if err == nil && c.overTCP() {
		c, err = p.clientOf(ctx, way{node, true})
	}
	if err != nil {
		return nil, err
	}
	answer, err := c.callMoving(ctx, kind, payload, moved)
	if err != nil {
		return nil, explainCall(kind, node, err)
	}
	return answer, nil
}

func (c *client) overTCP() bool {
	over, ok := c.conn.(*tls.Conn)
	if !ok {
		return false
	}
	_, fabric := over.NetConn().(fabricConn)
	return !fabric
}

// callMoving is call, with moved as for CallMoving.
func (c *client) callMoving(ctx context.Context, kind uint32, payload []byte, moved func(left int64)) ([]byte, error) {
	if moved == nil {
		return c.call(ctx, kind, payload)
	}
	w := &watch{moved: moved}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		c.watch(w, stop)
	}()
	defer func() { close(stop); <-stopped }()
	return c.callWatched(ctx, kind, payload, w)
}

// watch tells w what moves until stop is closed.
func (c *client) watch(w *watch, stop <-chan struct{}) {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	across, came := c.out.across(), c.in.came.Load()
	first := came
	for {
		select {
		case <-stop:
			return
		case <-ticker.C:
		}
		end := w.end.Load()
		nowAcross := c.out.across()
		if end > 0 {
			nowAcross = min(nowAcross, end)
		}
		nowCame := min(c.in.came.Load(), first+answersAheadMax)
		if nowAcross > across || nowCame > came {
			across, came = max(across, nowAcross), max(came, nowCame)
			if end == 0 {
				w.moved(-1)
			} else {
				w.moved(end - across)
			}
		}
	}
}
