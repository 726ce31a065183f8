//go:build linux

// Package uring carries messages over TCP from and into memory that the kernel has really pinned: registered buffers
// of io_uring. It is for measuring what registration costs (lab/pinbench) and does no more than package pin
// needs: sends, writes with immediate, no reads, no waiting for a receiver that has posted nothing, no
// authentication.
//
// Registering a region is IORING_REGISTER_BUFFERS_UPDATE, which faults its pages in and pins them (VmPin of
// /proc/self/status counts them); its bytes move by IORING_OP_WRITE_FIXED and READ_FIXED on the socket, which use these
// pages and no page table. Unlike with other providers, a request completes when the socket has taken it, and the
// caller that polls a completion queue drives the device: one thread, locked to its goroutine, makes a device and all
// calls on it.
package uring
