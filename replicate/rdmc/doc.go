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
// A message is a number of blocks of the group's block size; the last may be shorter. The root tells all
// members of a message out of band (the [Announcement]); it gives the blocks by a [Source], and each member
// takes them with a [Sink]. Only blocks named in the announcement move, so that after a failure a new
// group, of the survivors and the next epoch, carries on with the blocks that some survivor lacks.
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
// In an unannounced group, which is the papers' interface, members are told of nothing: [GroupConfig.Incoming] is
// asked for a sink when a message begins, or [Group.PostReceive] has said before where the next goes.
//
// # Small messages
//
// [Group.SendSmall] brings up to some KiB to all members without an announcement or a credit to wait for, in the
// order of the group's messages; [GroupConfig.Small] takes them, and [Group.WaitDelivered] tells the root. See
// small.go and docs/decisions/014.
//
// # Credits and buffers
//
// Nothing is sent to a peer that has not posted memory for it. A member posts the buffers of a bounded pool
// for its next receipts, in the order of the schedule, and tells each source how many blocks it may send
// in all ("ready for block"). A buffer holds its block until it is stored and no send of it is under way;
// then it stays as a cache for later sends until it is needed again. A block that has to be sent and is no
// longer cached is read back from the Source or Sink. Sends are done in the order of the schedule. By that
// order no set of finite pools can deadlock: see core.go for the argument, and the simulation that tests it.
//
// [GroupConfig.SendRate] caps what a member sends, by a token bucket (rate.go). Groups of one engine take turns, by
// bytes and by [GroupConfig.Priority] (share.go).
//
// # Failure
//
// A broken queue pair, a silent neighbour, a block that fails its check, a Source or Sink that fails, or
// [Group.Fail]: each ends the group. All members are told along the group's queue pairs; each unfinished
// transfer ends with a [GroupError] that names the suspects. What a member has by then is in [Transfer.Have]; package
// replicate has sessions that go on from there with the survivors. Silence is measured by the time that the watcher
// itself ran; a member that is done watches those that report to it until they are done too.
//
// # Goroutines
//
// An [Engine] has one poller goroutine for all its groups; it checks blocks and posts their relays in the
// same turn. Sources and Sinks are called by a few worker goroutines per group, never by the poller; only
// [Placed].Place may be, which does no more than arithmetic.
package rdmc
