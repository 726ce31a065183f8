// Package meta is the namespace of rdmcfs: names, inodes, versions, nodes, policies, and which node is owed
// which content, as a deterministic state machine over badger.
//
// Every node applies the same log of [Op] entries to its own database, so reads are local and two nodes
// at the same index hold the same bytes ([DB.Digest]). Nothing in apply looks at a clock, a random
// source or the machine: time comes from the entries, which the leader stamps.
//
//	proposal --> log --> Apply(index, entry) --> Result (to the proposer) + Events (to fs, replicate)
//
// A regular file's bytes are a content, named by the session that made it ([ContentID]). A publish
// entry makes a content the current version of an inode. Apply alone decides whether the entry takes effect, which
// nodes hold the content, and which are owed it.
package meta
