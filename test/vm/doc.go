// Package vm has the tests that need a whole machine with an RDMA device: clusters of real nodes over libibverbs.
// They run in the virtual machine of run.sh; see docs/TESTING.md.
package vm
