package replicate

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
)

// owedState is a state in which count small contents of nodes 1 and 2 are owed to node 3.
func owedState(tb testing.TB, count int) *meta.DB { return owedStateOf(tb, count, smallMax) }

func owedStateOf(tb testing.TB, count int, size int64) *meta.DB {
	tb.Helper()
	db, err := meta.Open(tb.TempDir(), meta.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := db.Close(); err != nil {
			tb.Error(err)
		}
	})
	var index uint64
	seq := map[meta.NodeID]uint64{}
	apply := func(node meta.NodeID, op meta.Op) meta.Result {
		index++
		seq[node]++
		e := meta.Entry{Node: node, Seq: seq[node], Acked: seq[node] - 1, Generation: meta.FirstGeneration, Op: op}
		if n, err := db.Node(node); err == nil {
			e.Incarnation = n.Incarnation
		}
		res, _, err := db.Apply(index, time.Now().UnixNano(), meta.EncodeEntry(e))
		if err != nil || res.Errno != 0 {
			tb.Fatalf("%T: %v %v", op, err, res.Errno)
		}
		return res
	}
	for i := range meta.NodeID(3) {
		join := &meta.Join{Name: string(rune('a' + i)), Addr: string(rune('a'+i)) + ":1"}
		from := meta.NodeID(0)
		if i > 0 {
			join.TokenHash[0] = byte(i)
			apply(1, &meta.AddToken{Hash: join.TokenHash, Expires: 1 << 62})
			from = 1
		}
		apply(from, join)
		boot := &meta.Boot{Node: i + 1}
		boot.Store[0] = byte(i + 1)
		apply(i+1, boot)
	}
	for i := range count {
		name := time.Duration(i).String()
		ino := apply(1, &meta.Create{Parent: meta.RootIno, Name: name, Kind: meta.KindFile}).Ino
		p := &meta.Publish{Ino: ino, Session: meta.ContentID{Node: 1, Incarnation: 1, Seq: uint64(i + 1)}, Size: size,
			Votes: meta.Votes{View: db.View()}, Missing: []meta.Missed{{Node: 3, Reason: meta.OwedSlow}}}
		p.Votes.Add(1)
		p.Votes.Add(2)
		apply(1, p)
	}
	return db
}

// countedNames is a state in which very much is owed to node 3 that nodes 1 and 2 hold. It counts how often it is asked
// what is owed.
type countedNames struct {
	endlessNames
	asked atomic.Int64
}

func (n *countedNames) OwedTo(node meta.NodeID, after uint64, limit int) ([]meta.Owed, error) {
	n.asked.Add(1)
	return n.endlessNames.OwedTo(node, after, limit)
}

func (n *countedNames) Holders(meta.ContentID) ([]meta.NodeID, error) {
	return []meta.NodeID{1, 2}, nil
}

