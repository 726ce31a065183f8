package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/units"
	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/mixed"
	"github.com/rdmcfs/rdmcfs/rdma/tcp"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
)

// ErrDiffers is matched when a member got other bytes than were sent.
var ErrDiffers = errors.New("bench: bytes differ")

// Process is one member of a run.
type Process struct {
	Plan Plan
	Rank int
	// Room is where rank 0 waits for the others; RoomListener, at rank 0, is a listener in its place. It is closed.
	Room         string
	RoomListener net.Listener
	// Listen is this member's address for data; port 0 picks one.
	Listen string
	// Wait bounds the time until all members are there.
	Wait time.Duration
	// OpenRDMA may be set; it opens the device that carries the data if all members have one, in addition to TCP. Nil
	// without an error: TCP alone.
	OpenRDMA func() (rdma.Device, error)
	// OnResult is called at rank 0 after each case.
	OnResult func(Result)
	// OnRefused may be set; it is called at rank 0 for each connection to the room that is turned away.
	OnRefused func(error)
}

// Run takes part in a run and returns when all cases are done, or one has failed: ErrUsage, ErrLeft, ErrDiffers, a
// failure of a group, or ctx's error.
func (p Process) Run(ctx context.Context) error {
	if p.RoomListener != nil {
		defer p.RoomListener.Close()
	}
	cases, err := p.Plan.Cases()
	if err != nil {
		return err
	}
	if p.Rank < 0 || p.Rank >= p.Plan.Members {
		return usage("rank %d of %d members: give --rank 0 to %d, each once", p.Rank, p.Plan.Members, p.Plan.Members-1)
	}
	sockets, err := tcp.New(tcp.Config{Congestion: p.Plan.Congestion})
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	defer sockets.Close()
	if _, err := sockets.Listen(p.Listen); err != nil {
		return fmt.Errorf("bench: listen at %s: give a free address of this host as --listen: %w", p.Listen, err)
	}
	card, err := p.openRDMA()
	if err != nil {
		return err
	}
	if card != nil {
		defer card.Close()
	}
	room, err := p.meet(ctx)
	if err != nil {
		return err
	}
	defer room.close()
	r := &runner{rank: p.Rank, device: sockets, room: room}
	if r.rdma, err = allHave(ctx, room, card != nil); err != nil {
		return err
	}
	if r.rdma {
		if r.device, err = mixed.New(mixed.Config{Devices: []rdma.Device{card, sockets}}); err != nil {
			return fmt.Errorf("bench: %w", err)
		}
		defer r.device.Close() // and those it is made of
	}
	if r.engine, err = rdmc.NewEngine(rdmc.EngineConfig{Device: r.device}); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	defer r.engine.Close()
	return p.measureAll(ctx, r, cases)
}

// openRDMA returns nil if there is no device.
func (p Process) openRDMA() (rdma.Device, error) {
	if p.OpenRDMA == nil {
		return nil, nil
	}
	return p.OpenRDMA()
}

// allHave reports whether all members have what one of them says that it has.
func allHave(ctx context.Context, room *meeting, own bool) (bool, error) {
	have, err := gather(ctx, room, own)
	return err == nil && !slices.Contains(have, false), err
}

func (p Process) meet(ctx context.Context) (*meeting, error) {
	if p.Wait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, p.Wait)
		defer cancel()
	}
	if p.Rank != 0 {
		return joinMeeting(ctx, p.Room, p.Rank, p.Plan)
	}
	listener := p.RoomListener
	if listener == nil {
		var err error
		if listener, err = net.Listen("tcp", p.Room); err != nil {
			return nil, fmt.Errorf("bench: room at %s: give a free address of rank 0's host as --room: %w", p.Room, err)
		}
		defer listener.Close()
	}
	refused := p.OnRefused
	if refused == nil {
		refused = func(error) {}
	}
	return hostMeeting(ctx, listener, p.Plan, refused)
}

func (p Process) measureAll(ctx context.Context, r *runner, cases []Case) error {
	for _, c := range cases {
		c, err := r.settle(ctx, c)
		if err != nil {
			return err
		}
		own, err := r.measure(ctx, c)
		if err != nil {
			return fmt.Errorf("bench: %d members, %s, %s: %w", c.Members, units.Exact(c.Size), c.Algorithm, err)
		}
		reports, err := gather(ctx, r.room, own)
		if err != nil {
			return err
		}
		if err := sameBytes(c, reports); err != nil {
			return err
		}
		if p.Rank == 0 && p.OnResult != nil {
			result := summarize(c, reports)
			result.Fabric = r.fabric()
			p.OnResult(result)
		}
	}
	return nil
}

// sameBytes compares what members got with what the senders sent.
func sameBytes(c Case, reports []report) error {
	for rank, r := range reports[:c.Members] {
		if len(r.Digests) != c.Senders {
			return fmt.Errorf("%w: rank %d has %d digests of %d", ErrDiffers, rank, len(r.Digests), c.Senders)
		}
		for sender, digest := range r.Digests {
			if !slices.Equal(digest, reports[sender].Digests[sender]) {
				return fmt.Errorf("%w: rank %d got other bytes than rank %d sent", ErrDiffers, rank, sender)
			}
		}
	}
	return nil
}
