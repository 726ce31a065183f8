package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// The burst by which a link's rate is measured: chunks for some time, at most so many.
const (
	burstChunk     = 64 << 10
	burstChunksMax = 256
	burstTime      = 100 * time.Millisecond
	// burstDrain bounds the wait for what is still in socket buffers.
	burstDrain = 10 * time.Second
)

// settle has rank 0 make the choice of a case, for which it measures the link to rank 1 if that matters, and tell all.
func (r *runner) settle(ctx context.Context, c Case) (Case, error) {
	if r.rdma {
		return c.OverRDMA()
	}
	if !c.measuresLinks() {
		return c, nil
	}
	rate, err := r.room.linkRate(ctx)
	if err != nil {
		return c, err
	}
	type told struct {
		Rate   float64
		Choice schedule.Choice
	}
	own := told{rate, c.Choice}
	if r.rank == 0 {
		c.Asked.LinkRate = rate
		if own.Choice, err = schedule.Choose(c.Asked); err != nil {
			return c, err
		}
	}
	all, err := gather(ctx, r.room, own)
	if err != nil {
		return c, err
	}
	c.LinkRate, c.Choice = all[0].Rate, all[0].Choice
	c.Reasons = own.Choice.Reasons
	return c, nil
}

// OverRDMA is the case where cards move the bytes: each member makes the same choice, by the rate of the links that it was told; a
// burst over TCP says nothing of theirs.
func (c Case) OverRDMA() (Case, error) {
	c.Asked.Copies = false
	var err error
	c.Choice, err = schedule.Choose(c.Asked)
	return c, err
}

// linkRate measures, at rank 0, how many bytes a second a TCP connection brings to rank 1. Others return at once.
func (m *meeting) linkRate(ctx context.Context) (float64, error) {
	if m.rank > 1 {
		return 0, nil
	}
	stop := context.AfterFunc(ctx, m.close)
	defer stop()
	conn := m.conns[(m.rank+1)%2]
	conn.SetDeadline(time.Now().Add(burstTime + burstDrain))
	defer conn.SetDeadline(time.Time{})
	var rate float64
	var err error
	if m.rank == 0 {
		rate, err = sendBurst(conn)
	} else {
		err = takeBurst(conn)
	}
	if err != nil {
		return 0, fmt.Errorf("%w: rate of the link: %w", ErrLeft, errors.Join(ctx.Err(), err))
	}
	return rate, nil
}

// sendBurst sends chunks, each with a byte that says whether another follows, and hears how fast they came.
func sendBurst(conn net.Conn) (float64, error) {
	chunk := make([]byte, burstChunk)
	start := time.Now()
	for i := range burstChunksMax {
		last := i == burstChunksMax-1 || time.Since(start) > burstTime
		chunk[0] = 1
		if last {
			chunk[0] = 0
		}
		if _, err := conn.Write(chunk); err != nil {
			return 0, err
		}
		if last {
			break
		}
	}
	var rate [8]byte
	if _, err := io.ReadFull(conn, rate[:]); err != nil {
		return 0, err
	}
	return float64(binary.LittleEndian.Uint64(rate[:])), nil
}

// takeBurst reads a burst and tells its pace.
func takeBurst(conn net.Conn) error {
	chunk := make([]byte, burstChunk)
	var arrivals []time.Time
	for more := true; more; more = chunk[0] != 0 && len(arrivals) < burstChunksMax {
		if _, err := io.ReadFull(conn, chunk); err != nil {
			return err
		}
		arrivals = append(arrivals, time.Now())
	}
	_, err := conn.Write(binary.LittleEndian.AppendUint64(nil, uint64(burstPace(arrivals))))
	return err
}

// burstPace is the rate of the burst's second half in bytes a second: the first fills buckets and opens windows.
func burstPace(arrivals []time.Time) float64 {
	last := len(arrivals) - 1
	half := last / 2
	took := arrivals[last].Sub(arrivals[half])
	if took <= 0 {
		return 0
	}
	return float64((last-half)*burstChunk) / took.Seconds()
}
