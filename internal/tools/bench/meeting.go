package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/coder"
)

// ErrLeft is matched by the error of a member whose connection to the others ended.
var ErrLeft = errors.New("bench: a member left")

const (
	maxFrame      = 64 << 20
	helloTimeout  = 5 * time.Second
	redialAfter   = 50 * time.Millisecond
	meetingFormat = 3 // of what members say to each other: bursts, and round trips with all, as well
)

// meeting joins the processes of a run in a star around rank 0. It serves groups of any root, and brings results
// back.
type meeting struct {
	rank  int
	conns []net.Conn // at rank 0 by rank, nil for itself; else rank 0's alone
}

// hello is what a member says first, and welcome the answer.
type hello struct {
	Format int  `json:"format"`
	Rank   int  `json:"rank"`
	Plan   Plan `json:"plan"`
}

type welcome struct {
	Error string `json:"error,omitempty"`
}

// hostMeeting waits at rank 0 until all other members have come, with the same plan. The caller still owns the
// listener, but it is closed when ctx is done. refused is called for each connection that is turned away.
func hostMeeting(ctx context.Context, listener net.Listener, plan Plan, refused func(error)) (*meeting, error) {
	m := &meeting{conns: make([]net.Conn, plan.Members)}
	stop := context.AfterFunc(ctx, func() { listener.Close() })
	defer stop()
	for missing := plan.Members - 1; missing > 0; {
		conn, err := listener.Accept()
		if err != nil {
			missing := m.missing()
			m.close()
			return nil,
				fmt.Errorf("bench: ranks %[2]v did not come to %[1]s in time: start them, and check that they reach that "+
					"address: %[3]w",
					listener.Addr(), missing, errors.Join(ctx.Err(), err))
		}
		if err := untilDone(ctx, conn, func() error { return m.admit(conn, plan) }); err != nil {
			conn.Close()
			refused(fmt.Errorf("%v refused: %w", conn.RemoteAddr(), err))
			continue
		}
		missing--
	}
	return m, nil
}

