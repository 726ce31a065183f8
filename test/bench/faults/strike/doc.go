// Package strike replicates files between processes as the daemon does, and strikes one of them in the middle of a
// file, for test/bench/faults and the tests beside it.
//
// A [Plan] says which node is struck, how and when. [Run] starts the processes, keeps the log, strikes and compares
// bytes; [RunMember] is such a process's part. A [Result] says which node heard of it when, and what it cost.
package strike
