package rdma

// Waiter is a queue pair whose send queue can wait for the receives of another one by itself: cross-channel requests, as CORE-Direct
// calls them, by which a relay's part of a multicast can be posted before the first block has come (DSN paper, section 2). A caller looks
// for it by a type assertion. Standard verbs have no such request; vendors' extensions do.
type Waiter interface {
	QueuePair
	// PostSendAfter is PostSend of requests that do not begin before what they come after, nor does anything that is posted later. Their
	// memory may be that of the receives waited for: it is read when they begin. If the other pair goes into error before that, so does this
	// one, and the first of the requests completes with StatusAwaited. A device may need one more place in the send queue for the wait.
	PostSendAfter(after Receipts, wrs ...SendWR) error
}

// Receipts are the first Count messages that come to a queue pair and consume a receive there, counted from its beginning.
type Receipts struct {
	QP    QueuePair // of the same device
	Count uint64
}
