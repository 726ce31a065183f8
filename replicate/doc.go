// Package replicate decides which nodes get a version, pushes it to them, and catches up those that missed it.
//
// # Parts
//
// A [Replicator] is the replication of one node. It has four sides:
//
//	        Publish                                             OpenContent
//	           │                                                     │
//	┌──────────▼─────────┐    announce, finish, put     ┌────────────▼───────────┐
//	│ Pusher  (writer)   │ ───────────────────────────▶ │ Member  (every node)   │
//	│ session.Root       │ ═══ blocks, by rdmc ═══════▶ │ session.Member         │
//	└──────────┬─────────┘                              └────────────▲───────────┘
//	           │ Propose(publish), Barrier                           │ Applied(events): commit, abort,
//	           ▼                                                     │ fence, retire
//	         the log ────────────────────────────────────────────────┘
//	           │ owed
//	┌──────────▼─────────┐          work                ┌────────────────────────┐
//	│ assigner (leader)  │ ───────────────────────────▶ │ supplier (any holder)  │ ═══▶ Members
//	└────────────────────┘                              └────────────────────────┘
//
// # Sessions
//
// A push is a session: its content id is {writer, incarnation, number}. How the bytes travel depends on their number:
// an empty file has none to move; up to [meta.MaxInline] may ride in the log; up to 1 MiB go to each member in one call
// whose answer is the vote; more are announced and then multicast in groups that are kept per set of members. A version
// made from a base that the members hold travels as the pages that differ.
//
// What root and members do in a session is decided in package [session], by pure state machines. rootRun and memberRun
// are their shells: they own the goroutines, the transfers and the bytes.
//
// A member that fails, stalls or answers nothing while others do is out of its session: the root begins the next
// epoch with the others, which tell what they have, and only what somebody lacks is sent again. The publish names who
// is out, with the reason; the log owes it the content, and catch-up brings it, however long that takes and whoever
// restarts. Only when too few are left for the publish, members that were lost and that the log holds up are asked
// again, after the others: a member that is back does not slow down those that are well.
//
// # Votes
//
// "Stored" is a vote: the bytes are checked against the root and durable before it is said, and kept until the log
// decides the session, across restarts. Nothing else releases it. What the log decides is carried out behind
// [Replicator.Applied] by one goroutine, in order; what a crash interrupts is judged again by [New].
//
// # Example
//
//	r, err := replicate.New(replicate.Config{Self: lease, Names: db, Log: log, Peers: peers,
//		Groups: replicate.Multicast(engine), Store: store, IsLeader: isLeader})
//	// control plane: answer, err := r.Handle(ctx, from, kind, payload)
//	// after each applied entry: r.Applied(events); after a snapshot: r.Restored()
//	out, err := r.Publish(ctx, replicate.Push{Ino: ino, Base: base, Size: size, Source: file, Data: data})
//	err = r.Close()
//
// docs/WIRE.md (Replication) has the messages.
package replicate
