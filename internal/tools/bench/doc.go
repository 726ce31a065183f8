// Package bench measures the multicast library between processes: memory to memory, over real or shaped links.
//
// A [Plan] has cases. [Local] runs them in processes of this machine, and [RunChild] does the part of one such process.
// [Links] are network namespaces made by test/netns/netns.sh. [Iperf] measures the pace of TCP on them, for comparison.
package bench
