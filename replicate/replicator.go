package replicate

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/session"
)

// Replicator is the replication of one node: it pushes what is written here, takes what is written elsewhere, and
// catches up nodes that missed something, this one among them.
type Replicator struct {
	cfg        Config
	rootGroups *rootGroups
	transfers  *transfers
	counters   *counters
	member     *Member
	pusher     *Pusher
	supplier   *supplier
	assigner   *assigner
	remote     *remoteReads
	rooms      *roomBook
	queue      *verdictQueue

	stop context.CancelFunc
	wg   sync.WaitGroup

	mu       sync.Mutex
	serving  sync.WaitGroup // requests in Handle
	closed   bool
	shutdown sync.Once
}

var (
	_ Publisher = (*Replicator)(nil)
	_ Contents  = (*Replicator)(nil)
)

// New starts the replication of a node whose log was applied as far as its disk has it. It judges what an earlier
// process left undecided.
func New(cfg Config) (*Replicator, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	r := &Replicator{
		cfg: cfg, rootGroups: newRootGroups(cfg.Peers, cfg.Groups, cfg.Logger, cfg.Clock.Now),
		transfers: newTransfers(), counters: &counters{}, assigner: newAssigner(cfg), queue: newVerdictQueue(),
		rooms: newRoomBook(cfg),
	}
	r.remote = newRemoteReads(cfg, r.counters)
	r.member = newMember(cfg, r.remote)
	r.pusher = newPusher(cfg, r.rootGroups, r.transfers, r.counters, r.rooms, r.member.verdicts.settle)
	r.supplier = newSupplier(cfg, r.rootGroups, r.transfers, r.counters, r.member.mender.missing)
	r.assigner.own, r.assigner.pushing = r.supplier.work, r.writersPushes
	r.assigner.views, r.supplier.views = r.pusher.viewChange, r.pusher.viewChange
	r.member.startUp()
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	r.wg.Go(func() { r.queue.run(ctx, r.carryOut) })
	r.wg.Go(func() { r.member.held.run(ctx) })
	r.member.room.tell = r.tellRoom
	r.wg.Go(func() { r.member.room.run(ctx) })
	r.wg.Go(func() { r.member.lost.run(ctx) })
	r.wg.Go(func() { r.member.reconciler.run(ctx) })
	r.wg.Go(func() { r.member.mender.keepWhole(ctx) })
	r.wg.Go(func() { r.member.reconciler.releaseSpares(ctx) })
	r.wg.Go(func() { r.member.mender.keepShallow(ctx) })
	r.wg.Go(func() { r.member.mender.keepChecking(ctx) })
	r.wg.Go(func() { r.pusher.aborts.run(ctx) })
	r.wg.Go(func() { r.assigner.run(ctx) })
	r.wg.Go(func() { r.reapGroups(ctx) })
	return r, nil
}

// Close ends all transfers and waits for every goroutine. Nothing that was voted is lost; what was pushed from here
// and is not published stays with the callers.
func (r *Replicator) Close() error {
	r.shutdown.Do(func() {
		r.mu.Lock()
		r.closed = true
		r.mu.Unlock()
		r.stop()
		r.pusher.close()
		r.supplier.close()
		r.member.close()
		r.serving.Wait()
		r.wg.Wait()
		r.rootGroups.close()
	})
	return nil
}

func (r *Replicator) reapGroups(ctx context.Context) {
	for ctx.Err() == nil {
		pause(ctx, r.cfg.Clock, groupIdle/4)
		r.rootGroups.reap(ctx)
	}
}

// Publish implements Publisher.
func (r *Replicator) Publish(ctx context.Context, p Push) (Outcome, error) {
	return r.pusher.Publish(ctx, p)
}

// Transfers returns what moves now.
func (r *Replicator) Transfers() []TransferStatus { return r.transfers.list() }

// WhySlow returns the evidence by which this node last left another one out as slow; "" if it never did. If a content
// is named, only evidence from that content counts.
func (r *Replicator) WhySlow(node meta.NodeID, content meta.ContentID) string {
	return r.transfers.whySlow(node, content)
}

// Retiring reports whether a content of the store waits for its deletion, since the log names it no more.
func (r *Replicator) Retiring(id meta.ContentID) bool { return r.member.retired.has(id) }

// writersPushes returns the bytes that writers are pushing, by node, as far as they come here or go from here.
func (r *Replicator) writersPushes() map[meta.NodeID]int64 {
	bytes := make(map[meta.NodeID]int64)
	r.member.runs.pushed(bytes)
	for _, t := range r.transfers.list() {
		if !t.CatchUp {
			bytes[r.cfg.Self().Node] += t.Stream
		}
	}
	return bytes
}

// Counters are the totals of this node.
func (r *Replicator) Counters() Counters { return r.counters.read() }

// PhaseTimes is what each phase of the pushes from here has taken in all, since the start.
func (r *Replicator) PhaseTimes() map[Phase]time.Duration { return r.transfers.phaseTimes() }

// Applied takes the events of an applied entry, after the state shows them. It does not wait.
func (r *Replicator) Applied(events []meta.Event) {
	r.supplier.sawView() // before the goroutines that wait for it are woken
	for i := range events {
		switch e := &events[i]; e.Kind {
		case meta.EventDecided, meta.EventFenced, meta.EventRetired:
			r.queue.add(*e)
		case meta.EventNode:
			r.pusher.viewChanged()
			r.assigner.nudge()
		case meta.EventOwed:
			r.assigner.nudge()
		}
	}
}

// Seen is called when a node has connected to this one. It does not wait.
func (r *Replicator) Seen(node meta.NodeID) { r.assigner.seenAgain(node) }

