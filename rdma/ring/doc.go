// Package ring carries small messages by RDMA write, as Liu, Wu, Kini, Wyckoff and Panda describe it ("High Performance
// RDMA-Based MPI Implementation over InfiniBand"), over any [rdma.Device] with one-sided writes.
//
// An [Endpoint] belongs to one device. It makes [Channel]s, each joined with one of a peer. A channel has two ways
// for its messages, and keeps one order over both:
//
//	ring          slots here  --RDMA write-->  the same slots there     seen by any caller that polls the memory
//	send/receive  a staged buffer  --send-->   a posted receive         seen in the completion queue
//
// # The ring (section 4.1 to 4.4)
//
// Each slot at the sender belongs to one slot at the receiver for good, so the receiver need not send an address for a
// write. A message is one write of head word, header, bytes and tail word. The receiver polls the head word of the next
// slot and finds the tail word by the size in it. It takes the message when the tail word has the value that the head
// word names. There are two such values, and the sender uses the one that was not in the tail's place before: its own
// slot has the same bytes, so it knows. Where a device does not order writes, the head word is a second write.
//
// Every message carries credits: running counts of slots and receives that are free again. They are sent in a message
// of their own only when half of them are unreported. If a ring has no free slot, the next message goes by
// send/receive.
//
// # Order (4.5)
//
// Messages are numbered over both ways. What arrives early waits in its slot or its receive.
//
// # The polling set (4.6)
//
// A sender may use the ring only while the receiver polls it. The receiver says when: it takes a channel into its
// polling set when messages come while somebody polls, within a limit. It takes the channel out when another one has
// more traffic, or when nobody polls any more. A channel is out when the sender has confirmed it; the receiver then
// finds what the sender wrote before, so nobody has to poll for it. So send/receive wakes a program that sleeps, and
// the ring serves one that polls.
//
// # Streams
//
// A [Conn] is a net.Conn over a channel. It cuts what is written into messages of up to Config.EagerBytes, which are
// copied at both ends. The paper's way for large messages, without a copy (section 3), is not here: no program needed
// it.
//
// # Who runs what
//
// A caller that waits (Read, Write) polls for Config.Spin itself, for all channels of the endpoint. Otherwise
// one goroutine waits at the completion queue, and one looks after polling that stopped and peers that are silent.
// Both belong to the endpoint, and end in its Close.
//
// Lock order: the right to poll (Endpoint.poll), then Channel.mu. Posting under them never waits for the wire.
//
//	e, err := ring.NewEndpoint(dev, ring.Config{})
//	c, err := e.NewChannel()
//	... exchange c.Address() with the peer ...
//	err = c.Connect(ctx, remote)
//	conn := ring.NewConn(c, nil) // a net.Conn
package ring
