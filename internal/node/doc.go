// Package node wires one node together: the data directory, the log and its state machine, the fabric, the
// transfers, the mounts, and the socket that the command line talks to.
//
//	admin socket ─┐                      ┌─ fs mounts ──── kernel
//	              node ── proposer ── consensus ── machine ── meta
//	control port ─┘            └─ replicate ── rdmc ── rdma
//
// It decides little itself: which nodes are up (leader.go), and in which order things start and end (node.go).
package node
