package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
)

// root is the root's side of a session. Its state belongs to who calls send, or close after it.
type root struct {
	cfg    Config
	common welcome
	engine *rdmc.Engine
	door   *door
	quit   chan struct{} // closed by close
	once   sync.Once
	work   sync.WaitGroup // readers, the door
	said   chan heard     // written by the readers

	conns      map[int]net.Conn // of members that are not out
	ids        []int            // of the group, by rank; before the first one all
	epoch      uint32           // of the group, or of the one that is being made
	group      *rdmc.Group      // nil, or the epoch's, which may have failed
	number     uint64           // of the last message
	bloodless  int              // epochs in a row that failed and cost nobody
	lost       []Lost
	reported   int   // of lost, in deliveries
	err        error // why the session has ended
	callsUnder sync.Mutex
}

// heard is what a member said, or how its connection ended.
type heard struct {
	id    int
	frame frame
	err   error
}

func openRoot(ctx context.Context, cfg Config, engine *rdmc.Engine) (*root, error) {
	r := &root{
		cfg: cfg, engine: engine, quit: make(chan struct{}), said: make(chan heard, cfg.Members),
		common: welcome{members: cfg.Members, blockSize: cfg.BlockSize, detect: cfg.Detect},
		ids:    make([]int, cfg.Members),
	}
	for id := range r.ids {
		r.ids[id] = id
	}
	var err error
	if r.door, err = openDoor(cfg, r.common); err != nil {
		return nil, err
	}
	if r.conns, err = r.door.admitAll(ctx); err != nil {
		r.door.close()
		return nil, err
	}
	for id, conn := range r.conns {
		r.work.Go(func() { r.read(id, conn) })
	}
	if err := r.reform(ctx, nil); err != nil {
		r.close(err.Error())
		return nil, err
	}
	return r, nil
}

// read hands on what a member says.
func (r *root) read(id int, conn net.Conn) {
	for {
		f, err := receive(conn, maxFrame)
		select {
		case r.said <- heard{id, f, err}:
		case <-r.quit:
			return
		}
		if err != nil {
			return
		}
	}
}

// outgoing is the message that is being sent.
type outgoing struct {
	size   uint64
	blocks uint64      // in all
	move   rdmc.Ranges // those that some member lacks
	source rdmc.Source
}

func (r *root) send(ctx context.Context, size uint64, source rdmc.Source) (Delivery, error) {
	r.callsUnder.Lock()
	defer r.callsUnder.Unlock()
	if r.err != nil {
		return Delivery{}, r.err
	}
	if source == nil && size > 0 {
		return Delivery{}, fmt.Errorf("%w: a message without a source", rdmc.ErrInvalid)
	}
	blocks := rdmc.BlockCount(size, r.common.blockSize)
	if size > rdmc.MaxMessageBytes || blocks > rdmc.MaxMessageBlocks {
		return Delivery{}, fmt.Errorf("%w: message of %d bytes in blocks of %d", rdmc.ErrInvalid, size, r.common.blockSize)
	}
	r.number++
	before := r.epoch
	m := &outgoing{size: size, blocks: blocks, move: rdmc.AllBlocks(blocks), source: source}
	err := r.deliver(ctx, m)
	d := Delivery{Out: slices.Clone(r.lost[r.reported:]), Epochs: int(r.epoch-before) + 1}
	r.reported = len(r.lost)
	if err != nil {
		r.err = fmt.Errorf("rendezvous: message %d: %w", r.number, err)
		r.tell(frame{kind: kindEnd, epoch: r.epoch, text: r.err.Error()})
		r.abort()
		return d, r.err
	}
	d.Members = slices.Clone(r.ids)
	return d, nil
}

// deliver sends the message in group after group until one brings it to all of its members.
func (r *root) deliver(ctx context.Context, m *outgoing) error {
	for {
		err := r.attempt(ctx, m)
		if err == nil {
			r.bloodless = 0
			r.tell(frame{kind: kindDelivered, epoch: r.epoch, number: r.number})
			return nil
		}
		if ctx.Err() != nil {
			return errors.Join(ctx.Err(), err)
		}
		if err := r.reform(ctx, m); err != nil {
			return err
		}
	}
}

