// Package rdma is the fabric of rdmcfs: one small interface in the words of verbs, and nothing above it.
//
// A [Device] registers memory ([Region]) and makes reliable-connected queue pairs ([QueuePair]) whose
// finished work shows up in completion queues ([CompletionQueue]). Addresses are exchanged by the
// caller's control channel. The providers are rdma/tcp (everywhere), rdma/mem (one process, seeded
// faults), rdma/verbs (libibverbs) and rdma/mixed, which chooses among several for each pair of nodes; rdma/rdmatest is
// the conformance suite that they all pass.
package rdma
