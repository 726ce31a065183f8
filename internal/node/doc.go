// Package node wires one node together: the data directory, the log and its state machine, the fabric, the
// transfers, the mounts, and the socket that the command line talks to.
//
//	admin socket ─┐                      ┌─ fs mounts ──── kernel
//	              node ── proposer ── consensus ── machine ── meta
//	control port ─┘            └─ replicate ── rdmc ── rdma
//
// It decides little itself: which nodes are up (leader.go), and in which order things start and end (node.go).
//
// # Types
//
// The type node opens and closes the parts, and tells them what the log applied. Each other type has one task, and only
// the parts that it needs:
//
//	lifetime                        what ends the node, and the goroutines that it waits for
//	admission                       how the cluster lets this node in, also from a new address
//	stateHealth, digests            whether this node's state is right, and what replaces a wrong one
//	members, peerAddresses          the nodes of the cluster, and where they listen
//	proposer, anonymous             proposals of an incarnation, and those of none
//	clock, signing, keyFetch        the cluster's time and its signing key
//	authority                       joins, tokens and certificates
//	duties                          what a leader does: who is up, and what has expired
//	evictions, drains               nodes that leave; losses and strayFiles are what would leave with them
//	damage                          damaged contents, here and elsewhere
//	cluster, replicaLog             the node as packages fs and replicate see it
//	devices, liveGroups, mounts     the fabric, groups whose members live, mount points
//
// What the command line asks for is answered by (handlers.go):
//
//	statusReport                    status: of nodeReport, transfers, damage and warnings
//	watchReport                     watch, by the watchers
//	versions, restorer              kept versions, removed files and unpublished bytes, and bringing them back
//	holdings, waits                 where a file is, and when nothing is owed any more
//	policies                        the policies of directories
//	paths                           for all of these: from paths to inodes and back
package node