// carryOut acts on one event of the log; it may wait for the disk.
func (r *Replicator) carryOut(e meta.Event) {
	switch e.Kind {
	case meta.EventDecided:
		v := session.Aborted
		if e.Commit {
			v = session.Published
		}
		r.member.verdicts.decided(e.Session, v)
	case meta.EventFenced:
		r.member.verdicts.fenced(e.Node, e.Incarnation)
	case meta.EventRetired:
		if e.Node == 0 || e.Node == r.cfg.Self().Node {
			r.member.retired.retiredNow(e.Content)
		}
	}
}

// Restored is called when the state was replaced by a snapshot: there are no events for what the snapshot skipped.
func (r *Replicator) Restored() {
	r.member.reconciler.compared.due.Add(1)
	r.member.startUp()
	r.supplier.sawView()
	r.assigner.nudge()
}

// Handle answers a request of another node. The answer is the caller's. An error means that the request was malformed
// or this node is closing; it is not an answer.
func (r *Replicator) Handle(ctx context.Context, from meta.NodeID, kind Kind, payload []byte) ([]byte, error) {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil, ErrClosed
	}
	r.serving.Add(1)
	r.mu.Unlock()
	defer r.serving.Done()
	answer, err := r.dispatch(ctx, from, kind, payload)
	if err != nil {
		return nil, fmt.Errorf("replicate: %v from node %d: %w", kind, from, err)
	}
	return answer, nil
}

func (r *Replicator) dispatch(ctx context.Context, from meta.NodeID, kind Kind, payload []byte) ([]byte, error) {
	if len(payload) > MaxMessageBytes {
		return nil, fmt.Errorf("%w: %d bytes", errWire, len(payload))
	}
	switch kind {
	case KindAnnounce:
		return answer(payload, decodeAnnounce, func(m announce) (standing, error) { return r.member.announce(ctx, from, m) })
	case KindFinish:
		return answer(payload, decodeFinish, func(m finish) (standing, error) { return r.member.finish(ctx, from, m) })
	case KindStop:
		return outcome(payload, decodeStop, func(m stop) error { return r.member.stopped(ctx, from, m) })
	case KindBegin:
		return outcome(payload, decodeBegin, func(m begin) error { return r.member.begin(ctx, from, m) })
	case KindConnect:
		return outcome(payload, decodeGroupAddresses, func(m groupAddresses) error {
			return r.member.groups.connect(ctx, from, m)
		})
	case KindGroupEnd:
		return outcome(payload, decodeGroupEnd, func(m groupEnd) error { r.member.groups.finish(from, m); return nil })
	case KindGroup:
		return answer(payload, decodeGroupOpen, func(m groupOpen) (groupAddresses, error) { return r.openEnd(from, m), nil })
	case KindFetch:
		return answer(payload, decodeFetch, func(m fetch) (fetchReply, error) { return r.member.contents.fetched(m), nil })
	case KindLeaves:
		return answer(payload, decodeFetch, func(m fetch) (fetchReply, error) { return r.member.contents.leaves(m), nil })
	case KindWork:
		return answer(payload, decodeWork, func(m work) (workReply, error) { return r.supplier.work(ctx, m), nil })
	case KindRoom:
		return outcome(payload, decodeRoom, func(m room) error { r.heardOfRoom(from, m); return nil })
	case KindPut:
		items, err := decodePut(payload)
		if err != nil {
			return nil, err
		}
		return encodeStandings(r.member.put(ctx, from, items)), nil
	}
	return nil, fmt.Errorf("%w: kind %d", errWire, kind)
}

func (r *Replicator) openEnd(from meta.NodeID, m groupOpen) groupAddresses {
	byRank, err := r.member.groups.open(r.cfg.Self().Node, from, m)
	if err != nil {
		return groupAddresses{Number: m.Number, Refused: refusalOf(err)}
	}
	return groupAddresses{Number: m.Number, ByRank: byRank}
}

type encoder[T any] interface {
	*T
	encode() []byte
}

// answer decodes a request, handles it, and encodes the answer.
func answer[Q, A any, P encoder[A]](
	payload []byte, decode func([]byte) (Q, error), handle func(Q) (A, error),
) ([]byte, error) {
	q, err := decode(payload)
	if err != nil {
		return nil, err
	}
	a, err := handle(q)
	if err != nil {
		return nil, err
	}
	return P(&a).encode(), nil
}

// outcome handles a request whose answer is yes, or why not.
func outcome[Q any](payload []byte, decode func([]byte) (Q, error), handle func(Q) error) ([]byte, error) {
	q, err := decode(payload)
	if err != nil {
		return nil, err
	}
	return encodeOutcome(refusalOf(handle(q))), nil
}

// OpenContent implements Contents.
func (r *Replicator) OpenContent(ctx context.Context, id meta.ContentID) (ContentReader, error) {
	local, err := r.cfg.Store.OpenUndecided(storeID(id))
	if err == nil {
		return newLocalReader(r.member, id, local), nil
	}
	if !errors.Is(err, content.ErrNotFound) && !errors.Is(err, content.ErrCorrupt) {
		return nil, fmt.Errorf("replicate: open content %v: %w", id, err)
	}
	c, err := r.cfg.Names.Content(id)
	if err != nil {
		return nil, fmt.Errorf("replicate: open content %v: %w", id, err)
	}
	if c.Inline {
		b, err := r.cfg.Names.InlineBytes(id)
		if err != nil {
			return nil, fmt.Errorf("replicate: open content %v: %w", id, err)
		}
		return newInlineReader(b), nil
	}
	r.member.mender.missing(id)
	other, err := r.remote.open(ctx, id, r.cfg.Self().Node)
	if err != nil {
		return nil, err
	}
	return &absentReader{remoteReader: other, m: r.member, id: id}, nil
}
