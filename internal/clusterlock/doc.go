// Package clusterlock keeps the file locks of one node's programs so that they hold between nodes.
//
// # Who decides
//
// For each file, one of two decides about locks (package meta has the other half, decision 044 the reasons):
//
//		          first lock of any node                a second node asks
//		nobody --------------------------> delegated ----------------------> the log
//		   ^                               to a node      ReturnLocks           |
//		   +--------------------------------------------------------------------+
//		                      nothing is held and nobody waits
//
//	  - Delegated: the node's own table decides. No log entry is made, however often its programs lock.
//	  - The log: each request and each unlock is an entry. The node's table is a copy of what its own programs hold.
//
// A node gives a delegation back when the log recalls it, and when a program would wait for a record lock: only the
// log sees circles of owners that wait for each other.
//
// # When a program is told
//
// A node that stood still, or was cut off, does not know that it was fenced. So each lock, whoever granted it, is told
// to the program only when a quorum has said, after the lock was granted, that this incarnation of the node is up
// ([Log].Confirm). Calls that wait for that at the same time share a round.
//
// # What is lost
//
// When the incarnation ends, all locks of the node's programs end with it. An open file that had one is lost: each
// later call to lock it fails, until it is closed. What was written under an exclusive lock is not published under
// another incarnation ([Locks.Guard]): the next holder may have changed the file.
package clusterlock
