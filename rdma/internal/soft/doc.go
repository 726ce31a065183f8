// Package soft holds what the software providers of the fabric share: regions with their states, the
// table that resolves local and remote keys, completion queues, and the two work queues of a pair.
//
//	post -> SendQueue / RecvQueue (slots own acquired pieces of regions)
//	     -> provider moves bytes
//	     -> Complete pops the oldest slot, releases its pieces, pushes into the CQ
//
// Nothing here starts a goroutine. Slots and their pieces are reused: once each slot of a queue has been used,
// posting and completing allocate nothing.
package soft
