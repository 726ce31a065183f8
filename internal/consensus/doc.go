// Package consensus orders the operations of a cluster: one replicated log, applied by every node.
//
// A few nodes, 1, 3 or 5, are voters and run raft. All others are observers: they run no raft, they follow
// the committed log of a voter and apply it. Each node hands the same entries in the same order to its
// [StateMachine], so what is read locally is always a prefix of one history.
//
//	   proposer (any node)                    leader (a voter)                other voters
//	Propose --------- forwarded --------> stamp time, batch, append ------> append, fsync
//	   |                                     | fsync in parallel    <------ acknowledged
//	   |                                  committed: apply          ------> apply
//	   |      <------ committed entries, in batches (follow stream) ------> observers apply
//	own apply: result handed to Propose
//	   | wait for visible (close-to-open)
//	Barrier --------------------------->  progress[node]{applied, synced, visible}
//	   |      <------ nodes that did not get there in time
//
// No result travels: the state machine is deterministic, so a proposer takes the result of its own apply. A proposal
// carries {origin, run of the process, number}, by which the origin finds the waiting call when it applies the entry. A
// proposal without an answer is proposed again with the same bytes (after a change of leader, or a lost reply): the
// state machine must recognise repetitions, and answer them with the first result.
//
// The protocol core (package core) wraps raft as a value: messages, ticks, proposals and "this is on disk now" in; what
// to write, send and apply out. It has no clock, goroutine, disk or socket, so a simulator can drive many of them with
// one seed. [Node] is the shell around it: the log on disk (package raftlog), the ticker, the connections, the
// goroutine that calls the state machine.
//
// A node that was given an identity keeps it only together with its log: see [Open] for what happens to a node whose
// log is missing, damaged or shorter than what it once promised.
//
//	n, err := consensus.Open(consensus.Config{Dir: dir, Identity: id, StateMachine: sm, Dial: dial})
//	...
//	p, err := n.Propose(ctx, data, consensus.ProposeOptions{Announce: true})
//	// p.Result is what Apply returned here.
//	behind, err := n.Barrier(ctx, p.Index, consensus.ProposeOptions{Announced: true})
//	// behind names the nodes that have not made it visible.
package consensus
