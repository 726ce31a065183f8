// Package rdmc multicasts large messages from one root to the other members of a group by relaying blocks
// between all of them (RDMC: Behrens, Jha, Birman, Tremel: "RDMC: A Reliable RDMA Multicast for Large
// Objects", DSN 2018). It works over any rdma.Device and knows nothing of files.
//
// # Groups and messages
//
// A [Group] is a root (rank 0) and its members in a fixed order, for one epoch. It is long-lived and carries
// any number of messages, first in first out. Its queue pairs join each member with its neighbours in the
// schedule; they belong to this group and epoch alone and end with it. The addresses of queue pairs are
// carried between members by the caller: [Group.Addresses], then [Group.Connect].
//
// A message is a number of blocks of the group's block size; the last may be shorter. The root announces a message
// to all members out of band (the [Announcement]). It reads the blocks from a [Source], and each member writes them to
// a [Sink]. Only the blocks that the announcement names move. So after a failure a new group, which has the survivors
// and the next epoch, continues with the blocks that some survivor lacks.
//
//	root                                    member
//	g.Send(Outgoing{Size, Blocks, Source})
//	      --- announcement, out of band -->  g.Receive(announcement, Receiver{Sink, Have})
//	      <-- ready for block (credit) ----
//	      --- block, block, block --------->  checked, relayed, stored
//	      <-- progress, along a tree ------
//	t.Wait(ctx)                              t.Wait(ctx)
//	g.Close(ctx)                             g.Close(ctx)
//
// [Group.Close] is a barrier: if it succeeds, every message of the group was delivered to every member.
//
// In an unannounced group, which is the papers' interface, members learn of a message when it begins. The group then
// asks [GroupConfig.Incoming] for a sink.
//
// # Small messages
//
// [Group.SendSmall] sends up to some KiB to all members, in the order of the group's messages, and waits for neither an
// announcement nor a credit. [GroupConfig.Small] receives such messages, and [Group.WaitDelivered] tells the root when
// all members have them. See core/small.go and docs/decisions/014.
//
// # Credits and buffers
//
// Nothing is sent to a peer that has not posted memory for it. A member posts the buffers of a bounded pool
// for its next receipts, in the order of the schedule, and tells each source how many blocks it may send
// in all ("ready for block"). A buffer holds its block until the block is stored and no send of it is under way.
// Then the block stays cached for later sends until the buffer is needed again. A block that has to be sent and is no
// longer cached is read back from the Source or Sink. Sends are done in the order of the schedule, and because of that
// order no set of finite pools can deadlock: [core.Member] has the argument, and a simulation tests it.
//
// [GroupConfig.SendRate] caps what a member sends, by a token bucket. Groups of one engine take turns, by bytes and by
// [GroupConfig.Priority]: package share.
//
// # Failure
//
// Each of these ends the group: a broken queue pair, a silent neighbour, a block that fails its check, a Source or Sink
// that fails, and [Group.Fail]. All members hear of it along the group's queue pairs, and each unfinished transfer ends
// with a [GroupError] that names the suspects. [Transfer.Have] tells which blocks a member has by then; package
// replicate has sessions that continue from there with the survivors. Silence is measured by the time during which the
// watcher itself ran. A member that is done watches the members that report to it until they are done too.
//
// # Core and shell
//
// Package core is the state machine of a member, and package share decides whose turn it is to send: values in, values
// out. This package is the shell around both. It has the locks, the clock, the queue pairs, the block buffers and the
// goroutines that call the user's code.
//
// # Goroutines
//
// An [Engine] has one poller goroutine for all its groups; it checks blocks and posts their relays in the
// same turn. A few worker goroutines per group call Sources and Sinks. The poller never does; it may call only
// [Placed].Place, which does no more than arithmetic.
package rdmc
