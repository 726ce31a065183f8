package replicate

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
)

// groupHub joins group ends of one process by function calls: a multicast with faults on demand.
type groupHub struct {
	mu     sync.Mutex
	groups map[uint64]*hubGroup
	dead   map[meta.NodeID]bool
	// block is called before a block is given to a member; an error breaks the group with that member as suspect. It
	// may wait. It may be nil.
	block func(to meta.NodeID, i uint64) error
	// sink is called before a block of a message of a size is stored at a member; its error is that of the member's
	// sink. It may be nil.
	sink func(to meta.NodeID, size uint64) error
}

type hubGroup struct {
	hub  *groupHub
	ends map[int]*hubGroupEnd
	made chan struct{} // closed and replaced when ends grows
	cfg  rdmc.GroupConfig
}

// hubEnd makes the ends of one node.
type hubEnd struct {
	hub  *groupHub
	node meta.NodeID
}

func newGroupHub() *groupHub {
	return &groupHub{groups: make(map[uint64]*hubGroup), dead: make(map[meta.NodeID]bool)}
}

func (h *groupHub) setBlock(f func(to meta.NodeID, i uint64) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.block = f
}

func (h *groupHub) setSink(f func(to meta.NodeID, size uint64) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sink = f
}

// unended counts the groups of a root that have failed and that it still keeps.
func (h *groupHub) unended(root meta.NodeID) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, g := range h.groups {
		if e := g.ends[0]; e != nil && e.node == root && e.Err() != nil && !e.over.Load() {
			n++
		}
	}
	return n
}

// cut breaks all groups of a node.
func (h *groupHub) cut(node meta.NodeID) {
	h.mu.Lock()
	var broken []*hubGroupEnd
	var ranks []int
	for _, g := range h.groups {
		for rank, e := range g.ends {
			if e.node == node {
				broken = append(broken, e)
				ranks = append(ranks, rank)
			}
		}
	}
	h.mu.Unlock()
	for i, e := range broken {
		e.g.fail(&rdmc.GroupError{Reason: rdmc.ReasonDisconnected, Suspects: []int{ranks[i]}, Reporter: -1})
	}
}

func (e *hubEnd) NewGroup(cfg rdmc.GroupConfig) (Group, error) {
	e.hub.mu.Lock()
	defer e.hub.mu.Unlock()
	g := e.hub.groups[cfg.Number]
	if g == nil {
		g = &hubGroup{hub: e.hub, ends: make(map[int]*hubGroupEnd), made: make(chan struct{}), cfg: cfg}
		e.hub.groups[cfg.Number] = g
	}
	end := &hubGroupEnd{
		g: g, node: e.node, rank: cfg.Rank, failed: make(chan struct{}), recv: make(map[uint64]*hubTransfer),
		arrived: make(chan struct{}),
	}
	g.ends[cfg.Rank] = end
	close(g.made)
	g.made = make(chan struct{})
	return end, nil
}

type hubGroupEnd struct {
	g    *hubGroup
	node meta.NodeID
	rank int

	mu      sync.Mutex
	err     error
	failed  chan struct{}
	seq     uint64
	recv    map[uint64]*hubTransfer
	arrived chan struct{} // closed and replaced when recv grows
	sends   sync.WaitGroup
	last    chan struct{} // of the previous send
	moved   map[int]uint64
	done    uint64
	over    atomic.Bool // Abort or Close has returned
}

type hubTransfer struct {
	ann    rdmc.Announcement
	r      rdmc.Receiver
	stored chan struct{}
	done   chan struct{}
	once   sync.Once
	mu     sync.Mutex
	err    error
	busy   sync.Mutex // held while the sink is in use
}

func (t *hubTransfer) Announcement() rdmc.Announcement { return t.ann }
func (t *hubTransfer) Stored() <-chan struct{}         { return t.stored }
func (t *hubTransfer) Done() <-chan struct{}           { return t.done }
func (t *hubTransfer) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

