// Package sim runs a whole cluster in one goroutine: one virtual clock, one source of randomness, the real cores.
//
// A run is named by its seed and nothing else: the same seed gives the same trace, event by event. The seed chooses the
// number of nodes, what clients do, and what goes wrong: processes killed at labelled points, power losses in the
// middle of a write, links that delay, lose and reorder, partitions, nodes that join, are evicted or replaced, a clock
// that is wrong by days or years. Reading another's clock takes no time here.
//
//	clients ── push, names ──┐                 what is real                    what is modelled
//	                         v
//	  life (a process) ── shell ── consensus.Core, PlanVoters       its goroutines, connections, timers
//	    │                      ├── raftlog on simfs                 latency of the disk
//	    │                      ├── meta.DB in memory                badger
//	    │                      ├── replicate.Stepped, SteppedRoot,  transport of calls, the reading of files
//	    │                      │   SteppedMember
//	    │                      └── rdmc.Stepped                     the fabric below it
//	  machine (a disk) ── simfs.Disk, crash clone of the DB, contents (durable or not)
//
// After every applied entry, and at many other moments, an observer that sees everything (oracle) holds the cluster
// against the guarantees of the design: equal state at equal index, nobody believed to hold what it lacks, one
// decision per session, nothing of a fenced incarnation published, exactly once, votes kept, nothing acknowledged lost.
// At the end all faults are taken back, and what is owed must be delivered.
//
//	r := sim.Run(sim.Options{Seed: 42})
//	if r.Err != nil { ... } // replay: go test ./internal/sim -run TestSeeds -sim.seed=42 -v
package sim
