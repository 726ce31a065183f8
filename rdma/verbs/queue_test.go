//go:build linux && (amd64 || arm64) && !nordma

package verbs

import (
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/internal/soft"
)

// shadowPair is a pair without a device: its queues alone.
func shadowPair(t testing.TB, depth int) (*queuePair, *completionQueue) {
	t.Helper()
	s, err := soft.NewCQ(16)
	if err != nil {
		t.Fatal(err)
	}
	d := &device{limits: rdma.Limits{MaxQueueDepth: 64, MaxSGE: 2, MaxInline: 16, MaxMessage: 100}}
	cq := &completionQueue{done: s, dev: d}
	q := &queuePair{dev: d}
	q.sq, q.rq = newWorkQueue(q, cq, depth, silentOf(depth)+own), newWorkQueue(q, cq, depth, 0)
	return q, cq
}

func testRegion(d *device, bytes int) *region {
	r := &region{dev: d, mem: make([]byte, bytes)}
	r.uses.Init()
	return r
}

// TestSignals: whatever is posted, the device reports often enough that slots and regions come free; and as
// long as it reports what it must, ids lead back to their requests and completions come in order.
func TestSignals(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		depth := rapid.IntRange(1, 9).Draw(r, "depth")
		q, cq := shadowPair(t, depth)
		mem := testRegion(q.dev, 100)
		var want []uint64
		next := uint64(1)
		for range 60 {
			n := rapid.IntRange(1, depth).Draw(r, "posts")
			wrs := make([]rdma.SendWR, n)
			for i := range wrs {
				wrs[i] = rdma.SendWR{ID: next, Op: rapid.SampledFrom([]rdma.Opcode{rdma.OpSend, rdma.OpWrite,
					rdma.OpWriteImm}).Draw(r, "op"),
					Unsignaled: rapid.Bool().Draw(r, "unsignaled")}
				if rapid.Bool().Draw(r, "memory") {
					wrs[i].List = []rdma.SGE{{Region: mem, Length: 10}}
				}
				if !wrs[i].Unsignaled {
					want = append(want, next)
				}
				next++
			}
			err := q.sq.takeSends(wrs)
			if errors.Is(err, rdma.ErrQueueFull) {
				drainShadow(r, q)
				err = q.sq.takeSends(wrs)
			}
			if err != nil {
				r.Fatalf("%d posts behind %d of %d: %v", n, q.sq.len(), depth, err)
			}
			q.sq.tail += uint64(n)
		}
		drainShadow(r, q)
		if mem.uses.Users() > 0 != q.sq.ask() {
			r.Fatalf("%d silent requests hold the region, and asked is %v", mem.uses.Users(), q.sq.asked)
		}
		if q.sq.asked {
			q.sq.tail++
			drainShadow(r, q)
		}
		if mem.uses.Users() != 0 {
			r.Fatalf("%d requests hold the region after all was reported", mem.uses.Users())
		}
		if q.sq.len() > depth/2 {
			r.Fatalf("%d of %d slots are not reported", q.sq.len(), depth)
		}
		got := make([]rdma.Completion, len(want)+1)
		got = got[:cq.done.Poll(got)]
		for i, c := range got {
			if i >= len(want) || c.ID != want[i] || c.Status != rdma.StatusOK {
				r.Fatalf("completion %d is %+v", i, c)
			}
		}
		if len(got) != len(want) {
			r.Fatalf("%d completions, want %d", len(got), len(want))
		}
	})
}

// drainShadow completes what the device would report.
func drainShadow(r *rapid.T, q *queuePair) {
	for i := q.sq.head; i < q.sq.tail; i++ {
		if q.sq.at(i).signaled {
			found, ok := q.sq.number(requestID(3, 0, i))
			if !ok || found != i {
				r.Fatalf("request %d became %d, %v", i, found, ok)
			}
			q.sentLocked(&workCompletion{id: requestID(3, 0, i)})
		}
	}
}

