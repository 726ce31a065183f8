// Package session is the protocol of one session: how a root brings a content to its members, which of them vote for
// it, and what happens when some of them fail. It is two pure state machines. Events go in and actions come out; there
// is no goroutine, clock, lock or I/O in it, and the time comes with the events.
//
//	        Announce ──────────────▶ Announced
//	Root    Send ═══ blocks ═══════▶ Whole          Member
//	        Poll ──────────────────▶ HashTold
//	        Stop ──────────────────▶ Stopped
//
// A [Root] asks its members which blocks they have (Announce), sends the blocks that some of them lack in one group
// (Send), and asks each for its vote (Poll). A member that fails, stalls or is silent is out, and the next epoch
// continues with the others. A [Member] stores blocks, checks them when all are here and it has their hash from the
// root, and then keeps its vote until the log has decided.
//
// A shell carries the actions out: it calls the members, makes the groups, owns the bytes, and hands the results to the
// machine. Package replicate has both shells, rootRun and memberRun. A shell calls Step with one event at a time,
// and carries out the actions in their order before it hands over the next event.
//
//	s := session.NewRoot(session.RootConfig{Members: members, Blocks: blocks, Limits: session.DefaultLimits()})
//	perform(s.Start(now())) // sends the results of the actions to events
//	for s.Phase() != session.RootEnded {
//		perform(s.Step(now(), <-events))
//	}
//
// The events and actions of the root are in rootevents.go, the events and actions of a member in member.go.
package session
