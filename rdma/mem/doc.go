// Package mem is the fabric inside one process, with seeded delays and faults: for tests of what is built
// on package rdma, and for simulation.
//
// A [Fabric] holds devices by name and one queue of events: a request reaches the peer, its
// acknowledgement comes back, a wait for a receive ends, a dead peer is noticed. The seed decides which pair is next;
// within a pair the order is kept.
//
//	PostSend -> [delay] -> executed at the peer -> [delay] -> completed here
//
// Free-running (the default), a goroutine delivers events in real time while any device is open.
// Stepped, nothing moves but by Step, on a virtual clock and without a goroutine: Connect and Close do not
// wait then, completion queues are polled, and the same seed and calls give the same history.
//
//	f := mem.NewFabric(mem.Config{Seed: 1, Stepped: true, DelayMax: time.Millisecond})
//	a, b := f.Device("a"), f.Device("b")
//	... make and connect queue pairs, post ...
//	for f.Step() {
//		... poll, let the programs under test react ...
//	}
//
// A simulator with timers of its own compares them with Next and does the earlier one first: an event of the fabric by
// Step, a timer of its own after Advance.
package mem
