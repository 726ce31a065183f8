package rdmc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// faultGroup is one group of a faultRun.
type faultGroup struct {
	run    *faultRun
	cfg    GroupConfig // of all members
	on     []int       // device by rank
	small  bool        // SendSmall is used
	script []int       // sizes of messages in order of sending; sizes below 0 go by SendSmall
	ends   []*faultEnd
	over   chan struct{} // closed when the root sends no more

	mu   sync.Mutex
	sent []*memory // by number, from 1 at 0
}

// faultEnd is one member of a faultGroup.
type faultEnd struct {
	in     *faultGroup
	rank   int
	g      *Group
	late   time.Duration     // until it connects
	told   chan Announcement // of an announced group: room for all
	closed error             // what Close returned
	at     time.Time         // when the member knew of the failure
	asked  time.Time         // when it last began to wait for the group, by Receive or Close

	mu        sync.Mutex
	order     []uint64          // messages in the order in which they were completed or handed over
	smalls    map[uint64][]byte // as handed over
	sinks     []*memory         // of messages that came by blocks, in order of beginning
	transfers map[int]*Transfer // by place in sinks, of announced groups
	slow      func() time.Duration
	sinkFails bool
	failures  int
}

// toSink reports whether a message of the script goes to a Sink, and not to Small.
func (fg *faultGroup) toSink(size int) bool {
	return size > 0 && (!fg.small || !fg.cfg.Unannounced || size > min(fg.cfg.SmallBytes, fg.cfg.BlockSize))
}

// rankOf is the rank of a device's member, or -1.
func (fg *faultGroup) rankOf(device int) int { return slices.Index(fg.on, device) }

func (fg *faultGroup) String() string {
	mode := "announced"
	if fg.cfg.Unannounced {
		mode = "unannounced"
	}
	return fmt.Sprintf("group %d: %v of devices %v, %s, window %d, small %t, cap %d, %d messages", fg.cfg.Number,
		fg.cfg.Algorithm, fg.on, mode,
		fg.cfg.Window, fg.small, fg.cfg.SendRate, len(fg.script))
}

// newFaultGroup draws a group.
func newFaultGroup(r *faultRun, number int) *faultGroup {
	rng := r.rng
	n := 2 + rng.IntN(len(r.devices)-1)
	fg := &faultGroup{run: r, on: rng.Perm(len(r.devices))[:n], over: make(chan struct{})}
	fg.cfg = GroupConfig{Number: uint64(number), Epoch: uint32(1 + rng.IntN(3)), BlockSize: 200 + rng.IntN(1000),
		Window: 2 + rng.IntN(8), MaxSends: 1 + rng.IntN(3),
		SilenceTimeout: faultSilence}
	fg.cfg.Algorithm = schedule.Algorithms()[rng.IntN(len(schedule.Algorithms()))]
	if fg.cfg.Algorithm == schedule.Hypercube && n&(n-1) != 0 {
		fg.cfg.Algorithm = schedule.BinomialPipeline
	}
	if fg.cfg.Algorithm == schedule.Hybrid {
		for range n {
			fg.cfg.Racks = append(fg.cfg.Racks, rng.IntN(3))
		}
	}
	fg.cfg.Unannounced = rng.IntN(3) > 0
	fg.small = rng.IntN(2) == 0
	if fg.small {
		fg.cfg.SmallBytes = 50 + rng.IntN(200)
	} else if rng.IntN(2) == 0 {
		fg.cfg.SmallBytes = -1
	}
	if rng.IntN(4) == 0 {
		fg.cfg.SendRate = 1_000_000 + rng.Uint64N(10_000_000)
	}
	for range 1 + rng.IntN(6) {
		fg.script = append(fg.script, 1+rng.IntN(25*fg.cfg.BlockSize))
		for i := rng.IntN(30); fg.small && i > 0; i-- {
			fg.script = append(fg.script, -1-rng.IntN(fg.cfg.SmallBytes))
		}
	}
	return fg
}

// open makes the members. Each device's cfg.Epoch may be another's.
func (fg *faultGroup) open() {
	for rank, device := range fg.on {
		e := &faultEnd{in: fg, rank: rank, late: fg.run.draw(faultStagger), told: make(chan Announcement, len(fg.script)),
			smalls: make(map[uint64][]byte), transfers: make(map[int]*Transfer)}
		fg.ends = append(fg.ends, e)
		cfg := fg.cfg
		cfg.Members, cfg.Rank = make([]string, len(fg.on)), rank
		if fg.run.kind == faultEpoch && device == fg.run.victim {
			cfg.Epoch--
		}
		e.configure(&cfg)
		g, err := fg.run.engines[device].NewGroup(cfg)
		if err != nil {
			fg.run.t.Fatalf("%v: rank %d: %v", fg, rank, err)
		}
		e.g = g
	}
}