func (t *hubTransfer) finish(err error) {
	t.once.Do(func() {
		t.busy.Lock()
		defer t.busy.Unlock()
		t.mu.Lock()
		t.err = err
		t.mu.Unlock()
		close(t.stored)
		close(t.done)
	})
}

func newHubTransfer(ann rdmc.Announcement, r rdmc.Receiver) *hubTransfer {
	return &hubTransfer{ann: ann, r: r, stored: make(chan struct{}), done: make(chan struct{})}
}

func (e *hubGroupEnd) Addresses() map[int][]byte {
	out := make(map[int][]byte)
	for r := range e.g.cfg.Members {
		if r != e.rank {
			out[r] = []byte{byte(e.rank), byte(r)}
		}
	}
	return out
}

func (e *hubGroupEnd) Connect(_ context.Context, remote map[int][]byte) error {
	for r, a := range remote {
		if int(a[0]) != r || int(a[1]) != e.rank {
			return errors.New("hub: addresses went to the wrong rank")
		}
	}
	if len(remote) != len(e.g.cfg.Members)-1 {
		return errors.New("hub: addresses missing")
	}
	return nil
}

func (e *hubGroupEnd) Failed() <-chan struct{} { return e.failed }

func (e *hubGroupEnd) Err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

func (e *hubGroupEnd) Fail(suspects []int, cause error) {
	e.g.fail(&rdmc.GroupError{Reason: rdmc.ReasonAborted, Suspects: suspects, Reporter: e.rank, Err: cause})
}

func (e *hubGroupEnd) Abort() {
	e.fail(&rdmc.GroupError{Reason: rdmc.ReasonAborted, Reporter: e.rank})
	e.sends.Wait()
	e.over.Store(true)
}

func (e *hubGroupEnd) Close(ctx context.Context) error { e.Abort(); return nil }

func (g *hubGroup) fail(err error) {
	g.hub.mu.Lock()
	var ends []*hubGroupEnd
	for _, e := range g.ends {
		ends = append(ends, e)
	}
	g.hub.mu.Unlock()
	for _, e := range ends {
		e.fail(err)
	}
}

func (e *hubGroupEnd) fail(err error) {
	e.mu.Lock()
	first := e.err == nil
	if first {
		e.err = err
		close(e.failed)
	}
	var ts []*hubTransfer
	for _, t := range e.recv {
		ts = append(ts, t)
	}
	e.mu.Unlock()
	for _, t := range ts {
		t.finish(err)
	}
}

func (e *hubGroupEnd) Progress() []rdmc.MemberProgress {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []rdmc.MemberProgress
	for rank := range e.g.cfg.Members {
		out = append(out, rdmc.MemberProgress{Rank: rank, Done: e.done, Blocks: e.moved[rank]})
	}
	return out
}

func (e *hubGroupEnd) Receive(a rdmc.Announcement, r rdmc.Receiver) (Transfer, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return nil, e.err
	}
	t := newHubTransfer(a, r)
	e.recv[a.Seq] = t
	close(e.arrived)
	e.arrived = make(chan struct{})
	return t, nil
}

func (e *hubGroupEnd) Send(out rdmc.Outgoing) (Transfer, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return nil, e.err
	}
	e.seq++
	blocks := out.Blocks
	if !out.Partial {
		blocks = rdmc.AllBlocks(rdmc.BlockCount(out.Size, e.g.cfg.BlockSize))
	}
	t := newHubTransfer(rdmc.Announcement{Seq: e.seq, Size: out.Size, Blocks: blocks}, rdmc.Receiver{})
	before := e.last
	after := make(chan struct{})
	e.last = after
	e.recv[e.seq] = t
	e.sends.Go(func() {
		defer close(after)
		if before != nil {
			<-before
		}
		if err := e.send(t, out.Source); err != nil {
			e.g.fail(err)
			t.finish(err)
			return
		}
		t.finish(nil)
	})
	return t, nil
}

