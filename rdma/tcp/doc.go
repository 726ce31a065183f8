// Package tcp is software verbs over TCP: the fabric of rdmcfs on machines without RDMA.
//
// Each queue pair has one TCP connection. A request is a header of 40 bytes and its payload, written with
// one vectored write; the receiving side reads the payload with one vectored read straight into the
// posted receive or the remote region, and the next header behind it.
//
//	PostSend -> send queue -> outbox -> writev ~~~ readv -> receive / region -> completion
//	completion <- book <- ack and credit (in every frame) <- executed, posted
//
// # Acknowledgements and credits
//
// Every frame carries how many requests its sender has executed and how many receives it has posted. So a
// send completes when the peer has placed it, and goes on the wire only when a receive waits for it: a receiver that
// is not ready never blocks the stream. Bare acknowledgements are sent when a reader is about to block and for every
// 16 requests or 1 MiB.
//
// # Waiting
//
// Each pair has a goroutine that reads; it waits in the runtime's poller. In a process with one processor a pair that
// talks only in small frames is read by the device's watch instead: one goroutine for all of them, which polls before
// it waits as long as answers come soon (watch.go, eager.go). Once in a millisecond it lets the runtime look at the
// other connections (glance.go).
//
// # Failure
//
// A request that the peer must refuse is answered by a last frame that names the status. Everything else
// (a dead peer, a broken stream, Abort) ends the connection. Either way work completes only when neither
// goroutine of the pair touches its memory any more.
//
// # Connecting
//
// One listening port may serve TLS and data: the first byte tells which it is (PreambleByte), and Serve takes the
// connection over. Of the two ends, the one with the smaller token dials, or the one that cannot be dialled. Both ends
// prove that they know both secrets:
//
//	dialer -> hello{to, from, nonce, proof(secret of acceptor)} -> acceptor
//	dialer <- accept{credit, nonce, proof(both secrets)}        <- acceptor
//	dialer -> confirm{credit, proof(both secrets)}              -> acceptor
package tcp
