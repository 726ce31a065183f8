// Package bench measures the multicast library between processes: memory to memory, over real or shaped links.
//
// [RunMember] is one process's part; it meets the others in a rendezvous room that rank 0 hosts. [Links] are
// network namespaces made by test/netns/netns.sh; [Iperf] gives the time that one TCP stream takes for the same
// bytes, as the measure. [Multicast] starts a member on each node and gathers their results:
//
//	links, err := bench.NewLinks(ctx, script, "bench", 8, "200mbit")
//	defer links.Close()
//	result, err := bench.Multicast(ctx, links, member, bench.MemberConfig{Size: 128 << 20, Messages: 10})
package bench
