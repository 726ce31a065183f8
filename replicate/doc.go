// Package replicate decides which nodes get a version, pushes it to them, and catches up the nodes that missed it.
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
// The sides have types of their own for what is one task. Those of [Member] are, each above the ones that it uses:
//
//	Member               answers announce, put, begin, finish and stop
//	  reconciler         what of what the log says about this node is wrong, and reports it
//	    verdicts         carries out what the log decides
//	      fencedBlocks   blocks of fenced sessions, kept for a while
//	        votes        contents that were stored and are not decided
//	      retirements    contents that nothing names any more, until they are deleted
//	      mender         damaged, missing and unchecked contents, and long chains of deltas
//	  contentServer      gives contents to other nodes
//	    memberRuns       the sessions that run
//	    applied          what the log says, as far as it was applied here
//
// Two calls go up, and are fields: verdicts.report and mender.settle.
//
// # Sessions
//
// A push is a session: its content id is {writer, incarnation, number}. How the bytes travel depends on their number.
// An empty file has none to move. Up to [meta.MaxInline] bytes may travel in the log entry. Up to 1 MiB go to each
// member in one call, whose answer is the vote, unless a group of these members is there already and takes less of the
// writer's link. More are announced and then multicast, in groups that are kept for each set of members. Of a version
// made from a base that the members hold, only the pages that differ travel.
//
// Package [session] decides, by pure state machines, what root and members do in a session. rootRun and memberRun are
// their shells: they own the goroutines, the transfers and the bytes.
//
// A member that fails, stalls, or is silent while others answer is out of its session. The root begins the next epoch
// with the other members. They report which blocks they have, and only missing blocks are sent again. The publish names
// the members that are out, with the reasons. The log records that they are owed the content, and catch-up delivers it,
// however long that takes and whichever node restarts. If too few members are left for the publish, and only then, the
// root asks lost members again that the log lists as up. It asks them last, so that a member that is back does not slow
// down the others.
//
// # Votes
//
// "Stored" is a vote. Before a member says it, the bytes are checked against the root and durable. The member keeps
// them, across restarts, until the log decides the session. Nothing else releases a vote. One goroutine behind
// [Replicator.Applied] carries out what the log decides, in order; [New] judges again what a crash interrupted.
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
