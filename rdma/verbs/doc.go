// Package verbs is the fabric over libibverbs: InfiniBand and RoCE devices.
//
// The library is loaded when a caller asks for the first device. This needs neither headers nor a C compiler. On a
// machine without the library the caller gets ErrNoLibrary. The build tag nordma leaves all of it out: then every call
// returns ErrNotBuilt, and the program needs no C library at all.
//
//	PostSend -> send queue (shadow) -> ibv_post_send ~~~ device ~~~ ibv_poll_cq -> shadow -> soft.CQ
//
// # Queues
//
// The device's queues hold the requests; a shadow of each remembers what a request uses and how it is to
// complete. A completion queue of the fabric is a growing list of device queues: each pair reserves room in
// one for everything it may post, so none ever overflows. One goroutine per device sleeps in Go's poller
// on the completion channel and moves completions. A caller that polls an empty queue moves them itself.
//
// # Failure
//
// The first error completion, an event of the device (pair in error, port down, device removed), a
// farewell of the peer, or Abort puts a pair into error. A goroutine of the pair then takes it from the
// device, and only after that completes the remaining work, in order: no byte is touched later. The device repeats a
// send that waits for a receive without end; the pair itself counts ReceiverTimeout.
//
// # Connecting
//
// Addresses carry queue pair number, first packet number, GID, LID and MTU, and a secret. Both sides bring
// their pairs up and then tell each other by datagrams (one unreliable-datagram queue pair per device),
// repeated until answered, each with a proof that its sender knows both secrets:
//
//	ready{to, from, seen, proof} <-> ready{to, from, seen, proof} ... gone{to, from, proof}
//
// # Regions
//
// A region with remote rights is registered twice, once for local and once for remote use, so it can be
// withdrawn from peers while posted work goes on. Remote addresses are offsets into the region.
package verbs
