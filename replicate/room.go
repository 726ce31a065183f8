package replicate

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
)

const (
	roomEvery   = time.Second
	roomTimeout = 5 * time.Second
	roomRepeat  = 10 * time.Second // a node says this often that it still has no room
	roomGood    = 3 * roomRepeat   // what a node said of its room is good for this long
	roomForget  = 3 * time.Minute  // nobody has asked again for so long for what was refused
)

// NoRoom says that a node refuses contents for lack of space.
type NoRoom struct {
	FreeBytes int64 // the most that it takes; 0: it takes nothing
	NeedBytes int64 // the least that it has refused
}

// roomWatch lets the other nodes know that contents are refused here for lack of space, and when there is room again.
// So writers place new files elsewhere, and the leader offers what is owed at once, however long the disk was full.
type roomWatch struct {
	cfg  Config
	tell func(ctx context.Context, m room)
	wake chan struct{}

	mu    sync.Mutex
	need  int64     // the least that was refused since there was room; 0: nothing was
	asked time.Time // when something was refused last
	said  time.Time // when the others were last told of need; zero: they were not
}

func newRoomWatch(cfg Config) *roomWatch { return &roomWatch{cfg: cfg, wake: make(chan struct{}, 1)} }

// refused notes that the store had no room.
func (w *roomWatch) refused(err error) {
	var full *content.NoSpaceError
	if !errors.As(err, &full) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked = w.cfg.Clock.Now()
	if w.need != 0 && full.NeedBytes >= w.need {
		return
	}
	w.need, w.said = max(1, full.NeedBytes), time.Time{}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// run looks for room until ctx ends.
func (w *roomWatch) run(ctx context.Context) {
	for {
		timer, stop := w.cfg.Clock.After(roomEvery)
		select {
		case <-ctx.Done():
			stop()
			return
		case <-w.wake:
		case <-timer:
		}
		stop()
		if !w.waits() {
			continue
		}
		if sp, err := w.cfg.Store.Space(); err == nil {
			if m, news := w.news(sp); news {
				w.tell(ctx, m)
			}
		}
	}
}

func (w *roomWatch) waits() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.need > 0
}

// news is what the others are to hear: now and then that there is no room, and once that there is room for the least of
// what was refused, or that nobody asks for room any more.
func (w *roomWatch) news(sp content.Space) (m room, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	free := sp.AvailableBytes
	if sp.Level == content.LevelFull {
		free = 0
	}
	now := w.cfg.Clock.Now()
	switch {
	case w.need == 0:
		return room{}, false
	case free >= w.need || now.Sub(w.asked) >= roomForget:
		w.need = 0
		return room{Bytes: uint64(free)}, true
	case now.Sub(w.said) >= roomRepeat:
		w.said = now
		return room{Bytes: uint64(free), Need: uint64(w.need)}, true
	}
	return room{}, false
}

// tellRoom lets all nodes know: any of them may lead or write.
func (r *Replicator) tellRoom(ctx context.Context, m room) {
	nodes, err := r.cfg.Names.Nodes()
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, roomTimeout)
	defer cancel()
	var calls sync.WaitGroup
	defer calls.Wait()
	for _, n := range nodes {
		switch {
		case n.ID == r.cfg.Self().Node:
			r.heardOfRoom(n.ID, m)
		case n.State == meta.NodeUp:
			calls.Go(func() {
				if err := askOutcome(ctx, r.cfg.Peers, n.ID, KindRoom, m.encode()); err != nil {
					r.cfg.Logger.Debug("room not told", "node", n.ID, "err", err)
				}
			})
		}
	}
}

// heardOfRoom takes the word of a node on its room.
func (r *Replicator) heardOfRoom(node meta.NodeID, m room) {
	if m.Need > 0 {
		r.rooms.note(node, NoRoom{FreeBytes: byteCount(m.Bytes), NeedBytes: byteCount(m.Need)})
		return
	}
	r.rooms.forget(node)
	r.assigner.seenAgain(node)
}

func byteCount(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

// NoRoom returns what a node said of late about its room; ok is false if it takes contents, as far as is known here.
func (r *Replicator) NoRoom(node meta.NodeID) (n NoRoom, ok bool) { return r.rooms.of(node) }

// roomBook has the nodes that have no room, as far as this node has heard.
type roomBook struct {
	cfg Config

	mu    sync.Mutex
	notes map[meta.NodeID]roomNote
}

type roomNote struct {
	NoRoom
	at time.Time
	by uint32 // the node's incarnation
}

func newRoomBook(cfg Config) *roomBook {
	return &roomBook{cfg: cfg, notes: make(map[meta.NodeID]roomNote)}
}

// note takes the word of a node that it has no room.
func (b *roomBook) note(id meta.NodeID, n NoRoom) {
	rec, err := b.cfg.Names.Node(id)
	if err != nil {
		return
	}
	if _, known := b.of(id); !known {
		b.cfg.Logger.Warn("a node has no room for a content", "node", rec.Name, "free", n.FreeBytes, "refused", n.NeedBytes)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.notes[id] = roomNote{n, b.cfg.Clock.Now(), rec.Incarnation}
}

// refused notes that a node has refused a content of so many bytes for lack of space. What it said itself counts more
// exactly, and comes a moment later.
func (b *roomBook) refused(id meta.NodeID, bytes int64) {
	n := NoRoom{FreeBytes: bytes - 1, NeedBytes: bytes}
	if old, known := b.of(id); known {
		n = NoRoom{min(n.FreeBytes, old.FreeBytes), min(n.NeedBytes, old.NeedBytes)}
	}
	b.note(id, n)
}

// forget notes that a node takes contents again.
func (b *roomBook) forget(id meta.NodeID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.notes[id]; ok {
		b.cfg.Logger.Info("a node has room again", "node", id)
		delete(b.notes, id)
	}
}

// of is what was last heard of a node, if it still counts.
func (b *roomBook) of(id meta.NodeID) (NoRoom, bool) {
	b.mu.Lock()
	n, ok := b.notes[id]
	b.mu.Unlock()
	if !ok || b.cfg.Clock.Now().Sub(n.at) >= roomGood {
		return NoRoom{}, false
	}
	rec, err := b.cfg.Names.Node(id)
	return n.NoRoom, err == nil && rec.Incarnation == n.by
}

// lacking lists the nodes that have no room for so many bytes, ascending.
func (b *roomBook) lacking(nodes []meta.Node, bytes int64) (out []meta.NodeID) {
	for _, n := range nodes {
		if said, ok := b.of(n.ID); ok && n.State == meta.NodeUp && bytes > said.FreeBytes {
			out = append(out, n.ID)
		}
	}
	return out
}

// room says what a node takes. With Need it says that it has no room for contents of that size, but still for those of
// Bytes. Without, it takes contents again that it refused for lack of space.
type room struct{ Bytes, Need uint64 }

func (m *room) code(c *fields) {
	c.U64(&m.Bytes)
	c.U64(&m.Need)
}

func (m *room) encode() []byte { return encode(m, 24) }

func decodeRoom(b []byte) (room, error) { return decode[room](b) }
