package rdmc

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing/synctest"
	"time"

	"github.com/rdmcfs/rdmcfs/replicate/rdmc/core"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// checkFaults holds what must be so after any run: each member has a prefix of the messages, in order, once, with the
// right bytes; a member whose Close succeeded is in a group in which all members have everything; a group without the
// victim, and any group without a fault, closes well everywhere; in one that failed each survivor that waits for it
// knows within faultBound, and whom to suspect; and no device had more memory registered than its groups may have.
func (r *faultRun) checkFaults() {
	for _, fg := range r.groups {
		closed := false
		for _, e := range fg.ends {
			e.checkMessages()
			e.checkEnd()
			closed = closed || e.closed == nil
		}
		for _, e := range fg.ends {
			if closed && !e.hasAll() {
				r.t.Errorf("%v: a member closed well and rank %d lacks messages", fg, e.rank)
			}
		}
	}
	for i, d := range r.devices {
		allowed := 0
		for _, fg := range r.groups {
			allowed += fg.memory(fg.rankOf(i))
		}
		if _, most := d.registered(); most > allowed {
			r.t.Errorf("device %d had %d bytes registered, its groups need at most %d", i, most, allowed)
		}
	}
	if r.t.Failed() {
		r.t.FailNow()
	}
}

// memory is the most that a member's buffers take.
func (fg *faultGroup) memory(rank int) int {
	if rank < 0 {
		return 0
	}
	g := fg.ends[rank].g
	lanes, page := len(fg.on)-1, 4096
	return (g.cfg.Window+lanes)*g.blocks.stride() + lanes*(core.ControlWindow+1)*core.MaxControl +
		(core.ControlWindow+smallWindow)*g.smalls.stride() + 4*page
}

// concerned reports whether the fault may end the group.
func (fg *faultGroup) concerned() bool {
	r := fg.run
	switch r.kind {
	case faultNone, faultSlow:
		return false
	case faultLine:
		return fg.rankOf(r.victim) >= 0 && fg.rankOf(r.other) >= 0
	}
	return fg.rankOf(r.victim) >= 0
}

// survives reports whether the member has to be notified.
func (e *faultEnd) survives() bool {
	r := e.in.run
	return r.kind == faultLine || e.in.on[e.rank] != r.victim
}

// checkEnd holds how the member's end of the group ended.
func (e *faultEnd) checkEnd() {
	r := e.in.run
	if e.closed == nil {
		if e.failures != 0 {
			r.t.Errorf("%v: rank %d closed well and was told of a failure", e.in, e.rank)
		}
		return
	}
	if !e.in.concerned() {
		r.t.Errorf("%v: rank %d: %v, the fault was not in this group", e.in, e.rank, e.closed)
		return
	}
	if !e.survives() {
		return
	}
	var failure *GroupError
	if !errors.As(e.closed, &failure) {
		r.t.Errorf("%v: rank %d was not told: %v", e.in, e.rank, e.closed)
		return
	}
	if e.failures != 1 {
		r.t.Errorf("%v: rank %d was told %d times", e.in, e.rank, e.failures)
	}
	e.checkSuspects(failure)
	took := e.at.Sub(r.struck)
	if e.asked.After(r.struck) {
		took = e.at.Sub(e.asked) // nothing was under way there before
	}
	r.longest = max(r.longest, took, 1)
	if took > faultBound+e.in.connecting() {
		r.t.Errorf("%v: rank %d was told %v after the fault, or after it began to wait", e.in, e.rank, took)
	}
}

// connecting is how long a member may wait for another that is gone before they are connected.
func (fg *faultGroup) connecting() time.Duration {
	if fg.run.after < faultStagger || fg.run.kind == faultEpoch {
		return faultStagger + faultConnect
	}
	return 0
}

func (e *faultEnd) checkSuspects(f *GroupError) {
	r := e.in.run
	victim, other := e.in.rankOf(r.victim), e.in.rankOf(r.other)
	ok := slices.Equal(f.Suspects, []int{victim})
	switch {
	case r.kind == faultAbort && victim == 0:
		ok = len(f.Suspects) == 0 || ok
	case r.kind == faultLine && e.rank == victim: // and the suspects of members that believed the other first
		ok = slices.Contains(f.Suspects, other) || slices.Equal(f.Suspects, []int{victim})
	case r.kind == faultLine && e.rank == other:
		ok = slices.Contains(f.Suspects, victim) || slices.Equal(f.Suspects, []int{other})
	case r.kind == faultLine:
		ok = ok || slices.Contains(f.Suspects, victim) || slices.Contains(f.Suspects, other)
	}
	// a member that still connects may suspect one that has already ended
	if !ok && e.in.connecting() == 0 {
		r.t.Errorf("%v: rank %d: %v, want suspect %d", e.in, e.rank, f, victim)
	}
}