func (m *meeting) missing() (ranks []int) {
	for rank, conn := range m.conns {
		if rank > 0 && conn == nil {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// admit takes in a member with the same plan whose rank is free.
func (m *meeting) admit(conn net.Conn, plan Plan) error {
	conn.SetDeadline(time.Now().Add(helloTimeout))
	defer conn.SetDeadline(time.Time{})
	var h hello
	if err := readJSON(conn, &h); err != nil {
		return err
	}
	err := h.check(m, plan)
	var answer welcome
	if err != nil {
		answer.Error = err.Error()
	}
	if writeErr := writeJSON(conn, answer); writeErr != nil || err != nil {
		return errors.Join(err, writeErr)
	}
	m.conns[h.Rank] = conn
	return nil
}

func (h hello) check(m *meeting, plan Plan) error {
	theirs, ours := mustJSON(h.Plan), mustJSON(plan)
	switch {
	case h.Format != meetingFormat:
		return fmt.Errorf("rank %d runs another version of the program", h.Rank)
	case h.Rank < 1 || h.Rank >= len(m.conns):
		return fmt.Errorf("rank %d: want 1 to %d", h.Rank, len(m.conns)-1)
	case m.conns[h.Rank] != nil:
		return fmt.Errorf("rank %d is there already: give each process its own --rank", h.Rank)
	case !slices.Equal(theirs, ours):
		return fmt.Errorf("rank %d was started with other options than rank 0: %s and not %s", h.Rank, theirs, ours)
	}
	return nil
}

// joinMeeting comes to the meeting that rank 0 hosts, and waits for it to be there.
func joinMeeting(ctx context.Context, addr string, rank int, plan Plan) (*meeting, error) {
	var d net.Dialer
	for {
		conn, err := d.DialContext(ctx, "tcp", addr)
		if err == nil {
			m := &meeting{rank: rank, conns: []net.Conn{conn}}
			if err = untilDone(ctx, conn, func() error { return m.introduce(plan) }); err == nil {
				return m, nil
			}
			conn.Close()
			if ctx.Err() == nil {
				return nil, err
			}
		}
		select {
		case <-ctx.Done():
			return nil,
				fmt.Errorf("bench: rank 0 does not answer at %s: start it, and check that this host reaches that address: %w",
					addr, errors.Join(ctx.Err(), err))
		case <-time.After(redialAfter):
		}
	}
}

// untilDone lets talk use a connection, which ends with ctx.
func untilDone(ctx context.Context, conn net.Conn, talk func() error) error {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	err := talk()
	if !stop() {
		return errors.Join(ctx.Err(), err)
	}
	return err
}

// introduce waits as long as rank 0 has strangers to listen to.
func (m *meeting) introduce(plan Plan) error {
	conn := m.conns[0]
	var answer welcome
	err := writeJSON(conn, hello{Format: meetingFormat, Rank: m.rank, Plan: plan})
	if err == nil {
		err = readJSON(conn, &answer)
	}
	if err != nil {
		return fmt.Errorf("bench: meet at %s: %w", conn.RemoteAddr(), err)
	}
	if answer.Error != "" {
		return usage("rank 0 refused: %s", answer.Error)
	}
	return nil
}

// gather gives every member what each has, by rank. All call it, in the same order; it returns when all have. Its
// errors match ErrLeft or are ctx's.
func gather[T any](ctx context.Context, m *meeting, own T) ([]T, error) {
	stop := context.AfterFunc(ctx, m.close)
	defer stop()
	all, err := gatherJSON(m, own)
	if err != nil {
		return nil, errors.Join(ctx.Err(), err)
	}
	return all, nil
}

func gatherJSON[T any](m *meeting, own T) ([]T, error) {
	all := make([]T, len(m.conns))
	if m.rank != 0 {
		if err := writeJSON(m.conns[0], own); err != nil {
			return nil, fmt.Errorf("%w: rank 0: %w", ErrLeft, err)
		}
		if err := readJSON(m.conns[0], &all); err != nil {
			return nil, fmt.Errorf("%w: rank 0: %w", ErrLeft, err)
		}
		return all, nil
	}
	all[0] = own
	for rank, conn := range m.conns[1:] {
		if err := readJSON(conn, &all[rank+1]); err != nil {
			return nil, fmt.Errorf("%w: rank %d: %w", ErrLeft, rank+1, err)
		}
	}
	for rank, conn := range m.conns[1:] {
		if err := writeJSON(conn, all); err != nil {
			return nil, fmt.Errorf("%w: rank %d: %w", ErrLeft, rank+1, err)
		}
	}
	return all, nil
}

// barrier returns when all members have called it.
func (m *meeting) barrier(ctx context.Context) error {
	_, err := gather(ctx, m, struct{}{})
	return err
}

// The round trips that are measured before each round, of all members together, and their bytes. If they take long
// there are fewer.
const (
	pings      = 101
	pingsLeast = 8 // for each member
	pingBytes  = 64
	pingTime   = 100 * time.Millisecond
)

// roundTrips measures, at rank 0, messages there and back over TCP with each member in turn: how long one takes depends
// on the core on which the system runs it. It appends the seconds of each to those of its member.
func (m *meeting) roundTrips(ctx context.Context, seconds [][]float64) error {
	stop := context.AfterFunc(ctx, m.close)
	defer stop()
	others := m.conns[1:]
	if m.rank != 0 {
		return pingError(ctx, answerPings(m.conns[0]))
	}
	for i, conn := range others {
		var err error
		seconds[i], err = pingMember(conn, len(others), seconds[i])
		if err != nil {
			return pingError(ctx, err)
		}
	}
	return nil
}

func pingError(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: round trip: %w", ErrLeft, errors.Join(ctx.Err(), err))
}

// pingMember appends the seconds of round trips with one of a number of members.
func pingMember(conn net.Conn, members int, seconds []float64) ([]float64, error) {
	buf := make([]byte, pingBytes)
	count, bound := max(pings/members, pingsLeast), pingTime/time.Duration(members)
	begin := time.Now()
	for i, more := 0, true; more; i++ {
		more = i < count-1 && time.Since(begin) < bound
		buf[0] = 0
		if more {
			buf[0] = 1 // another follows
		}
		start := time.Now()
		if _, err := conn.Write(buf); err != nil {
			return seconds, err
		}
		if _, err := io.ReadFull(conn, buf); err != nil {
			return seconds, err
		}
		seconds = append(seconds, time.Since(start).Seconds())
	}
	return seconds, nil
}

// answerPings sends back what rank 0 sends, until rank 0 says that no more follows.
func answerPings(conn net.Conn) error {
	buf := make([]byte, pingBytes)
	for buf[0] = 1; buf[0] != 0; {
		if _, err := io.ReadFull(conn, buf); err != nil {
			return err
		}
		if _, err := conn.Write(buf); err != nil {
			return err
		}
	}
	return nil
}

func (m *meeting) close() {
	for _, conn := range m.conns {
		if conn != nil {
			conn.Close()
		}
	}
}

func writeJSON(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	c := coder.Writer(nil, coder.Little)
	c.View32(&b, maxFrame)
	_, err = w.Write(c.Written())
	return err
}

func readJSON(r io.Reader, v any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	var n uint32
	c := coder.Reader(head[:], coder.Little)
	c.U32(&n)
	if n > maxFrame {
		return fmt.Errorf("bench: a frame of %d bytes: another program speaks at this address", n)
	}
	b, err := io.ReadAll(io.LimitReader(r, int64(n)))
	if err != nil {
		return err
	}
	if len(b) < int(n) {
		return io.ErrUnexpectedEOF
	}
	return json.Unmarshal(b, v)
}

// mustJSON encodes a plan, which always can be.
func mustJSON(p Plan) []byte {
	b, err := json.Marshal(p)
	if err != nil {
		panic(err) // tidy: a struct of numbers and strings
	}
	return b
}