// attempt sends what is missing in the present group.
func (r *root) attempt(ctx context.Context, m *outgoing) error {
	t, err := r.group.Send(rdmc.Outgoing{Size: m.size, Partial: true, Blocks: m.move, Source: m.source})
	if err != nil {
		return err
	}
	r.tell(frame{kind: kindBegin, epoch: r.epoch, number: r.number, message: t.Announcement()})
	for {
		select {
		case <-t.Done():
			return t.Err()
		case h := <-r.said:
			if h.err == nil || r.conns[h.id] == nil {
				continue // of an epoch that is over, or out already
			}
			r.drop(h.id, "its connection ended: "+h.err.Error())
			r.group.Fail([]int{slices.Index(r.ids, h.id)}, h.err)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// reform makes the group of the next epoch from those that are left, until one is connected. m is the message under
// way, if any.
func (r *root) reform(ctx context.Context, m *outgoing) error {
	for {
		if err := r.bury(); err != nil {
			return err
		}
		present, err := r.meet(ctx, m)
		if err != nil {
			return err
		}
		r.ids = present
		if len(present) < 2 {
			return ErrNobodyLeft
		}
		err = r.connect(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil || r.err != nil {
			return fmt.Errorf("rendezvous: epoch %d: %w", r.epoch, errors.Join(ctx.Err(), err))
		}
	}
}

// bury ends the group that failed, after the members have been called to the next meeting, and finds out who is out.
func (r *root) bury() error {
	if r.group == nil {
		r.call()
		return nil
	}
	failure := asGroupError(r.group.Err())
	r.cfg.OnFailure(r.epoch, failure)
	out, fatal := verdict(failure, r.ids)
	if fatal {
		return failure
	}
	if len(out) > 0 || len(r.conns) < len(r.ids)-1 {
		r.bloodless = 0
	} else if r.bloodless++; r.bloodless >= bloodlessMax {
		return fmt.Errorf("%w: %d groups in a row failed, and no member is known to be the cause: %w", ErrEnded, r.bloodless, failure)
	}
	for _, id := range out {
		r.drop(id, failure.Error())
	}
	r.call()
	r.group.Abort()
	r.group = nil
	return nil
}

// called is the root and all that are not out.
func (r *root) called() []int { return append([]int{0}, slices.Sorted(maps.Keys(r.conns))...) }

// call begins the next epoch.
func (r *root) call() {
	r.epoch++
	r.tell(frame{kind: kindCall, epoch: r.epoch, number: r.number, members: r.called()})
}

// meet waits for those who were called, and notes what they lack.
func (r *root) meet(ctx context.Context, m *outgoing) ([]int, error) {
	roll := newRoll(r.called())
	err := r.await(ctx, r.common.detect, nil, roll.all, func(h heard) error {
		if h.err != nil {
			roll.gone(h.id)
			return h.err
		}
		if h.frame.kind != kindMeet || h.frame.epoch != r.epoch {
			return nil
		}
		if m != nil {
			if err := h.frame.have.Validate(m.blocks); err != nil {
				roll.gone(h.id)
				return err
			}
		}
		roll.come(h.id, h.frame.have)
		return nil
	})
	if err != nil {
		return nil, err // nobody has had the time to come
	}
	for id := range roll.awaited {
		r.drop(id, fmt.Sprintf("did not come to the meeting of epoch %d within %v", r.epoch, r.common.detect))
	}
	if m != nil {
		m.move = roll.lacking(m.blocks)
	}
	return roll.present(), nil
}

// connect makes and connects the epoch's group.
func (r *root) connect(ctx context.Context) error {
	form := frame{kind: kindForm, epoch: r.epoch, members: r.ids, algorithm: algorithmFor(r.cfg.Algorithm, len(r.ids))}
	group, err := r.engine.NewGroup(groupConfig(r.cfg, r.common, form, 0))
	if err != nil {
		return r.hopeless(err)
	}
	r.group = group
	r.tell(form)
	inbox, err := r.exchange(ctx)
	if err != nil {
		return r.failed(err)
	}
	for rank, id := range r.ids[1:] {
		r.tellOne(id, frame{kind: kindAddresses, epoch: r.epoch, parts: inbox[rank+1]})
	}
	bounded, cancel := context.WithTimeout(ctx, r.patience())
	defer cancel()
	if err := group.Connect(bounded, inbox[0]); err != nil {
		return r.failed(err)
	}
	if err := r.awaitConnected(ctx); err != nil {
		return r.failed(err)
	}
	return nil
}

// hopeless is an error at the root that another epoch would not mend.
func (r *root) hopeless(err error) error {
	r.err = err
	return err
}

// failed has the epoch's group fail, unless it has, and returns why.
func (r *root) failed(err error) error {
	r.group.Fail(absent(r.ids, r.called()), err)
	return err
}

// patience is how long one step of connecting may take.
func (r *root) patience() time.Duration { return 2 * r.common.detect }

// exchange gathers the addresses of all members, by rank of who they are for.
func (r *root) exchange(ctx context.Context) ([]map[int][]byte, error) {
	inbox := make([]map[int][]byte, len(r.ids))
	for rank := range inbox {
		inbox[rank] = make(map[int][]byte)
	}
	for to, b := range r.group.Addresses() {
		inbox[to][0] = b
	}
	return inbox, r.each(ctx, kindAddresses, func(rank int, f frame) error {
		for to, b := range f.parts {
			if to < 0 || to >= len(inbox) {
				return fmt.Errorf("%w: addresses for member %d of %d", ErrProtocol, to, len(inbox))
			}
			inbox[to][rank] = b
		}
		return nil
	})
}

// awaitConnected waits until all members say that they are connected.
func (r *root) awaitConnected(ctx context.Context) error {
	return r.each(ctx, kindConnected, func(_ int, f frame) error {
		if f.text != "" {
			r.group.Fail(nil, errors.New(f.text)) // who is to blame is what the group says, if it knows
		}
		return nil
	})
}

// each waits for one frame of a kind of this epoch from each member of the group, and drops those that do not send
// it. It ends early when the group fails.
func (r *root) each(ctx context.Context, kind frameKind, take func(rank int, f frame) error) error {
	roll := newRoll(r.ids)
	err := r.await(ctx, r.patience(), r.group.Failed(), roll.all, func(h heard) error {
		if h.err == nil && (h.frame.kind != kind || h.frame.epoch != r.epoch) {
			return nil
		}
		if h.err == nil {
			h.err = take(slices.Index(r.ids, h.id), h.frame)
		}
		roll.come(h.id, nil)
		return h.err
	})
	for id := range roll.awaited {
		if err == nil {
			r.drop(id, fmt.Sprintf("did not connect in epoch %d within %v", r.epoch, r.patience()))
		}
	}
	if missing := absent(r.ids, r.called()); err == nil && len(missing) > 0 {
		err = fmt.Errorf("rendezvous: epoch %d: ranks %v are gone", r.epoch, missing)
	}
	return err
}

// await hands on what members say until done, or for so long, or until the group fails. A member for which take has
// an error is dropped.
func (r *root) await(ctx context.Context, within time.Duration, failed <-chan struct{}, done func() bool, take func(heard) error) error {
	timer := time.NewTimer(within)
	defer timer.Stop()
	for !done() {
		select {
		case h := <-r.said:
			if r.conns[h.id] == nil {
				continue // out already
			}
			if err := take(h); err != nil {
				r.drop(h.id, err.Error())
			}
		case <-timer.C:
			return nil
		case <-failed:
			return r.group.Err()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// drop puts a member out of the session and tells it, as far as it can be told.
func (r *root) drop(id int, reason string) {
	conn := r.conns[id]
	if conn == nil {
		return
	}
	delete(r.conns, id)
	r.lost = append(r.lost, Lost{Rank: id, Epoch: r.epoch, Reason: reason})
	r.cfg.Log.Info("member is out", "member", id, "epoch", r.epoch, "reason", reason)
	send(conn, frame{kind: kindOut, epoch: r.epoch, text: reason}, r.common.detect) // a stopped member reads it when it goes on
	conn.Close()
}

// tell sends a frame to all members that are not out. Who can't be told will not answer.
func (r *root) tell(f frame) {
	var all sync.WaitGroup
	for _, conn := range r.conns {
		all.Go(func() { r.tellConn(conn, f) })
	}
	all.Wait()
}

func (r *root) tellOne(id int, f frame) {
	if conn := r.conns[id]; conn != nil {
		r.tellConn(conn, f)
	}
}

// tellConn ends a connection that takes nothing in, so that its reader notices.
func (r *root) tellConn(conn net.Conn, f frame) {
	if err := send(conn, f, r.common.detect); err != nil {
		conn.Close()
	}
}

// abort ends the present group.
func (r *root) abort() {
	if r.group != nil {
		r.group.Abort()
		r.group = nil
	}
}

// farewell bounds how long close waits for members to hang up.
const farewell = time.Second

// close ends the session; reason is empty if all is well. A Send under way ends first.
func (r *root) close(reason string) {
	r.once.Do(func() {
		r.callsUnder.Lock()
		defer r.callsUnder.Unlock()
		if reason == "" && r.err != nil {
			reason = r.err.Error()
		}
		r.tell(frame{kind: kindEnd, epoch: r.epoch, text: reason})
		r.abort()
		r.hangUp()
		close(r.quit)
		r.door.close()
		r.work.Wait()
		if r.err == nil {
			r.err = fmt.Errorf("%w: it was closed", ErrEnded)
		}
	})
}

// hangUp closes the connections when the members have read to the end, or have had time to.
func (r *root) hangUp() {
	for _, conn := range r.conns {
		if half, ok := conn.(interface{ CloseWrite() error }); ok {
			half.CloseWrite() // the member sees the end
		}
	}
	roll := newRoll(r.called())
	r.await(context.Background(), farewell, nil, roll.all, func(h heard) error {
		if h.err != nil {
			roll.gone(h.id)
		}
		return nil
	})
	for _, conn := range r.conns {
		conn.Close()
	}
}