// checkMessages holds that what the member has is what was sent, once, in order.
func (e *faultEnd) checkMessages() {
	t := e.in.run.t
	for i, seq := range e.order {
		if e.rank > 0 && e.in.small && seq != uint64(i+1) || i > 0 && seq <= e.order[i-1] {
			t.Errorf("%v: rank %d: order %v", e.in, e.rank, e.order)
			break
		}
	}
	for seq, data := range e.smalls {
		if !bytes.Equal(data, e.in.sent[seq-1].data) {
			t.Errorf("%v: rank %d: message %d has other bytes", e.in, e.rank, seq)
		}
	}
	if e.rank == 0 {
		return
	}
	large := e.in.large()
	for i, m := range e.sinks {
		if i >= len(large) {
			continue // posted ahead
		}
		if err := m.like(large[i]); err != nil {
			t.Errorf("%v: rank %d: large message %d: %v", e.in, e.rank, i, err)
		}
	}
}

// like holds that all that was stored was stored once and is as in the source.
func (m *memory) like(src *memory) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.data) != len(src.data) {
		return fmt.Errorf("%d bytes, want %d", len(m.data), len(src.data))
	}
	for i, times := range m.wrote {
		if times != 1 {
			return fmt.Errorf("block %d was stored %d times", i, times)
		}
		if !bytes.Equal(m.at(i), src.at(i)) {
			return fmt.Errorf("block %d has other bytes", i)
		}
	}
	return nil
}

// large are the messages that were sent and go to a Sink.
func (fg *faultGroup) large() (all []*memory) {
	for i, m := range fg.sent {
		if fg.toSink(fg.script[i]) {
			all = append(all, m)
		}
	}
	return all
}

// hasAll reports whether the member has all messages of the script, whole.
func (e *faultEnd) hasAll() bool {
	if len(e.in.sent) < len(e.in.script) {
		return false
	}
	if e.rank == 0 {
		return true
	}
	large := e.in.large()
	if len(e.smalls)+len(large) != len(e.in.script) || len(e.sinks) < len(large) {
		return false
	}
	for i, m := range large {
		if !bytes.Equal(e.sinks[i].data, m.data) {
			return false
		}
	}
	return true
}

// carryOn forms the next epoch of each announced group that failed, of the survivors, which moves what some lack. A
// stopped device goes on; it must not change anything.
func (r *faultRun) carryOn() {
	defer r.fabric.Resume(fmt.Sprint(r.victim)) // for its Close
	for _, fg := range r.groups {
		if victim := fg.rankOf(r.victim); victim > 0 && !fg.cfg.Unannounced && r.kind != faultLine &&
			fg.ends[0].closed != nil {
			fg.carryOn(victim)
		}
	}
	r.fabric.Resume(fmt.Sprint(r.victim))
	<-time.After(10 * faultSilence)
	synctest.Wait()
	for _, fg := range r.groups {
		for _, e := range fg.ends {
			e.checkMessages()
		}
	}
}

func (fg *faultGroup) carryOn(victim int) {
	t := fg.run.t
	next := &cluster{t: t, engines: fg.run.engines}
	cfg := fg.cfg
	cfg.Epoch++
	cfg.SmallBytes, cfg.Racks = -1, nil
	if cfg.Algorithm == schedule.Hypercube || cfg.Algorithm == schedule.Hybrid {
		cfg.Algorithm = schedule.BinomialPipeline
	}
	left := slices.Delete(slices.Clone(fg.ends), victim, victim+1)
	var on []int
	for _, e := range left {
		on = append(on, fg.on[e.rank])
	}
	groups := next.group(cfg, on...)
	for i, src := range fg.large() {
		fg.moveRest(groups, left, i, src)
	}
	closeAll(t, groups)
}

// moveRest sends what some of those left lack of large message i.
func (fg *faultGroup) moveRest(groups []*Group, left []*faultEnd, i int, src *memory) {
	t := fg.run.t
	size := uint64(len(src.data))
	blocks := BlockCount(size, fg.cfg.BlockSize)
	haves := make([]*Bitmap, len(left))
	for k, e := range left[1:] {
		haves[k+1] = NewBitmap(blocks)
		if tr := e.transfers[i]; tr != nil {
			haves[k+1] = tr.Have()
		} else if len(e.sinks) <= i {
			e.sink(len(src.data))
		}
	}
	root, err := groups[0].Send(Outgoing{Size: size, Partial: true, Blocks: lacking(blocks, haves[1:]), Source: src})
	if err != nil {
		t.Fatal(err)
	}
	for k, e := range left[1:] {
		if _, err := groups[k+1].Receive(root.Announcement(), Receiver{Sink: e.sinks[i], Have: haves[k+1]}); err != nil {
			t.Fatal(err)
		}
	}
	if err := root.Wait(testContext(t)); err != nil {
		t.Fatalf("%v: next epoch: %v", fg, err)
	}
	for _, e := range left[1:] {
		if !bytes.Equal(e.sinks[i].data, src.data) {
			t.Fatalf("%v: rank %d has other bytes in the next epoch", fg, e.rank)
		}
	}
}
