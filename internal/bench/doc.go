// Package bench measures the multicast library between processes: memory to memory, over real or shaped links.
//
// A [Plan] has cases; [Local] runs them in processes of this machine, [RunChild] is such a process's part. [Links]
// are network namespaces made by test/netns/netns.sh; [Iperf] gives the time that one TCP stream takes for the same
// bytes, as the measure. [Fault] strikes a member in mid-message and tells what that costs.
package bench
