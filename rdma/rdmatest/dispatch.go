package rdmatest

import (
	"context"
	"errors"
	"testing"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// flowDispatch: if a completion queue hands its completions over itself, a handler that answers within the call gets
// all of them, each pair's in order.
func flowDispatch(t *testing.T, p *Pair) {
	const pairs, messages = 3, 200
	cq := newCQ(t, p.Devices[1])
	d, ok := cq.(rdma.Dispatcher)
	if !ok {
		return // by polling alone
	}
	var asking []*end
	answering := make(map[rdma.QueuePair]*uint64)
	for range pairs {
		a, b := p.end(t, 0, options{}), p.end(t, 1, options{})
		b.qp = newQP(t, p.Devices[1], cq)
		connect(t, a, b)
		for id := range uint64(8) {
			b.recv(id, 0, 8)
		}
		asking, answering[b.qp] = append(asking, a), new(uint64)
	}
	ctx, cancel := context.WithTimeout(t.Context(), p.Patience)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- d.Dispatch(ctx, func(c *rdma.Completion) {
			if c.Op != rdma.OpRecv || c.Status != rdma.StatusOK {
				return
			}
			got := answering[c.QP]
			if uint64(c.Imm) != *got {
				t.Errorf("message %d, want %d", c.Imm, *got)
			}
			*got++
			again := rdma.RecvWR{ID: c.ID}
			if err := c.QP.PostRecv(again); err != nil {
				t.Errorf("post receive: %v", err)
			}
			if err := c.QP.PostSend(rdma.SendWR{Op: rdma.OpSend, Imm: c.Imm}); err != nil {
				t.Errorf("post send: %v", err)
			}
		})
	}()
	for i := range uint64(messages) {
		for _, a := range asking {
			a.recv(i, 0, 8)
			a.post(rdma.SendWR{ID: i, Op: rdma.OpSend, Imm: uint32(i)})
			if c := a.takeRcvd(i, rdma.StatusOK); uint64(c.Imm) != i {
				t.Fatalf("answer %d, want %d", c.Imm, i)
			}
			a.takeSent(i, rdma.StatusOK)
		}
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Dispatch: %v", err)
	}
}

func newQP(t testing.TB, d rdma.Device, cq rdma.CompletionQueue) rdma.QueuePair {
	t.Helper()
	qp, err := d.NewQP(rdma.QPConfig{SendCQ: cq, RecvCQ: cq})
	if err != nil {
		t.Fatal(err)
	}
	return qp
}
