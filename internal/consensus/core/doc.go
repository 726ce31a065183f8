// Package core is raft as values: it decides, and does nothing. A [Core] takes ticks, messages and proposals, and says
// what to send, to persist and to apply; package consensus does that. Beside it are the time of the cluster ([Clock])
// and the choice of the voters ([PlanVoters]).
//
// Raft itself is go.etcd.io/raft. Core keeps it from what would make it panic: a message is checked against this node's
// log first.
package core