// TestSilentMemoryIsAskedFor: silent writes of memory are reported once in half a queue, or when asked for, by one
// request at a time that takes nobody's place and that nobody hears of.
func TestSilentMemoryIsAskedFor(t *testing.T) {
	const depth = 8
	q, cq := shadowPair(t, depth)
	mem := testRegion(q.dev, 100)
	post := func(n int, silent bool) error {
		wrs := make([]rdma.SendWR, n)
		for i := range wrs {
			wrs[i] = rdma.SendWR{ID: 7, Op: rdma.OpWrite, Unsignaled: silent, List: []rdma.SGE{{Region: mem, Length: 10}}}
		}
		err := q.sq.takeSends(wrs)
		if err == nil {
			q.sq.tail += uint64(n)
		}
		return err
	}
	for range 3 {
		if err := post(1, true); err != nil || q.sq.at(q.sq.tail-1).signaled {
			t.Fatalf("%v, or the device reports each", err)
		}
	}
	if !q.sq.ask() || q.sq.ask() {
		t.Fatal("asked not once")
	}
	q.sq.tail++
	if err := post(1, true); err != nil || q.sq.ask() || !q.sq.askAgain {
		t.Fatalf("%v, or two under way, or the second forgotten", err)
	}
	q.sentLocked(&workCompletion{id: requestID(0, 0, 3)}) // asks again, for a pair that has no device: in vain
	if mem.uses.Users() != 1 || q.sq.asked {
		t.Fatalf("%d users", mem.uses.Users())
	}
	if !q.sq.ask() {
		t.Fatal("not asked")
	}
	q.sq.tail++
	if err := post(depth-1, false); err != nil {
		t.Fatalf("the place of a caller's is taken: %v", err)
	}
	q.sq.flush(rdma.StatusDisconnected)
	got := make([]rdma.Completion, 20)
	got = got[:cq.done.Poll(got)]
	if len(got) != depth || got[0].Status != rdma.StatusDisconnected || got[1].Status != rdma.StatusFlushed {
		t.Errorf("%d completions, %+v", len(got), got)
	}
}

// TestOwnRequestFails: its status is that of the oldest request of the caller's.
func TestOwnRequestFails(t *testing.T) {
	q, cq := shadowPair(t, 4)
	q.state = stateConnecting // nothing runs when it fails
	q.cancel = func(error) {}
	q.watchTimer = time.NewTimer(time.Hour)
	mem := testRegion(q.dev, 100)
	silent := rdma.SendWR{ID: 1, Op: rdma.OpWrite, Unsignaled: true, List: []rdma.SGE{{Region: mem, Length: 1}}}
	if err := q.sq.takeSends([]rdma.SendWR{silent}); err != nil {
		t.Fatal(err)
	}
	q.sq.tail++
	if !q.sq.ask() {
		t.Fatal("not asked")
	}
	q.sq.tail++
	if err := q.sq.takeSends([]rdma.SendWR{{ID: 2, Op: rdma.OpSend}}); err != nil {
		t.Fatal(err)
	}
	q.sq.tail++
	q.sentLocked(&workCompletion{id: requestID(0, 0, 1), status: 12}) // retries exceeded
	q.sq.flush(q.failStatus)
	got := make([]rdma.Completion, 9)
	got = got[:cq.done.Poll(got)]
	if len(got) != 1 || got[0].ID != 2 || got[0].Status != rdma.StatusDisconnected {
		t.Errorf("%+v", got)
	}
}

func TestStrangeCompletions(t *testing.T) {
	q, cq := shadowPair(t, 4)
	q.sq.head, q.sq.tail = 1<<31-2, 1<<31+1 // across the end of what ids hold
	q.rq.head, q.rq.tail = 5, 7
	for _, id := range []uint64{requestID(0, 0, 1<<31-3), requestID(0, 0, 1<<31+1), requestID(0, idRecv, 6),
		requestID(0, idRecv, 4),
		requestID(0, idRecv, 7)} {
		q.completed(&workCompletion{id: id})
	}
	if q.sq.len() != 3 || q.rq.len() != 2 {
		t.Errorf("%d sends and %d receives are left", q.sq.len(), q.rq.len())
	}
	q.completed(&workCompletion{id: requestID(0, 0, 1<<31-1)})
	if q.sq.len() != 1 {
		t.Errorf("%d sends are left", q.sq.len())
	}
	if n := cq.done.Poll(make([]rdma.Completion, 9)); n != 2 {
		t.Errorf("%d completions", n)
	}
}

