package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/mem"
)

// childFlag makes the test binary a member process of Local.
const childFlag = "-bench-child"

func smallPlan() Plan {
	return Plan{Members: 3, GroupSizes: []int{2, 3}, Sizes: []uint64{1, 3 << 20}, BlockSizes: []int{0},
		Algorithms: []string{Auto},
		Senders:    []string{"one", "all"}, Rounds: 2, Batch: 2, Depth: 1}
}

// TestLocal runs three real processes over the loopback device.
func TestLocal(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var results []Result
	if err := Local(ctx, smallPlan(), []string{os.Args[0], childFlag}, nil,
		func(r Result) { results = append(results, r) }); err != nil {
		t.Fatal(err)
	}
	if len(results) != 8 {
		t.Fatalf("%d results of 8 cases", len(results))
	}
	for _, r := range results {
		if len(r.Seconds) != 2 || r.Median <= 0 || r.Worst < r.Median || r.BytesPerSec <= 0 || r.CPUPerGB <= 0 ||
			r.Small != (r.Size == 1) || (r.LinkRate > 0) != (r.Size > 1) || r.Latency <= 0 || r.Latency > r.Worst ||
			r.RoundTripLow <= 0 || r.RoundTrip < r.RoundTripLow || r.Shares < 1 || r.Spread < 0 || r.Spread > 1 {
			t.Errorf("%+v", r)
		}
	}
}

func TestLocalTellsWhatAMemberSaid(t *testing.T) {
	err := Local(t.Context(), smallPlan(), []string{"sh", "-c", "echo no such luck >&2; exit 7"}, nil, func(Result) {})
	if code, ok := ExitCode(err); !ok || code != 7 || !strings.Contains(err.Error(), "no such luck") {
		t.Errorf("%v", err)
	}
}

// TestLocalTellsThatItWasStopped: the members are killed then, which says nothing.
func TestLocalTellsThatItWasStopped(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	plan := smallPlan()
	plan.Rounds = 1000
	var once sync.Once
	err := Local(ctx, plan, []string{os.Args[0], childFlag}, nil, func(Result) { once.Do(func() { cancel(why) }) })
	if !errors.Is(err, why) || strings.Contains(err.Error(), "killed") {
		t.Errorf("%v", err)
	}
}

func TestTheFirstCauseIsTold(t *testing.T) {
	killed := &childError{rank: 1, code: -1, err: errors.New("signal: killed")}
	notStarted := fmt.Errorf("bench: start member 2: %w", context.Canceled)
	left := &childError{rank: 3, code: 1, text: ErrLeft.Error() + ": rank 0", err: errors.New("exit status 1")}
	cause := &childError{rank: 4, code: 11, text: "bytes differ", err: errors.New("exit status 11")}
	for _, errs := range [][]error{{nil, killed, notStarted, left, cause}, {cause, left, notStarted, killed, nil}} {
		if err := firstCause(errs); err != error(cause) {
			t.Errorf("told %v", err)
		}
	}
	if err := firstCause([]error{notStarted, left, killed}); err != error(left) {
		t.Errorf("told %v", err)
	}
	if err := firstCause([]error{nil, nil}); err != nil {
		t.Errorf("told %v", err)
	}
}

// shortWait is the time for which those of a process that is never complete wait.
const shortWait = 4 * time.Second

// together runs members in this process; spoil may change one before it starts.
func together(t *testing.T, plan Plan, spoil func(*Process)) []error {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	type end struct {
		rank int
		err  error
	}
	ends := make(chan end)
	for rank := range plan.Members {
		p := Process{Plan: plan, Rank: rank, Room: listener.Addr().String(), Listen: "127.0.0.1:0", Wait: 25 * time.Second}
		if rank == 0 {
			p.RoomListener = listener
		}
		spoil(&p)
		go func() { ends <- end{rank, p.Run(ctx)} }()
	}
	errs := make([]error, plan.Members)
	for range plan.Members {
		e := <-ends
		errs[e.rank] = e.err
	}
	return errs
}

