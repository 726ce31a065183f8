package rdmatest

import (
	"context"
	"fmt"
	"testing"

	"github.com/rdmcfs/rdmcfs/rdma"
)

var costChecks = []check{
	{"Cost/NoAllocationPerBlock", costAllocations},
}

// exchange sends blocks from one end to the other, one at a time, without allocating itself.
type exchange struct {
	from, to *end
	sends    []rdma.SendWR
	recvs    []rdma.RecvWR
	out      []rdma.Completion
}

func newExchange(from, to *end, size int) *exchange {
	return &exchange{
		from: from, to: to,
		sends: []rdma.SendWR{{Op: rdma.OpSend, List: from.list(0, size)}},
		recvs: []rdma.RecvWR{{List: to.list(0, size)}},
		out:   make([]rdma.Completion, 1),
	}
}

func (x *exchange) once() error {
	if err := x.to.qp.PostRecv(x.recvs...); err != nil {
		return err
	}
	if err := x.from.qp.PostSend(x.sends...); err != nil {
		return err
	}
	for _, q := range [...]rdma.CompletionQueue{x.to.rcvd, x.from.sent} {
		for q.Poll(x.out) == 0 {
			if err := q.Wait(context.Background()); err != nil {
				return err
			}
		}
		if x.out[0].Status != rdma.StatusOK {
			return fmt.Errorf("rdmatest: exchange: %v", x.out[0].Status)
		}
	}
	return nil
}

// costAllocations: in steady state neither side allocates, whatever the size.
func costAllocations(t *testing.T, p *Pair) {
	if p.Allocates || raceEnabled {
		t.Skip("allocations are not counted here")
	}
	a, b := p.link(t, options{})
	for _, size := range []int{16, 64 << 10, 1 << 20} {
		x := newExchange(a, b, size)
		run := func() {
			if err := x.once(); err != nil {
				t.Fatal(err)
			}
		}
		for range 300 { // each slot of the queues once, and the growth of the CQs
			run()
		}
		if n := testing.AllocsPerRun(200, run); n != 0 {
			t.Errorf("%d bytes: %v allocations per block", size, n)
		}
	}
}