// await waits until a member has posted its side of a message.
func (e *hubGroupEnd) await(seq uint64, failed <-chan struct{}) *hubTransfer {
	for {
		e.mu.Lock()
		t, wait := e.recv[seq], e.arrived
		e.mu.Unlock()
		if t != nil {
			return t
		}
		select {
		case <-wait:
		case <-failed:
			return nil
		}
	}
}

// end waits until a member has made its end of the group.
func (g *hubGroup) end(rank int, failed <-chan struct{}) *hubGroupEnd {
	for {
		g.hub.mu.Lock()
		end, wait := g.ends[rank], g.made
		g.hub.mu.Unlock()
		if end != nil {
			return end
		}
		select {
		case <-wait:
		case <-failed:
			return nil
		}
	}
}

func (e *hubGroupEnd) send(t *hubTransfer, src rdmc.Source) error {
	members := make(map[int]*hubTransfer)
	e.mu.Lock()
	e.moved = make(map[int]uint64)
	e.mu.Unlock()
	for r := 1; r < len(e.g.cfg.Members); r++ {
		end := e.g.end(r, e.failed)
		if end == nil {
			return e.Err()
		}
		m := end.await(t.ann.Seq, e.failed)
		if m == nil {
			return e.Err()
		}
		members[r] = m
	}
	for _, run := range t.ann.Blocks {
		for i := run.First; i < run.First+run.Count; i++ {
			if err := e.sendBlock(t, members, src, i); err != nil {
				return err
			}
		}
	}
	e.mu.Lock()
	e.done = t.ann.Seq
	e.mu.Unlock()
	for _, m := range members {
		m.finish(nil)
	}
	return nil
}

func (e *hubGroupEnd) sendBlock(t *hubTransfer, members map[int]*hubTransfer, src rdmc.Source, i uint64) error {
	buf := make([]byte, rdmc.BlockLength(t.ann.Size, e.g.cfg.BlockSize, i))
	if err := src.ReadBlock(i, buf); err != nil {
		return &rdmc.GroupError{Reason: rdmc.ReasonSource, Suspects: []int{0}, Reporter: 0, Err: err}
	}
	e.g.hub.mu.Lock()
	hook, sink := e.g.hub.block, e.g.hub.sink
	e.g.hub.mu.Unlock()
	for r := 1; r < len(e.g.cfg.Members); r++ {
		m := members[r]
		e.g.hub.mu.Lock()
		node := e.g.ends[r].node
		e.g.hub.mu.Unlock()
		if hook != nil {
			if err := hook(node, i); err != nil {
				return &rdmc.GroupError{Reason: rdmc.ReasonDisconnected, Suspects: []int{r}, Reporter: 0, Err: err}
			}
		}
		if sink != nil {
			if err := sink(node, t.ann.Size); err != nil {
				return &rdmc.GroupError{Reason: rdmc.ReasonSink, Suspects: []int{r}, Reporter: r, Err: err}
			}
		}
		if err := e.give(m, i, buf); err != nil {
			return &rdmc.GroupError{Reason: rdmc.ReasonSink, Suspects: []int{r}, Reporter: r, Err: err}
		}
		e.mu.Lock()
		e.moved[r]++
		e.mu.Unlock()
	}
	return e.Err()
}

func (e *hubGroupEnd) give(m *hubTransfer, i uint64, buf []byte) error {
	m.busy.Lock()
	defer m.busy.Unlock()
	select {
	case <-m.done:
		return m.Err()
	default:
	}
	if m.r.Have.Has(i) {
		return nil
	}
	return m.r.Sink.WriteBlock(i, buf)
}

// resetGroups forgets the groups made so far; groupSizes lists the groups made since, by members.
func (h *groupHub) resetGroups() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.groups = make(map[uint64]*hubGroup)
}

func (h *groupHub) groupSizes() (out []int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, g := range h.groups {
		out = append(out, len(g.cfg.Members))
	}
	return out
}
