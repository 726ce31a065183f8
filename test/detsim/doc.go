// Package detsim runs clusters of whole daemons in one process and in virtual time, with everything going wrong that
// can, and replays each run by its seed.
//
// What runs is node.Run, as cmd/rdmcfs calls it: the file system, replication, the multicast, the log, the state,
// TLS, calls, the content store, with all of their goroutines. Below it is a world that a seed decides (node.Host):
//
//	programs ── requests ──> fs            the kernel is a few calls: it caches nothing and passes nothing through
//	node.Run                               unchanged
//	  control, raft ── network             connections in memory: latency, cuts each way, TCP's time-outs
//	  multicast ── rdma/mem                the fabric in memory
//	  raft log ── simfs                    loses unsynced sectors and names with the power
//	  state ── meta in memory              keeps some of what was not synced when the power goes
//	  contents, identity ── files          a real directory; contents lose what was not synced with the power (remains)
//	  clock                                the bubble's; the machine's wall clock can be wrong by years
//
// A process that is killed goes on without a world: its connections have ended, and its successor has copies of its
// disks as they were at that moment. One that is stopped is held at its next call to the network or the fabric; its
// timers go on.
//
// The oracle looks from outside, with requests of programs only. What a close or an fsync acknowledged is what every
// other node that is well shows at that moment, byte for byte. At the end, when all faults are taken back, all nodes
// show the same, and what was acknowledged last. Then all are cut off from each other, and what each can read shows
// who really holds it.
//
// A run is a process of its own, built by package replay. Go's scheduler, select, maps and timers replay there.
package detsim
