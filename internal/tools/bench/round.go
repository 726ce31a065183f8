package bench

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
)

// report is what one member measured of a case.
type report struct {
	// Done is, by round, the seconds until all members had the messages of this sender; empty elsewhere.
	Done []float64 `json:"done,omitempty"`
	// Stored is, by round, the seconds until this member had all messages of the others; empty if there are none.
	Stored []float64 `json:"stored,omitempty"`
	// CPUSeconds is this process's processor time in all rounds, Idle the machine's idle share meanwhile.
	CPUSeconds float64 `json:"cpu_seconds"`
	Idle       float64 `json:"idle"`
	// Latency and LatencyHigh are the median and the 99th percentile of a message's latency, at a sender.
	Latency     float64 `json:"latency,omitempty"`
	LatencyHigh float64 `json:"latency_high,omitempty"`
	// RoundTrips are, at rank 0, the medians of 64 bytes there and back by TCP, some before each round, by member.
	RoundTrips []float64 `json:"round_trips,omitempty"`
	// Digests are the digests of all messages of a round, by sender.
	Digests [][]byte `json:"digests,omitempty"`
}

// runner measures cases at one member.
type runner struct {
	rank   int
	device rdma.Device
	engine *rdmc.Engine
	room   *meeting
	rdma   bool   // all members have it
	groups uint64 // made so far; numbers them
}

// fabric is what carries the data: between two members the first of the list that joins them.
func (r *runner) fabric() string {
	if r.rdma {
		return r.device.Name()
	}
	return "tcp"
}

// measure runs one case. Members that are not in its group only meet the others.
func (r *runner) measure(ctx context.Context, c Case) (report, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	streams, err := r.open(ctx, c, cancel)
	defer func() {
		for _, s := range streams {
			_ = s.memory.Close() // its group has ended
		}
	}()
	var out report
	if err == nil {
		err = r.rounds(ctx, c, streams, &out)
	}
	if err == nil {
		err = closeAll(ctx, streams)
	}
	if err != nil {
		for _, s := range streams {
			s.group.Abort()
		}
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			err = errors.Join(cause, err)
		}
		return report{}, err
	}
	for _, s := range streams {
		if s.rank == 0 {
			out.Latency, out.LatencyHigh = Median(s.latency), Quantile(s.latency, 0.99)
		}
		sum := sha256.Sum256(s.data)
		out.Digests = append(out.Digests, sum[:])
	}
	return out, nil
}

// open makes and connects this member's end of each sender's group: the members in turn, from the sender on.
func (r *runner) open(ctx context.Context, c Case, fail context.CancelCauseFunc) ([]*stream, error) {
	r.groups++
	var streams []*stream
	addresses := make([]map[int][]byte, c.Senders)
	if r.rank < c.Members {
		for sender := range c.Senders {
			s, err := r.openStream(c, sender, fail)
			if err != nil {
				return streams, err
			}
			streams = append(streams, s)
			addresses[sender] = s.group.Addresses()
		}
	}
	all, err := gather(ctx, r.room, addresses)
	if err != nil {
		return streams, err
	}
	if err := connectAll(ctx, c, streams, all); err != nil {
		return streams, err
	}
	return streams, r.room.barrier(ctx)
}

func (r *runner) openStream(c Case, sender int, fail context.CancelCauseFunc) (*stream, error) {
	s, err := newStream(r.device, c, sender, r.rank, fail)
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(s.data); i += 4096 {
		s.data[i] = 1 // have the pages before the clock runs
	}
	if s.rank == 0 {
		rand.NewChaCha8([32]byte{1, byte(sender), byte(sender >> 8)}).Read(s.data)
	}
	names := make([]string, c.Members)
	for i := range names {
		names[i] = fmt.Sprintf("process %d", (sender+i)%c.Members)
	}
	smallBytes := -1
	var small func(uint64, []byte)
	if c.Small {
		smallBytes, small = c.Asked.SmallBytes, s.smallCame
	}
	s.group, err = r.engine.NewGroup(rdmc.GroupConfig{
		Number: r.groups<<16 | uint64(sender), Members: names, Rank: s.rank, Algorithm: c.Algorithm,
		BlockSize: c.BlockSize, SmallBytes: smallBytes, Window: c.Window, Grants: c.Grants, MaxSends: c.MaxSends,
		Unannounced: true, Incoming: s.incoming, Stored: s.stored, Completed: s.completed, Small: small,
		OnFailure: func(err error) { fail(err) },
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// connectAll joins the ends; all holds the addresses by process, sender and rank in the group.
func connectAll(ctx context.Context, c Case, streams []*stream, all [][]map[int][]byte) error {
	return each(streams, func(s *stream) error {
		remote := make(map[int][]byte)
		for peer := range c.Members {
			process := (s.sender + peer) % c.Members
			if address, ok := all[process][s.sender][s.rank]; ok {
				remote[peer] = address
			}
		}
		return s.group.Connect(ctx, remote)
	})
}

func closeAll(ctx context.Context, streams []*stream) error {
	return each(streams, func(s *stream) error { return s.group.Close(ctx) })
}

// each runs f for all streams at once.
func each(streams []*stream, f func(*stream) error) error {
	errs := make([]error, len(streams))
	var wg sync.WaitGroup
	for i, s := range streams {
		wg.Go(func() { errs[i] = f(s) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// rounds runs all rounds of a case.
func (r *runner) rounds(ctx context.Context, c Case, streams []*stream, out *report) error {
	times, err := ReadProcessorTimes()
	if err != nil {
		return err
	}
	trips := make([][]float64, len(r.room.conns)-1)
	for range c.Rounds {
		if err := r.room.roundTrips(ctx, trips); err != nil {
			return err
		}
		cpu := cpuSeconds()
		if err := r.round(ctx, streams, out); err != nil {
			return err
		}
		if len(streams) > 0 {
			out.CPUSeconds += cpuSeconds() - cpu
		}
	}
	if r.rank == 0 {
		for _, member := range trips {
			out.RoundTrips = append(out.RoundTrips, Median(member))
		}
	}
	after, err := ReadProcessorTimes()
	out.Idle = after.IdleSince(times)
	return err
}

// round makes all senders send at once, and waits until this member has all messages, and all members have the ones it
// sent.
func (r *runner) round(ctx context.Context, streams []*stream, out *report) error {
	for _, s := range streams {
		s.rewind()
	}
	if err := r.room.barrier(ctx); err != nil {
		return err
	}
	start := time.Now()
	var senders sync.WaitGroup // they end at the latest when a group fails or ctx is done
	defer senders.Wait()
	for _, s := range streams {
		if s.rank != 0 {
			continue
		}
		if s.c.Small {
			senders.Go(func() {
				if err := s.sendAllSmall(ctx); err != nil {
					s.fail(err)
				}
			})
		} else if err := s.send(); err != nil {
			return err
		}
	}
	var stored time.Duration
	for _, s := range streams {
		end, err := s.wait(ctx)
		if err != nil {
			return err
		}
		if s.rank == 0 {
			out.Done = append(out.Done, end.Sub(start).Seconds())
		} else {
			stored = max(stored, end.Sub(start))
		}
	}
	if stored > 0 {
		out.Stored = append(out.Stored, stored.Seconds())
	}
	return nil
}
