package rdmc

import (
	"fmt"
	"math/bits"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc/core"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc/share"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// reportInterval is how often a member reports progress.
const reportInterval = 100 * time.Millisecond

// Defaults of GroupConfig.
const (
	DefaultBlockSize      = 256 << 10
	DefaultMaxSends       = 2
	DefaultSilenceTimeout = 2 * time.Second
)

// GroupConfig describes a group. All members must use the same values, apart from Rank, Window and the fields below it.
type GroupConfig struct {
	// Number names the group to its members.
	Number uint64
	// Epoch distinguishes groups with the same number; a block of another epoch is refused.
	Epoch uint32
	// Members are the members' names, for logs and errors, the root first.
	Members []string
	// Rank is this member's place in Members.
	Rank int
	// BlockSize is the bytes per block; 0 means DefaultBlockSize.
	BlockSize int
	// Algorithm makes the schedule; 0 means schedule.BinomialPipeline.
	Algorithm schedule.Algorithm
	// Racks are the racks of the members by rank, for schedule.Hybrid.
	Racks []int
	// Window is how many block buffers this member uses, at least 2; 0 means enough for the pipelines to work
	// without reading blocks back. The memory is held while messages are under way, and a little longer.
	Window int
	// Grants is how many of the buffers are posted as receives at once; 0 means a part of the window.
	Grants int
	// MaxSends bounds the block sends that are outstanding at once; 0 means DefaultMaxSends, in a chain twice that.
	MaxSends int
	// SendRate caps what this member sends of the group's messages, in bytes a second; 0 means no cap. A relay's cap
	// slows down the members below it, and so in time the whole group.
	SendRate uint64
	// Priority is the group's class at this member: groups of the same class share what the member sends by bytes, a
	// higher class goes ahead of a lower one (package share).
	Priority Priority
	// Yields makes the group end, at all members, when it has carried nothing for a moment and the engine of one of
	// them has no memory for another group: with ReasonYielded, and no suspects. Then Close or Abort it, and make
	// another one for the next message.
	Yields bool
	// SilenceTimeout is how long a neighbour may say nothing, not even that it lives, while messages are
	// under way or this member waits in Close, 50 ms or more; 0 means DefaultSilenceTimeout.
	SilenceTimeout time.Duration

	// SmallBytes bounds small messages, which go from the root straight to the members (to all of them itself in
	// groups of up to 16, else along the tree of reports) into memory that is posted beforehand; see Group.SendSmall.
	// 0 means DefaultSmallBytes in an unannounced group and none in another; negative means none. At most
	// MaxSmallBytes.
	SmallBytes int
	// Small is called at a member for each small message, in the order of sending, also between large ones: when the
	// messages before it have ended here. It is called by a goroutine of the group, one at a time, may call anything,
	// and must not keep data. That it has returned is what the root waits for. In an unannounced group without Small
	// such messages come by Incoming and its Sink.
	Small func(seq uint64, data []byte)

	// Unannounced makes a group for plain use, as in the papers: nothing is announced out of band, and the first block
	// carries the size of its message. The following callbacks are for it; they are called by a goroutine of the group,
	// one at a time, and may call anything. Empty messages cannot be sent.
	Unannounced bool
	// Incoming is called at a member when a message begins, in the order of sending; it returns where its
	// blocks go. An error fails the group.
	Incoming func(size uint64) (Sink, error)
	// Stored is called at a member when a message is stored whole, in the order of sending, before it is relayed whole.
	Stored func(t *Transfer)
	// Completed is called when a message has ended well, in the order of sending: at a member when it is stored whole
	// and relayed, at the root when all members have stored it.
	Completed func(t *Transfer)
	// OnFailure is called once if the group fails.
	OnFailure func(err error)
}

func (cfg *GroupConfig) setDefaults() {
	orDefault(&cfg.BlockSize, DefaultBlockSize)
	orDefault(&cfg.Algorithm, schedule.BinomialPipeline)
	if cfg.Algorithm == schedule.Chain {
		orDefault(&cfg.MaxSends, 2*DefaultMaxSends) // all to one member: they stay in order
	}
	orDefault(&cfg.MaxSends, DefaultMaxSends)
	orDefault(&cfg.SilenceTimeout, DefaultSilenceTimeout)
	dims := bits.Len(uint(len(cfg.Members)))
	orDefault(&cfg.Window, 8+2*dims)
	orDefault(&cfg.Grants, min(4+dims, cfg.Window/2))
	if cfg.Unannounced {
		orDefault(&cfg.SmallBytes, DefaultSmallBytes)
	}
	cfg.SmallBytes = max(cfg.SmallBytes, 0)
}

func orDefault[T comparable](v *T, value T) {
	var zero T
	if *v == zero {
		*v = value
	}
}

func (cfg *GroupConfig) check(limits rdma.Limits) error {
	switch {
	case cfg.Rank < 0 || cfg.Rank >= len(cfg.Members):
		return fmt.Errorf("%w: rank %d of %d members", ErrInvalid, cfg.Rank, len(cfg.Members))
	case cfg.BlockSize < 1 || cfg.BlockSize > MaxBlockSize || cfg.BlockSize+core.TrailerSize > limits.MaxMessage:
		return fmt.Errorf("%w: block size %d", ErrInvalid, cfg.BlockSize)
	case cfg.Window < 2 || cfg.Grants < 1 || cfg.MaxSends < 1:
		return fmt.Errorf("%w: window %d, grants %d, sends %d", ErrInvalid, cfg.Window, cfg.Grants, cfg.MaxSends)
	case max(cfg.Window, cfg.MaxSends) > limits.MaxQueueDepth:
		return fmt.Errorf("%w: window %d, sends %d: the fabric takes up to %d", ErrInvalid, cfg.Window, cfg.MaxSends,
			limits.MaxQueueDepth)
	case cfg.Unannounced && cfg.Rank != 0 && cfg.Incoming == nil:
		return fmt.Errorf("%w: an unannounced group without Incoming", ErrInvalid)
	case cfg.SmallBytes > MaxSmallBytes || cfg.SmallBytes > limits.MaxMessage-core.TrailerSize:
		return fmt.Errorf("%w: small messages of %d bytes", ErrInvalid, cfg.SmallBytes)
	case cfg.SmallBytes > 0 && cfg.Rank != 0 && cfg.Small == nil && !cfg.Unannounced:
		return fmt.Errorf("%w: small messages without Small", ErrInvalid)
	case !cfg.Priority.Valid():
		return fmt.Errorf("%w: priority %d", ErrInvalid, cfg.Priority)
	case cfg.SilenceTimeout < share.TickInterval:
		return fmt.Errorf("%w: silence of %v, want %v or more", ErrInvalid, cfg.SilenceTimeout, share.TickInterval)
	}
	return nil
}

func (cfg *GroupConfig) plan() (*schedule.Plan, error) {
	if cfg.Algorithm != schedule.Hybrid {
		return schedule.NewPlan(cfg.Algorithm, len(cfg.Members))
	}
	if len(cfg.Racks) != len(cfg.Members) {
		return nil, fmt.Errorf("%w: racks of %d members, want %d", ErrInvalid, len(cfg.Racks), len(cfg.Members))
	}
	return schedule.NewHybridPlan(cfg.Racks)
}

func (cfg *GroupConfig) limits() core.Limits {
	return core.Limits{
		Slots:    cfg.Window,
		Posted:   cfg.Grants,
		Pins:     max(1, cfg.Window/4),
		Sends:    cfg.MaxSends,
		Silence:  cfg.SilenceTimeout,
		Interval: reportInterval,
		Grace:    lossGrace,
		Rate:     cfg.SendRate,

		SmallBytes:   cfg.SmallBytes,
		SmallWindow:  cfg.smallWindow(),
		SmallInOrder: cfg.Small != nil,
	}
}

// smallWindow is how many small messages may be under way.
func (cfg *GroupConfig) smallWindow() int {
	if cfg.SmallBytes == 0 {
		return 0
	}
	return smallWindow
}

// goesSmall reports whether Send sends a message as a small one: members of announced groups expect blocks.
func (cfg *GroupConfig) goesSmall(size uint64) bool {
	return cfg.Unannounced && cfg.Rank == 0 && size <= uint64(min(cfg.SmallBytes, cfg.BlockSize))
}

// leaver is the suspect where this member leaves: none if it is the root.
func (cfg *GroupConfig) leaver() []int {
	if cfg.Rank == 0 {
		return nil
	}
	return []int{cfg.Rank}
}

// localReason is the reason of a failure by this member's Source or Sink.
func (cfg *GroupConfig) localReason() Reason {
	if cfg.Rank == 0 {
		return ReasonSource
	}
	return ReasonSink
}
