package soft

import (
	"fmt"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// depthDefault is the depth of a work queue whose configuration names none.
const depthDefault = 128

// Queues makes the two work queues of qp after checking cfg against the limits.
func Queues(t *Table, l rdma.Limits, cfg rdma.QPConfig, qp rdma.QueuePair) (SendQueue, RecvQueue, error) {
	scq, ok1 := cfg.SendCQ.(*CQ)
	rcq, ok2 := cfg.RecvCQ.(*CQ)
	if !ok1 || !ok2 {
		return SendQueue{}, RecvQueue{}, fmt.Errorf("soft: queue pair without completion queues of its device: %w",
			rdma.ErrRequest)
	}
	sd, rd := cfg.SendDepth, cfg.RecvDepth
	if sd == 0 {
		sd = depthDefault
	}
	if rd == 0 {
		rd = depthDefault
	}
	if sd < 1 || rd < 1 || sd > l.MaxQueueDepth || rd > l.MaxQueueDepth {
		return SendQueue{}, RecvQueue{}, fmt.Errorf("soft: queue depths %d and %d, limit %d: %w", sd, rd, l.MaxQueueDepth,
			rdma.ErrRequest)
	}
	return NewSendQueue(t, l, sd, scq, qp), NewRecvQueue(t, l, rd, rcq, qp), nil
}
