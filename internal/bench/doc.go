// Package bench measures the multicast library between processes: memory to memory, over real or shaped links.
//
// A [Plan] has cases; [Local] runs them in processes of this machine, [RunChild] is such a process's part. [Links]
// are network namespaces made by test/netns/netns.sh; [Iperf] is the pace of TCP on them, as the measure.
package bench
