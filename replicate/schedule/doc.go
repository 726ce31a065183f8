// Package schedule says which member sends which block to which, and when, in a multicast of k blocks from one root to
// n-1 other members. It holds pure functions only.
//
// Time runs in steps. In one step a member sends at most one block and receives at most one. Each side
// computes the transfer alone, from its own rank and the step number: nothing is negotiated.
// In an asynchronous run each member does its sends in step order and expects its receipts in step order;
// a send waits until its block is there and its receiver has made room.
//
//	step        0       1        2        3
//	        0 -b0-> 1
//	                0 -b1-> 2
//	                1 -b0-> 3
//	                         0 -b2-> 1
//	                         2 -b1-> 3   ...      (binomial pipeline, n = 4)
//
// No schedule can be shorter than k-1+ceil(log2 n) steps: the root cannot release its last block before
// step k-1, and the holders of that block at most double with each step. [Hypercube], [Twin] and
// [Circulant], and with them [BinomialPipeline], reach this bound.
//
// A [Plan] is an algorithm for one group size and can be shared; [Plan.Schedule] adds the number of blocks:
//
//	plan, err := schedule.NewPlan(schedule.BinomialPipeline, 5)
//	s := plan.Schedule(64)
//	for step := uint64(0); step < s.Steps(); step++ {
//		if t, ok := s.Outgoing(rank, step); ok {
//			send(t.Peer, t.Block)
//		}
//	}
package schedule
