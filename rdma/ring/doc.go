// Package ring carries small messages by RDMA write, as Liu, Wu, Kini, Wyckoff and Panda describe it ("High Performance
// RDMA-Based MPI Implementation over InfiniBand"), over any [rdma.Device] with one-sided writes.
//
// An [Endpoint] belongs to one device. It makes [Channel]s, each joined with one of a peer. A channel has two ways
// for its messages, and keeps one order over both:
//
//	ring          slots here  --RDMA write-->  the same slots there     seen by whoever polls the memory
//	send/receive  a staged buffer  --send-->   a posted receive         seen in the completion queue
//
// # The ring (section 4.1 to 4.4)
//
// Each slot at the sender belongs to one slot at the receiver for good, so a write needs no address to be told. A
// message is one write of head word, header, bytes and tail word. The receiver polls the head word of the next slot,
// finds the tail word by the size in it, and takes the message when that has the value which the head word names. Of
// two values the sender takes the one that the tail's place did not have before: its own slot knows, having the same
// bytes. Where a device places writes in no order the head word is a second write.
//
// Credits, running counts of slots and receives that are free again, ride in every message; a message of its own
// tells them only when half are untold. A ring without a free slot makes the next message go by send/receive.
//
// # Order (4.5)
//
// Messages are numbered over both ways. What arrives early waits in its slot or its receive.
//
// # The polling set (4.6)
//
// A sender may use the ring only while the receiver polls it. The receiver says so: it joins a channel when messages
// come while somebody polls, within a limit and by a [Policy], and leaves it when another has more traffic or when
// nobody polls any more. A leave is over when the sender has confirmed it; what it wrote before is found then, so
// nobody has to poll for it. So a program that sleeps is woken by send/receive, and one that waits busily is served
// by the ring.
//
// # Large messages (3)
//
// Up to Config.EagerBytes a message is copied; above, [Channel.SendFrom] offers it, the receiver grants a region by
// [Channel.Accept], and the bytes are written there without a copy. Offer, grant and end take the ring as messages do.
//
// # Who runs what
//
// A caller that waits (Recv, Send, Conn) polls for Config.Spin itself, for all channels of the endpoint. Otherwise
// one goroutine waits at the completion queue, and one looks after polling that stopped and peers that are silent.
// Both belong to the endpoint, and end in its Close.
//
// Lock order: the right to poll (Endpoint.poll), then Channel.mu. Posting under them never waits for the wire.
//
//	e, err := ring.NewEndpoint(dev, ring.Config{})
//	c, err := e.NewChannel()
//	... exchange c.Address() with the peer ...
//	err = c.Connect(ctx, remote)
//	conn := ring.NewConn(c, nil) // a net.Conn, or c.Send and c.Recv
package ring