// configure sets the callbacks. They call the library, as they may.
func (e *faultEnd) configure(cfg *GroupConfig) {
	if e.in.small {
		cfg.Small = func(seq uint64, data []byte) {
			e.pause()
			e.mu.Lock()
			defer e.mu.Unlock()
			e.order = append(e.order, seq)
			e.smalls[seq] = bytes.Clone(data)
			_ = e.g.Progress()
		}
	}
	if cfg.Unannounced {
		cfg.Incoming = func(size uint64) (Sink, error) {
			_ = e.g.Err()
			return e.sink(int(size)), nil
		}
	}
	cfg.Completed = func(t *Transfer) {
		e.pause()
		if err := t.Err(); err != nil {
			e.in.run.t.Errorf("%v: rank %d: completed, yet %v", e.in, e.rank, err)
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		e.order = append(e.order, t.Announcement().Seq)
	}
	cfg.OnFailure = func(err error) {
		if !errors.Is(err, ErrFailed) || e.g.Err() == nil {
			e.in.run.t.Errorf("%v: rank %d: told of %v", e.in, e.rank, err)
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		e.failures++
	}
}

// sink makes the next message's memory.
func (e *faultEnd) sink(size int) *memory {
	e.mu.Lock()
	defer e.mu.Unlock()
	m := newMemory(size, e.in.cfg.BlockSize)
	m.fail = func(uint64) error {
		e.pause()
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.sinkFails {
			return errTest
		}
		return nil
	}
	e.sinks = append(e.sinks, m)
	return m
}

// pause is how slow the member is, in virtual time.
func (e *faultEnd) pause() {
	e.mu.Lock()
	slow := e.slow
	e.mu.Unlock()
	if slow != nil {
		<-time.After(slow())
	}
}

// live is a member from its connecting to its end.
func (e *faultEnd) live(remote map[int][]byte) {
	r := e.in.run
	<-time.After(e.late)
	ctx, cancel := context.WithTimeout(context.Background(), faultConnect)
	err := e.g.Connect(ctx, remote)
	cancel()
	if err != nil && e.g.Err() == nil {
		r.t.Errorf("%v: rank %d: connect says %v, the group has not failed", e.in, e.rank, err)
	}
	var watch sync.WaitGroup
	over := make(chan struct{})
	watch.Go(func() {
		select {
		case <-e.g.Failed():
			e.at = time.Now()
		case <-over:
		}
	})
	switch {
	case e.rank == 0:
		e.in.send(e.g)
	case !e.in.cfg.Unannounced:
		e.receive()
	}
	ctx, cancel = context.WithTimeout(context.Background(), faultClose)
	defer cancel()
	e.asks()
	e.closed = e.g.Close(ctx)
	close(over)
	watch.Wait()
}

// asks notes that the member begins to wait for the group, unless that has failed or the member waits already.
func (e *faultEnd) asks() {
	e.g.mu.Lock()
	defer e.g.mu.Unlock()
	if !e.g.core.Ended() && !e.g.core.Active() {
		e.asked = time.Now()
	}
}

// leave is Abort without the waiting, which Close does: in virtual time no two may wait in one sync.Once.
func (e *faultEnd) leave() {
	var suspects []int
	if e.rank != 0 {
		suspects = []int{e.rank}
	}
	e.g.Fail(suspects, ErrClosed)
}

// send is the root's part: it goes through the script until the group ends.
func (fg *faultGroup) send(g *Group) {
	defer close(fg.over)
	for seq, size := range fg.script {
		if fg.run.pick(3) == 0 {
			<-time.After(fg.run.draw(3 * time.Millisecond))
		}
		src := randomMemory(fg.run.seed+uint64(seq), max(size, -size), fg.cfg.BlockSize)
		fg.mu.Lock()
		fg.sent = append(fg.sent, src)
		fg.mu.Unlock()
		if err := fg.sendOne(g, size, src); errors.Is(err, ErrFailed) || errors.Is(err, ErrClosed) {
			return
		} else if err != nil {
			fg.run.t.Errorf("%v: message %d: %v", fg, seq+1, err)
			return
		}
	}
}

func (fg *faultGroup) sendOne(g *Group, size int, src *memory) error {
	if size < 0 {
		for {
			_, err := g.SendSmall(src.data)
			if !errors.Is(err, ErrFull) {
				return err
			}
			if err := g.WaitRoom(context.Background()); err != nil { // ends with the group
				return err
			}
		}
	}
	t, err := g.Send(Outgoing{Size: uint64(size), Source: src})
	if err != nil {
		return err
	}
	for _, e := range fg.ends[1:] {
		e.told <- t.Announcement()
	}
	return nil
}

// receive plays a member to which messages are announced; it hears of them late. Nobody watches a group that has
// nothing under way, so the one that announces messages must find out, too, that the root is gone.
func (e *faultEnd) receive() {
	large := 0
	for _, size := range e.in.script {
		if size > 0 {
			large++
		}
	}
	for i := range large {
		var a Announcement
		select {
		case a = <-e.told:
		case <-e.g.Failed():
			return
		case <-e.in.over:
			select {
			case a = <-e.told:
			default:
				return
			}
		}
		<-time.After(e.in.run.draw(2 * time.Millisecond))
		e.asks()
		t, err := e.g.Receive(a, Receiver{Sink: e.sink(int(a.Size))})
		if err != nil {
			if !errors.Is(err, ErrFailed) && !errors.Is(err, ErrClosed) {
				e.in.run.t.Errorf("%v: rank %d: receive %d: %v", e.in, e.rank, a.Seq, err)
			}
			return
		}
		e.mu.Lock()
		e.transfers[i] = t
		e.mu.Unlock()
	}
}