func TestMembersOfOneProcess(t *testing.T) {
	n := 0
	for rank, err := range together(t, smallPlan(), func(p *Process) { p.OnResult = func(Result) { n++ } }) {
		if err != nil {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
	if n != 8 {
		t.Errorf("%d results at rank 0, of 8", n)
	}
}

// TestOverADeviceBesideTCP takes the better device where all members have one, and TCP where one has none.
func TestOverADeviceBesideTCP(t *testing.T) {
	for name, without := range map[string]int{"mem:0+tcp": -1, "tcp": 2} {
		cards := mem.NewFabric(mem.Config{})
		var results []Result
		for rank, err := range together(t, smallPlan(), func(p *Process) {
			rank := p.Rank
			p.OnResult = func(r Result) { results = append(results, r) }
			p.OpenRDMA = func() (rdma.Device, error) {
				if rank == without {
					return nil, nil
				}
				return cards.Device(fmt.Sprint(rank)), nil
			}
		}) {
			if err != nil {
				t.Errorf("rank %d: %v", rank, err)
			}
		}
		if len(results) != 8 {
			t.Fatalf("%d results of 8 cases", len(results))
		}
		for _, r := range results {
			if r.Fabric != name || without < 0 && r.LinkRate != 0 {
				t.Errorf("over %q, want %q; links of %g bytes a second", r.Fabric, name, r.LinkRate)
			}
		}
	}
}

func TestADemandedDeviceIsNotThere(t *testing.T) {
	t.Parallel() // waits for members that do not come
	errs := together(t, smallPlan(), func(p *Process) {
		p.Wait = shortWait
		if p.Rank == 1 {
			p.OpenRDMA = func() (rdma.Device, error) { return nil, errors.New("no card") }
		}
	})
	if errs[1] == nil || !strings.Contains(errs[1].Error(), "no card") {
		t.Errorf("rank 1: %v", errs[1])
	}
}

func TestOtherOptionsAreRefused(t *testing.T) {
	t.Parallel() // waits for members that do not come
	refused := 0
	errs := together(t, smallPlan(), func(p *Process) {
		p.OnRefused, p.Wait = func(error) { refused++ }, shortWait
		if p.Rank == 2 {
			p.Plan.Sizes = []uint64{7}
		}
	})
	if !errors.Is(errs[2], ErrUsage) || !strings.Contains(errs[2].Error(), "other options") || refused != 1 {
		t.Errorf("rank 2: %v; %d refused", errs[2], refused)
	}
	if !errors.Is(errs[0], context.DeadlineExceeded) || !strings.Contains(errs[0].Error(), "ranks [2] did not come") {
		t.Errorf("rank 0: %v", errs[0])
	}
	if !errors.Is(errs[1], ErrLeft) {
		t.Errorf("rank 1: %v", errs[1])
	}
}

func TestRankIsTaken(t *testing.T) {
	t.Parallel() // waits for members that do not come
	errs := together(t, smallPlan(), func(p *Process) {
		p.Wait = shortWait
		if p.Rank == 2 {
			p.Rank = 1
		}
	})
	if !errors.Is(errs[1], ErrUsage) && !errors.Is(errs[2], ErrUsage) {
		t.Errorf("ranks 1 and 1: %v and %v", errs[1], errs[2])
	}
}

func TestNobodyThere(t *testing.T) {
	p := Process{Plan: smallPlan(), Rank: 1, Room: "127.0.0.1:1", Listen: "127.0.0.1:0", Wait: 100 * time.Millisecond}
	if err := p.Run(t.Context()); !errors.Is(err, context.DeadlineExceeded) ||
		!strings.Contains(err.Error(), "rank 0 does not answer") {
		t.Error(err)
	}
	p.Rank = 3
	if err := p.Run(t.Context()); !errors.Is(err, ErrUsage) {
		t.Error(err)
	}
	p.Rank, p.Listen = 1, "192.0.2.1:0"
	if err := p.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "--listen") {
		t.Error(err)
	}
}

// TestWaitIsOver: the other end of the meeting says nothing. Neither side waits longer for it than its Wait allows.
func TestWaitIsOver(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close() // connections wait in its backlog
	p := Process{Plan: smallPlan(), Rank: 1, Room: listener.Addr().String(), Listen: "127.0.0.1:0",
		Wait: 100 * time.Millisecond}
	began := time.Now()
	if err := p.Run(t.Context()); !errors.Is(err, context.DeadlineExceeded) ||
		!strings.Contains(err.Error(), "rank 0 does not answer") {
		t.Error(err)
	}
	p.Rank, p.RoomListener = 0, listener
	conn, err := net.Dial("tcp", p.Room)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := p.Run(t.Context()); !errors.Is(err, context.DeadlineExceeded) ||
		!strings.Contains(err.Error(), "did not come") {
		t.Error(err)
	}
	if took := time.Since(began); took >= helloTimeout {
		t.Errorf("waited for %v", took)
	}
}

// TestStrangers sends rubbish to the room: it is turned away, and the run goes on.
func TestStrangers(t *testing.T) {
	errs := together(t, smallPlan(), func(p *Process) {
		if p.Rank != 0 {
			return
		}
		for _, rubbish := range []string{"GET / HTTP/1.0\r\n\r\n", "\x02\x00\x00\x00{]", "\xff\xff\xff\x00short"} {
			conn, err := net.Dial("tcp", p.Room)
			if err != nil {
				t.Fatal(err)
			}
			io.WriteString(conn, rubbish)
			conn.(*net.TCPConn).CloseWrite()
			t.Cleanup(func() { conn.Close() })
		}
	})
	for rank, err := range errs {
		if err != nil {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

func TestDifferentBytesAreFound(t *testing.T) {
	c, reports := sampleReports()
	for i := range reports {
		reports[i].Digests = [][]byte{{1}, {2}}
	}
	if err := sameBytes(c, reports); err != nil {
		t.Error(err)
	}
	reports[2].Digests = [][]byte{{1}, {3}}
	if err := sameBytes(c, reports); !errors.Is(err, ErrDiffers) ||
		!strings.Contains(err.Error(), "rank 2 got other bytes than rank 1 sent") {
		t.Error(err)
	}
	reports[2].Digests = nil
	if err := sameBytes(c, reports); !errors.Is(err, ErrDiffers) {
		t.Error(err)
	}
}
