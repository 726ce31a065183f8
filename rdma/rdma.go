package rdma

import (
	"context"
	"errors"
	"io"
)

// Errors that a caller can act on. Providers wrap them with the operation and the object.
var (
	// ErrClosed is returned by every call on a closed device, region, queue pair or completion queue.
	ErrClosed = errors.New("rdma: closed")
	// ErrQueueFull is returned by a post that the queue has no room for; nothing of that call was posted.
	ErrQueueFull = errors.New("rdma: queue full")
	// ErrState is returned by a call that the state of the queue pair or region does not allow.
	ErrState = errors.New("rdma: wrong state")
	// ErrBounds is returned when a local scatter/gather entry lies outside its region.
	ErrBounds = errors.New("rdma: outside the region")
	// ErrRequest is returned by a post whose request is malformed or beyond the device's Limits.
	ErrRequest = errors.New("rdma: bad request")
)

// Access says what others may do with a region. Local read and write are always allowed.
type Access uint8

// The remote rights of a region.
const (
	RemoteRead Access = 1 << iota
	RemoteWrite
)

// Limits are what a device can do; posts beyond them fail before they reach the wire.
type Limits struct {
	MaxQueueDepth int // work requests per queue
	MaxSGE        int // scatter/gather entries per work request
	MaxInline     int // bytes that a send can carry without a region
	MaxMessage    int // bytes of one work request
	// SealsCRC says that SendWR.SealCRC takes effect.
	SealsCRC bool
}

// Device is one fabric endpoint of this process: a NIC port, or its software equal.
// All methods may be called from several goroutines.
type Device interface {
	// Name names the provider and the device, such as "tcp" or "verbs:rxe0/1".
	Name() string
	Limits() Limits
	// OrderedWrites reports whether the last aligned 8-byte word of a remote write becomes visible, in
	// one piece, after all its other bytes, so that a flag at its end may be polled (Liu et al., section
	// 4.2). A write of exactly one aligned word is atomic on every provider: that is how counters work.
	OrderedWrites() bool
	// AllocRegion maps size bytes of anonymous memory outside the Go heap and registers them.
	// The region owns the memory; Close frees it.
	AllocRegion(size int, access Access) (Region, error)
	// Register registers memory that the caller mapped and keeps mapped until the region is closed.
	Register(mem []byte, access Access) (Region, error)
	// NewCQ makes a completion queue with room for depth completions. More of them cost memory but are
	// never lost.
	NewCQ(depth int) (CompletionQueue, error)
	// NewQP makes a reliable-connected queue pair in state Reset.
	NewQP(QPConfig) (QueuePair, error)
	// Close ends all queue pairs of the device with flushed completions and frees everything.
	io.Closer
}

// RegionKey names a region to a remote peer. Zero names none.
type RegionKey uint64

// Region is registered memory. States: live, stale (no new posts), draining (posted work goes on),
// deregistered, unmapped.
type Region interface {
	// Bytes is the memory. It must not be touched after Close has returned.
	Bytes() []byte
	// Key is the remote key, for peers that may read or write here.
	Key() RegionKey
	// Invalidate makes the region stale: later posts on it and later remote accesses fail.
	// It does not wait.
	Invalidate()
	// Close waits until no posted work uses the region, then deregisters it; remote accesses under way
	// are cut off. The owner brings its queue pairs into error first if the work may never end.
	io.Closer
}

// SGE is a piece of a region.
type SGE struct {
	Region Region
	Offset int
	Length int
}

// Opcode is what a work request or a completion is about.
type Opcode uint8

// The operations of a reliable-connected queue pair.
const (
	OpSend         Opcode = iota + 1 // with immediate; consumes a receive at the peer
	OpWrite                          // one-sided, unseen by the peer
	OpWriteImm                       // one-sided, and consumes a receive at the peer
	OpRead                           // one-sided
	OpRecv                           // completions only: a send arrived
	OpRecvWriteImm                   // completions only: a write with immediate arrived
)

