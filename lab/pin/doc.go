// Package pin registers memory for transfers in the ways of Woodall, Shipman, Bosilca and Maccabe, "High performance
// RDMA protocols in HPC": copy in and out of registered buffers, registration on demand, a cache of registrations,
// the pipeline that registers the next fragments while this one is written, and the pipeline that keeps its
// registrations.
//
// A [Domain] holds all registrations of a device within a budget of bytes. A registration is used until its [Pin] is
// released. A kept one then stays until others need the bytes (the ones unused for longest go first), or until
// Invalidate says that its memory changes: it is unmapped, or is a file that gets shorter. One in use is only marked
// then; its users hear of it, and it goes when the last one ends.
//
// A [Link] carries messages over a queue pair by any [Strategy]. Without one end's registration nothing is written:
//
//	sender                                receiver
//	MATCH + eager bytes            ->     memory for it; registers its first fragments
//	                               <-     ACK: where the first fragment begins and ends
//	DATA up to the first fragment  ->     copies
//	                               <-     READY fragment 0: key, address
//	registers, writes fragment 0   ->     deregisters, registers the next, READY ...
//	                               <-     DONE
//
// What is registered already is announced at once, with the ACK or in one READY for several fragments, of which only
// the last is written with an immediate. What the sender finds registered too, in one piece at both ends, goes in one
// write. Memory of messages that was found in several pieces for the second time is registered as one, and the pieces
// go. If a receiver finds that, fragments begin as early as they can, and the sender stops its copies.
package pin