func TestRequestsAreChecked(t *testing.T) {
	q, _ := shadowPair(t, 2)
	mem := testRegion(q.dev, 200)
	piece := rdma.SGE{Region: mem, Length: 60}
	for name, c := range map[string]struct {
		wr   rdma.SendWR
		want error
	}{
		"operation": {rdma.SendWR{Op: rdma.OpRecv}, rdma.ErrRequest},
		"entries":   {rdma.SendWR{Op: rdma.OpSend, List: []rdma.SGE{piece, piece, piece}}, rdma.ErrRequest},
		"message":   {rdma.SendWR{Op: rdma.OpSend, List: []rdma.SGE{piece, piece}}, rdma.ErrRequest},
		"inline":    {rdma.SendWR{Op: rdma.OpSend, Inline: make([]byte, 17)}, rdma.ErrRequest},
		"both":      {rdma.SendWR{Op: rdma.OpSend, Inline: make([]byte, 1), List: []rdma.SGE{piece}}, rdma.ErrRequest},
		"read":      {rdma.SendWR{Op: rdma.OpRead, Inline: make([]byte, 1)}, rdma.ErrRequest},
		"bounds": {rdma.SendWR{Op: rdma.OpSend, List: []rdma.SGE{{Region: mem, Offset: 190, Length: 11}}},
			rdma.ErrBounds},
		"negative":  {rdma.SendWR{Op: rdma.OpSend, List: []rdma.SGE{{Region: mem, Offset: -1, Length: 1}}}, rdma.ErrBounds},
		"no region": {rdma.SendWR{Op: rdma.OpSend, List: []rdma.SGE{{Length: 1}}}, rdma.ErrRequest},
		"of another": {rdma.SendWR{Op: rdma.OpSend, List: []rdma.SGE{{Region: testRegion(&device{}, 9), Length: 1}}},
			rdma.ErrRequest},
	} {
		good := rdma.SendWR{Op: rdma.OpSend, List: []rdma.SGE{piece}}
		if err := q.sq.takeSends([]rdma.SendWR{good, c.wr}); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if mem.uses.Users() != 0 {
			t.Fatalf("%s: the region has %d users after a refused post", name, mem.uses.Users())
		}
	}
	if err := q.rq.takeRecvs(make([]rdma.RecvWR, 3)); !errors.Is(err, rdma.ErrQueueFull) {
		t.Errorf("three receives in a queue of two: %v", err)
	}
	mem.uses.Invalidate()
	if err := q.rq.takeRecvs([]rdma.RecvWR{{List: []rdma.SGE{piece}}}); !errors.Is(err, rdma.ErrState) {
		t.Errorf("stale region: %v", err)
	}
}

// TestWaitingForReceiver: what waits is the first that needs a receive, if the device would have reported
// more by now.
func TestWaitingForReceiver(t *testing.T) {
	for name, c := range map[string]struct {
		slots []slot
		want  int // -1: none
	}{
		"nothing":                    {nil, -1},
		"write":                      {[]slot{{op: rdma.OpWrite, signaled: true}}, -1},
		"send":                       {[]slot{{op: rdma.OpSend, signaled: true}}, 0},
		"send behind a write":        {[]slot{{op: rdma.OpWrite}, {op: rdma.OpWriteImm, signaled: true}}, 1},
		"send before a write":        {[]slot{{op: rdma.OpSend}, {op: rdma.OpWrite, signaled: true}}, 0},
		"write reported before send": {[]slot{{op: rdma.OpWrite, signaled: true}, {op: rdma.OpSend, signaled: true}}, -1},
		"silent writes":              {[]slot{{op: rdma.OpWrite}, {op: rdma.OpWrite}}, -1},
	} {
		q, _ := shadowPair(t, 4)
		copy(q.sq.slots, c.slots)
		q.sq.tail = uint64(len(c.slots))
		got, ok := q.waitingLocked()
		if ok != (c.want >= 0) || ok && got != uint64(c.want) {
			t.Errorf("%s: %d, %v", name, got, ok)
		}
	}
}