// SendWR is a work request for the send queue. Buffers belong to the queue pair from a successful
// post until the completion (or, for unsignalled requests, the completion of a later signalled one).
type SendWR struct {
	ID         uint64 // comes back in the completion
	Op         Opcode
	List       []SGE  // local memory, gathered (or for OpRead scattered) in order; copied by the post
	Inline     []byte // instead of List, at most Limits.MaxInline bytes; copied by the post
	Imm        uint32 // immediate value, for OpSend and OpWriteImm
	RemoteKey  RegionKey
	RemoteAddr uint64 // offset into the remote region, in bytes
	Unsignaled bool   // no completion unless it fails or is flushed
	// SealCRC has the last 8 bytes of List's memory, which must lie in its last entry, overwritten with the
	// CRC-64/NVME of all bytes before them, little endian, before they leave. Only for OpSend, and where
	// Limits.SealsCRC says so: by a provider that touches the bytes anyway.
	SealCRC bool
}

// RecvWR is a work request for the receive queue: where the next send's bytes go. List may be empty
// where only immediate values are expected.
type RecvWR struct {
	ID   uint64
	List []SGE
}

// Status is how a work request ended.
type Status uint8

// Statuses, as in verbs.
const (
	StatusOK               Status = iota
	StatusFlushed                 // the queue pair went into error before this request was worked on
	StatusLength                  // the receive was too small: reported to the sender and by that receive
	StatusRemoteAccess            // bad remote key, bounds or right
	StatusReceiverNotReady        // the peer had no receive posted for the time the retry count allows
	StatusDisconnected            // the peer aborted or died, or the path to it did: the oldest send has it
	StatusLocal                   // local protection or bounds error
)

// Completion reports the end of one work request.
type Completion struct {
	ID     uint64
	QP     QueuePair
	Op     Opcode
	Status Status
	Bytes  int    // of the message: received, written, or read
	Imm    uint32 // for OpRecv and OpRecvWriteImm
	HasImm bool
	// CRC is the CRC-64/NVME of the message's bytes if HasCRC is set, which a provider does that touches them anyway,
	// while they are in the processor's cache, for OpRecv of queue pairs with QPConfig.WantCRC. Providers with
	// hardware leave it to the caller.
	CRC    uint64
	HasCRC bool
}

// CompletionQueue collects completions of any number of queue pairs.
type CompletionQueue interface {
	// Poll moves up to len(out) completions into out and returns how many; it never blocks.
	Poll(out []Completion) int
	// Wait blocks until Poll would return something, ctx is done, or the queue is closed (ErrClosed).
	Wait(ctx context.Context) error
	io.Closer
}

// QPConfig says how to make a queue pair.
type QPConfig struct {
	SendCQ, RecvCQ CompletionQueue
	SendDepth      int // work requests outstanding; 0 = 128
	RecvDepth      int // 0 = 128
	// WantCRC asks for Completion.CRC.
	WantCRC bool
	// User is the caller's own value, returned by QueuePair.User.
	User any
}

// QueuePair is one end of a reliable connection. Requests of one queue complete in order; a send that
// completed well has reached the peer's memory. Any failure puts the pair into error: the failed request
// completes with its status, all others with StatusFlushed, in order, on both queues; later posts return
// ErrState. A dead peer is sure to be noticed only by a pair that has sends outstanding.
type QueuePair interface {
	// Address is what the peer's Connect needs, to be carried there by the control channel; at most 256 bytes. It holds
	// a secret: anyone who knows it can connect in the peer's place.
	Address() []byte
	// Connect joins this pair with the one whose Address is remote. Both sides call it, in any order,
	// at the same time; it blocks until the pair can send, or ctx is done.
	// Receives may be posted before Connect, and should be. A Connect that fails puts the pair into error.
	Connect(ctx context.Context, remote []byte) error
	// PostSend posts all requests, in order, or none. It does not wait for the wire. Pass a slice that
	// is used again (list...) where an allocation per call matters.
	PostSend(wrs ...SendWR) error
	// PostRecv posts all requests, in order, or none.
	PostRecv(wrs ...RecvWR) error
	// User is QPConfig.User.
	User() any
	// Abort puts the pair into error without waiting: its requests complete as flushed.
	Abort()
	// Close aborts the pair and waits until all its work has completed; no byte of its buffers is
	// read or written afterwards. Completions not yet polled stay in the queues.
	io.Closer
}
