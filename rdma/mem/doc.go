// Package mem is the fabric inside one process, with seeded delays and faults: for tests of what is built
// on package rdma, and for simulation.
//
// A [Fabric] holds devices by name and one queue of events: a request reaches the peer, its
// acknowledgement comes back, a wait for a receive ends, a dead peer is noticed. Between pairs the seed
// decides what is next; within a pair order is kept.
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
// A simulator with timers of its own compares them with Next: the earlier one is done first, by Step or by
// Advance and its own means.
package mem
