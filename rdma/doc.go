// Package rdma is the fabric of rdmcfs: one small interface in the words of verbs, and nothing above it.
//
// A [Device] registers memory ([Region]) and makes reliable-connected queue pairs ([QueuePair]) whose
// finished work shows up in completion queues ([CompletionQueue]). Addresses are exchanged by the
// caller's control channel. The providers are rdma/tcp (everywhere), rdma/mem (one process, seeded
// faults) and rdma/verbs (libibverbs); rdma/rdmatest is the conformance suite they all pass.
package rdma
