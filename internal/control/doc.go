// Package control carries everything that nodes say to each other except file data. It has the one listening port,
// the calls between members, the raw connections of consensus, and the join of a new machine.
//
// # One port
//
// A node listens on one TCP port. The first byte of a connection, which is looked at and not taken, decides:
// 0x16 begins TLS; anything else is a data connection of the fabric and goes to the raw handler as it is. Within
// TLS 1.3 the application protocol (ALPN) decides:
//
//	rdmcfs-peer/1    calls                             mutual TLS
//	rdmcfs-raft/1    bytes, handed to consensus        mutual TLS
//	rdmcfs-renew/1   a new certificate                 mutual TLS; the caller's certificate may have expired
//	rdmcfs-fabric/1  agreement on a better connection  mutual TLS; then one of the first two within it, see Fabric
//	rdmcfs-join/1    the first certificate             a token instead of a certificate
//
// Connections whose other end has not said yet who it is are bounded in number and time. When there are too many, the
// oldest is closed.
//
// # Frames
//
// After TLS each side of every protocol sends a hello frame: the dialer first, then the acceptor, who may say
// goodbye with a reason instead. Then raft's connection is bytes; the others exchange frames, big endian:
//
//	 0  length   u32  bytes of payload after the header
//	 4  type     u8   1 hello, 2 goodbye, 3 call, 5 reply, 6 error, 10 cancel
//	 5  zero     u8x3
//	 8  id       u64  of the call, given by the caller, not that of a running one; 0 in hello and goodbye
//	16  argument u32  call: kind; error, goodbye: code; else 0
//	20  timeout  u32  call: milliseconds the caller waits, 0 = no limit; else 0
//	24  payload       hello: see docs/WIRE.md; error, goodbye: text; call, reply: opaque
//
// A connection carries calls one way only, so a server may stop reading while its handlers are busy without
// holding up answers. Calls run at the same time and end in any order. This package repeats no call: a call on a
// connection that broke fails, and the caller knows whether to repeat it.
//
// Why not HTTP/2: docs/decisions/003-peer-rpc.md.
//
// # Use
//
//	port, err := control.Listen(control.PortConfig{Addr: "10.0.0.1:7400", Identity: id, Server: server, ...})
//	server.HandleCall(kindAnnounce, func(ctx context.Context, from control.Caller, payload []byte) ([]byte, error) {...})
//	peers := control.NewPeers(control.PeersConfig{Identity: id, Resolve: addressOf})
//	answer, err := peers.Call(ctx, 3, kindAnnounce, payload)
package control