// While all slots are taken, by a node that takes long for what it missed, the leader does not look for what it could
// not hand out.
func TestNoLookWithoutASlot(t *testing.T) {
	names := &countedNames{endlessNames: endlessNames{owedState(t, 0), (ordersAtOnce + 4) * workOrderSize}}
	ctx, stop := context.WithCancel(t.Context())
	var busy atomic.Int64
	a := newAssigner(Config{
		Names: names, Logger: slog.New(slog.DiscardHandler), Clock: SystemClock(),
		Tuning:   Tuning{CatchUpEvery: time.Millisecond},
		IsLeader: func() bool { return true }, Self: func() meta.Lease { return meta.Lease{Node: 4} },
		Peers: callFunc(func(ctx context.Context) error {
			busy.Add(1)
			<-ctx.Done()
			return ctx.Err()
		}),
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.run(ctx)
	}()
	for busy.Load() < ordersAtOnce {
		<-time.After(time.Millisecond)
	}
	// The look that was under way takes as long as the machine is busy. Looks that come each millisecond never pause.
	for limit := time.Now().Add(20 * time.Second); ; {
		before := names.asked.Load()
		<-time.After(300 * time.Millisecond)
		n := names.asked.Load() - before
		if n == 0 {
			break
		}
		if time.Now().After(limit) {
			t.Errorf("asked %d times in 300 ms what is owed, with no slot free", n)
			break
		}
	}
	stop()
	<-done
}

// endlessNames is a state in which very much is owed to node 3.
type endlessNames struct {
	*meta.DB
	count int
}

func (n endlessNames) OwedTo(_ meta.NodeID, after uint64, limit int) (out []meta.Owed, err error) {
	for i := int(after) + 1; i <= n.count && len(out) < limit; i++ {
		out = append(out, meta.Owed{Content: meta.ContentID{Node: 1, Incarnation: 1, Seq: uint64(i)}, Published: uint64(i)})
	}
	return out, nil
}

// What waits for its next try, however much it is, does not hide what is owed behind it.
func TestWhatWaitsHidesNothing(t *testing.T) {
	names := endlessNames{owedState(t, 0), 3*lookPages*owedPage + 1}
	a := newAssigner(Config{Names: names, Logger: slog.New(slog.DiscardHandler), Clock: SystemClock()})
	all, err := names.OwedTo(3, 0, names.count-1)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range all {
		a.tries[owedItem{3, o.Content}] = &try{next: time.Now().Add(time.Hour)}
	}
	for look := range 8 {
		if got := a.owed(3); len(got) == 1 && got[0].Published == uint64(names.count) {
			t.Logf("found with look %d", look+1)
			return
		}
	}
	t.Error("the last of what is owed is not found")
}

// callFunc is Peers that answer nothing.
type callFunc func(ctx context.Context) error

func (f callFunc) Call(ctx context.Context, _ meta.NodeID, _ Kind, _ []byte) ([]byte, error) {
	return nil, f(ctx)
}

// BenchmarkLook is one look of the leader at 10,000 contents that are owed to a node.
func BenchmarkLook(b *testing.B) {
	db := owedState(b, 10_000)
	owed, err := db.OwedTo(3, 0, 10_000)
	if err != nil {
		b.Fatal(err)
	}
	for name, state := range map[string]struct {
		of   int
		then try
	}{
		"none under way": {0, try{}}, "all slots taken": {ordersAtOnce * workOrderSize, try{running: true}},
		"all tried in vain": {len(owed), try{next: time.Now().Add(time.Hour)}},
	} {
		b.Run(name, func(b *testing.B) {
			a := newAssigner(Config{Names: db, Logger: slog.New(slog.DiscardHandler), Clock: SystemClock()})
			if _, err := a.look(); err != nil { // which finds that the node has started
				b.Fatal(err)
			}
			for _, o := range owed[:state.of] {
				t := state.then
				a.tries[owedItem{3, o.Content}] = &t
			}
			for b.Loop() {
				if _, err := a.look(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// A holder that has as many orders as it may have gets no further content while another holder has nothing to do: it
// would wait there.
func TestIdleHolderIsAskedFirst(t *testing.T) {
	a := newAssigner(Config{Names: owedState(t, 40), Logger: slog.New(slog.DiscardHandler), Clock: SystemClock()})
	a.busy[1] = load{orders: ordersOfOne}
	orders, err := a.look()
	if err != nil || len(orders) == 0 {
		t.Fatal(orders, err)
	}
	for _, o := range orders {
		if o.source != 2 {
			t.Errorf("node %d, which is busy, is to push %d contents", o.source, len(o.contents))
		}
	}
}

// What a second node is owed goes to all holders, also while they serve a first one: in the end each has as much to do.
func TestHoldersThatServeShareWhatComesNext(t *testing.T) {
	a := newAssigner(Config{Names: owedState(t, 40), Logger: slog.New(slog.DiscardHandler), Clock: SystemClock()})
	const each = smallMax + contentCost
	a.busy[1], a.busy[2] = load{1, 20 * each}, load{2, 10 * each}
	orders, err := a.look()
	if err != nil {
		t.Fatal(err)
	}
	got := map[meta.NodeID]int{}
	for _, o := range orders {
		got[o.source] += len(o.contents)
	}
	if got[1]+got[2] != 40 || got[1] != 15 {
		t.Errorf("contents by holder: %v, want 15 of 40 at node 1", got)
	}
	o := orders[slices.IndexFunc(orders, func(o *order) bool { return o.source == 2 })]
	a.orderBegun(o)
	if want := (load{3, 10*each + int64(len(o.contents))*each}); a.busy[2] != want {
		t.Errorf("with an order: %+v, want %+v", a.busy[2], want)
	}
	a.lessen(o, o.contents[:3])
	if want := (load{3, 10*each + int64(len(o.contents)-3)*each}); a.busy[2] != want {
		t.Errorf("with three contents less: %+v, want %+v", a.busy[2], want)
	}
	if a.orderEnded(o); a.busy[2] != (load{2, 10 * each}) {
		t.Errorf("after an order: %+v", a.busy[2])
	}
}

// What a holder has to push already, and can send to more nodes at once, it is asked for again; what goes to each node
// by itself is not, nor what it has begun, nor where that holder failed or is full of orders.
func TestHolderThatServesIsAskedForTheSame(t *testing.T) {
	for _, tc := range []struct {
		name     string
		size     int64
		orders   int
		failed   meta.NodeID
		contents int // at node 1
	}{
		{"large", smallMax + 1, 1, 0, 39},
		{"small", smallMax, 1, 0, 0},
		{"full", smallMax + 1, ordersOfOne, 0, 0},
		{"failed", smallMax + 1, 1, 1, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := Config{Names: owedStateOf(t, 40, tc.size), Logger: slog.New(slog.DiscardHandler), Clock: SystemClock()}
			a := newAssigner(cfg)
			wanted := map[meta.ContentID][]meta.NodeID{}
			var ids []meta.ContentID
			for _, o := range a.owed(3) {
				ids = append(ids, o.Content)
				wanted[o.Content] = []meta.NodeID{3}
			}
			first := &order{source: 1, targets: []meta.NodeID{4}, contents: ids, left: map[meta.ContentID]int64{}}
			for _, id := range ids {
				first.left[id], _ = a.cost(id)
			}
			for range tc.orders {
				a.orderBegun(first)
			}
			if tc.failed != 0 {
				a.failed([]meta.NodeID{3}, ids, tc.failed)
			}
			count := func() (n int) {
				for _, o := range a.plan(ids, wanted, map[meta.NodeID]bool{1: true, 2: true, 3: true}) {
					if o.source == 1 {
						n += len(o.contents)
					}
				}
				return n
			}
			if got := count(); got != tc.contents {
				t.Errorf("node 1 is to push %d contents to another node too, want %d", got, tc.contents)
			}
			for range tc.orders {
				a.orderEnded(first)
			}
			if got := count(); tc.failed == 0 && got != 20 {
				t.Errorf("of 40 contents that nobody pushes, node 1 is to push %d", got)
			}
			if len(a.at) > 0 {
				t.Errorf("%d contents are still asked for", len(a.at))
			}
		})
	}
}

// What writers push counts as what a holder has to do.
func TestHolderThatWritesIsAskedLast(t *testing.T) {
	a := newAssigner(Config{Names: owedState(t, 4), Logger: slog.New(slog.DiscardHandler), Clock: SystemClock()})
	a.pushing = func() map[meta.NodeID]int64 { return map[meta.NodeID]int64{1: 64 << 20} }
	orders, err := a.look()
	if err != nil || len(orders) != 1 || orders[0].source != 2 || orders[0].elsewhere {
		t.Fatalf("%d orders, %v; want one, for node 2, which has the least to do", len(orders), err)
	}
}

// A content that its source passes on goes to the other holder at once. That one has nobody to pass it on to.
func TestContentThatIsPassedOnGoesToAnotherHolder(t *testing.T) {
	cfg := Config{Names: owedStateOf(t, 1, smallMax+1), Logger: slog.New(slog.DiscardHandler), Clock: SystemClock()}
	a := newAssigner(cfg)
	var asked []meta.NodeID
	for range 4 {
		orders, err := a.look()
		if err != nil || len(orders) != 1 {
			t.Fatalf("%d orders, %v", len(orders), err)
		}
		o := orders[0]
		asked = append(asked, o.source)
		a.orderBegun(o)
		if !o.elsewhere {
			break
		}
		a.passedOn(o, o.contents)
		a.orderEnded(o)
	}
	if want := []meta.NodeID{1, 2}; !slices.Equal(asked, want) {
		t.Errorf("asked %v, want %v", asked, want)
	}
	if len(a.at) > 0 {
		t.Errorf("%d contents are still asked for", len(a.at))
	}
}

// An answer that names none of the contents, as of a source that is closing, leaves nothing under way for ever.
func TestContentThatNoAnswerNamesIsTriedAgain(t *testing.T) {
	cfg := Config{
		Names: owedState(t, 2), Logger: slog.New(slog.DiscardHandler), Clock: SystemClock(),
		IsLeader: func() bool { return true }, Self: func() meta.Lease { return meta.Lease{Node: 1} },
	}
	a := newAssigner(cfg)
	a.own = func(context.Context, work) workReply { return workReply{} }
	orders, err := a.look()
	if err != nil || len(orders) == 0 {
		t.Fatal(orders, err)
	}
	o := orders[0]
	o.source = 1
	a.orderBegun(o)
	a.carry(t.Context(), o)
	a.orderEnded(o)
	for _, id := range o.contents {
		if tr := a.tries[owedItem{3, id}]; tr.running || tr.next.IsZero() {
			t.Errorf("%v: %+v, want that it waits for its next try", id, tr)
		}
	}
}
