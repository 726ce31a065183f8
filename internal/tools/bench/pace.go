package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/coder"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// The burst by which a link's rate is measured: chunks for some time, up to a limit. 128 MiB take long compared to the
// start of a connection.
const (
	burstChunk     = 64 << 10
	burstChunksMax = 2048
	burstTime      = 100 * time.Millisecond
	// burstDrain bounds the wait for what is still in socket buffers.
	burstDrain = 10 * time.Second
)

// settle makes rank 0 choose how to send a case, and tell all members. For that, rank 0 measures the link to rank 1 if
// it matters.
func (r *runner) settle(ctx context.Context, c Case) (Case, error) {
	if r.rdma {
		return c.OverRDMA()
	}
	if !c.measuresLinks() {
		return c, nil
	}
	link, err := r.room.linkPace(ctx)
	if err != nil {
		return c, err
	}
	type told struct {
		Link   LinkPace
		Choice schedule.Choice
	}
	own := told{link, c.Choice}
	if r.rank == 0 {
		c.Asked.LinkRate, c.Asked.LinkBusy = link.Rate, link.Busy
		if own.Choice, err = schedule.Choose(c.Asked); err != nil {
			return c, err
		}
	}
	all, err := gather(ctx, r.room, own)
	if err != nil {
		return c, err
	}
	c.LinkRate, c.LinkBusy, c.Choice = all[0].Link.Rate, all[0].Link.Busy, all[0].Choice
	c.Reasons = own.Choice.Reasons
	return c, nil
}

// OverRDMA returns the case in which network cards move the bytes. Each member makes the same choice, by the link rate
// that it was given: the rate of a burst over TCP says nothing about cards.
func (c Case) OverRDMA() (Case, error) {
	c.Asked.Copies = false
	var err error
	c.Choice, err = schedule.Choose(c.Asked)
	return c, err
}

// LinkPace is what is measured of a link.
type LinkPace struct {
	Rate float64 // bytes a second
	Busy float64 // the part of the time in which the busier end's process ran
}

// linkPace measures, at rank 0, how fast a TCP connection brings bytes to rank 1. Others return at once.
func (m *meeting) linkPace(ctx context.Context) (LinkPace, error) {
	if m.rank > 1 {
		return LinkPace{}, nil
	}
	stop := context.AfterFunc(ctx, m.close)
	defer stop()
	conn := m.conns[(m.rank+1)%2]
	conn.SetDeadline(time.Now().Add(burstTime + burstDrain))
	defer conn.SetDeadline(time.Time{})
	var pace LinkPace
	var err error
	if m.rank == 0 {
		pace, err = sendBurst(conn)
	} else {
		err = takeBurst(conn)
	}
	if err != nil {
		return LinkPace{}, fmt.Errorf("%w: rate of the link: %w", ErrLeft, errors.Join(ctx.Err(), err))
	}
	return pace, nil
}

// sendBurst sends chunks, each with a byte that says whether another follows, and hears how fast they came.
func sendBurst(conn net.Conn) (LinkPace, error) {
	chunk := make([]byte, burstChunk)
	var sent burst
	for more := true; more; {
		more = len(sent.marks) < burstChunksMax-1 && sent.lasted() < burstTime
		chunk[0] = 0
		if more {
			chunk[0] = 1
		}
		if _, err := conn.Write(chunk); err != nil {
			return LinkPace{}, err
		}
		sent.mark()
	}
	var told [16]byte
	if _, err := io.ReadFull(conn, told[:]); err != nil {
		return LinkPace{}, err
	}
	var there LinkPace
	c := coder.Reader(told[:], coder.Little)
	there.code(&c)
	return LinkPace{Rate: there.Rate, Busy: max(sent.pace().Busy, there.Busy)}, nil
}

// takeBurst reads a burst and sends back its pace.
func takeBurst(conn net.Conn) error {
	chunk := make([]byte, burstChunk)
	var got burst
	for more := true; more; more = chunk[0] != 0 && len(got.marks) < burstChunksMax {
		if _, err := io.ReadFull(conn, chunk); err != nil {
			return err
		}
		got.mark()
	}
	pace := got.pace()
	c := coder.Writer(nil, coder.Little)
	pace.code(&c)
	_, err := conn.Write(c.Written())
	return err
}

// code lists the fields of what one end of a burst sends the other.
func (p *LinkPace) code(c *coder.Coder) {
	rate, busy := math.Float64bits(p.Rate), math.Float64bits(p.Busy)
	c.U64(&rate)
	c.U64(&busy)
	p.Rate, p.Busy = math.Float64frombits(rate), math.Float64frombits(busy)
}

// burst notes when each chunk was done, and how long this process had run by then.
type burst struct{ marks []burstMark }

type burstMark struct {
	at  time.Time
	cpu float64 // seconds
}

func (b *burst) mark() { b.marks = append(b.marks, burstMark{time.Now(), cpuSeconds()}) }

func (b *burst) lasted() time.Duration {
	if len(b.marks) == 0 {
		return 0
	}
	return time.Since(b.marks[0].at)
}

// pace is the pace of the burst's second half: the first half fills buckets and opens windows.
func (b *burst) pace() LinkPace {
	last := len(b.marks) - 1
	half := last / 2
	took := b.marks[last].at.Sub(b.marks[half].at).Seconds()
	if took <= 0 {
		return LinkPace{}
	}
	return LinkPace{
		Rate: float64((last-half)*burstChunk) / took,
		Busy: (b.marks[last].cpu - b.marks[half].cpu) / took,
	}
}
