package replicate

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/session"
)

const (
	// silentFor is how long a holder that was silent is asked after all others.
	silentFor = time.Minute
	// fetchAgain is how long a reader waits before it asks holders again that could not be reached.
	fetchAgain = 300 * time.Millisecond
	// leavesAtOnce is how many leaf hashes are asked for in one message.
	leavesAtOnce = maxLeavesReply
)

// remoteReads reads contents that are not here from nodes that hold them. Every block is checked against the leaves,
// and the leaves against the root in the log, before a byte is returned.
type remoteReads struct {
	cfg      Config
	counters *counters
	cache    *blockCache
	shared   sharedFetches

	mu     sync.Mutex
	silent map[meta.NodeID]time.Time // holders that gave nothing when they were last asked
}

func newRemoteReads(cfg Config, c *counters) *remoteReads {
	return &remoteReads{cfg: cfg, counters: c, cache: newBlockCache(cfg.Tuning.CacheBytes),
		shared: sharedFetches{running: make(map[fetchKey]*sharedFetch)}, silent: make(map[meta.NodeID]time.Time)}
}

// fetchSilent is for how long nothing of a question to a holder may move; 10 s.
func (t *Tuning) fetchSilent() time.Duration { return t.Stuck * 2 / 5 }

// noteSilent notes whether a holder gave nothing.
func (r *remoteReads) noteSilent(n meta.NodeID, silent bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if silent {
		r.silent[n] = r.cfg.Clock.Now()
	} else {
		delete(r.silent, n)
	}
}

// silentLast sorts holders that were silent lately behind the others.
func (r *remoteReads) silentLast(list []meta.NodeID) {
	now := r.cfg.Clock.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	quiet := func(n meta.NodeID) int {
		if at, ok := r.silent[n]; ok && now.Sub(at) < silentFor {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(list, func(a, b meta.NodeID) int { return quiet(a) - quiet(b) })
}

// remoteReader is an open content of other nodes.
type remoteReader struct {
	r       *remoteReads
	content meta.Content
	leaves  []content.Hash
	exclude meta.NodeID
	ctx     context.Context
	cancel  context.CancelFunc

	mu   sync.Mutex
	good meta.NodeID // answered last
	had  []meta.NodeID
}

// open gets the leaves of a content and checks them. exclude is a node not to be asked, or 0.
func (r *remoteReads) open(ctx context.Context, id meta.ContentID, exclude meta.NodeID) (*remoteReader, error) {
	c, err := r.cfg.Names.Content(id)
	if err != nil {
		return nil, err
	}
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	rr := &remoteReader{r: r, content: c, exclude: exclude, ctx: inner, cancel: cancel}
	err = rr.fromHolders(ctx, func(ctx context.Context, node meta.NodeID) error { return rr.loadLeaves(ctx, node) })
	if err != nil {
		cancel()
		return nil, fmt.Errorf("replicate: open content %v: %w", id, err)
	}
	return rr, nil
}

// fromHolders asks the holders that are up, one after the other, until one serves. Holders that can't be reached are
// asked again until the log declares them down, but no longer than a session may be stuck.
func (rr *remoteReader) fromHolders(ctx context.Context, ask func(context.Context, meta.NodeID) error) error {
	clock := rr.r.cfg.Clock
	began := clock.Now()
	for {
		again, err := rr.askRound(ctx, ask)
		if err == nil || ctx.Err() != nil || !again || clock.Now().Sub(began) >= rr.r.cfg.Tuning.Stuck {
			return err
		}
		pause(ctx, clock, fetchAgain)
	}
}

// askRound asks each holder once. again reports that some holder might be reachable a moment later.
func (rr *remoteReader) askRound(
	ctx context.Context, ask func(context.Context, meta.NodeID) error,
) (again bool, err error) {
	holders, err := rr.holders()
	if err != nil {
		return false, err
	}
	errs := []error{ErrUnavailable}
	for _, n := range holders {
		err := ask(ctx, n)
		if err == nil {
			rr.mu.Lock()
			rr.good = n
			rr.mu.Unlock()
			return false, nil
		}
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		again = again || !errors.Is(err, errNotGiven) && !errors.Is(err, ErrDamaged)
		errs = append(errs, fmt.Errorf("node %d: %w", n, err))
	}
	return again, errors.Join(errs...)
}

// holders lists the nodes to ask, the one that served last first. If the content was replaced or removed since, it
// lists the former holders, which keep the bytes for a while.
func (rr *remoteReader) holders() ([]meta.NodeID, error) {
	all, err := rr.r.cfg.Names.Holders(rr.content.ID)
	rr.mu.Lock()
	switch {
	case err == nil:
		rr.had = all
	case isNotFound(err) && rr.had != nil:
		all, err = rr.had, nil
	}
	good := rr.good
	rr.mu.Unlock()
	if err != nil {
		return nil, err
	}
	var out []meta.NodeID
	for _, n := range all {
		rec, err := rr.r.cfg.Names.Node(n)
		switch {
		case err != nil || rec.State != meta.NodeUp || n == rr.exclude:
		case n == good:
			out = append([]meta.NodeID{n}, out...)
		default:
			out = append(out, n)
		}
	}
	rr.r.silentLast(out)
	return out, nil
}

func (rr *remoteReader) loadLeaves(ctx context.Context, node meta.NodeID) error {
	blocks := (rr.content.Size + content.BlockBytes - 1) / content.BlockBytes
	leaves := make([]content.Hash, 0, min(blocks, leavesAtOnce))
	for int64(len(leaves)) < blocks {
		want := min(blocks-int64(len(leaves)), leavesAtOnce)
		m := fetch{rr.content.ID, int64(len(leaves)), uint32(want)}
		reply, err := rr.r.call(ctx, node, KindLeaves, m)
		if err != nil {
			return err
		}
		if int64(len(reply)) != want*32 {
			return fmt.Errorf("%w: %d bytes of leaves, not %d", errWire, len(reply), want*32)
		}
		for ; len(reply) > 0; reply = reply[32:] {
			leaves = append(leaves, content.Hash(reply[:32]))
		}
	}
	if content.Root(rr.content.Size, leaves) != content.Hash(rr.content.Root) {
		return ErrDamaged
	}
	rr.leaves = leaves
	return nil
}

// errNotGiven says that a holder answered, and gives nothing.
var errNotGiven = errors.New("refused")

// call asks for bytes and checks that they came over whole.
func (r *remoteReads) call(ctx context.Context, node meta.NodeID, kind Kind, m fetch) ([]byte, error) {
	answer, err := callWhileMoving(ctx, &r.cfg, node, kind, m.encode(), r.cfg.Tuning.fetchSilent())
	r.noteSilent(node, errors.Is(err, errSilent))
	if err != nil {
		return nil, err
	}
	reply, err := decodeFetchReply(answer)
	if err != nil {
		return nil, err
	}
	if reply.Status != session.StatusVoted {
		return nil, fmt.Errorf("%w: %s", errNotGiven, reply.Text)
	}
	if content.Checksum(reply.Bytes) != reply.CRC {
		return nil, fmt.Errorf("%w: checksum", errWire)
	}
	return reply.Bytes, nil
}

// block gives block i, checked; it must not be changed. Readers of a block that is on its way share the fetch.
func (rr *remoteReader) block(ctx context.Context, i int64) ([]byte, error) {
	key := cacheKey{rr.content.ID, i}
	if b := rr.r.cache.get(key); b != nil {
		return b, nil
	}
	return rr.r.shared.get(ctx, fetchKey{key, rr.exclude}, func(ctx context.Context) ([]byte, error) {
		if b := rr.r.cache.get(key); b != nil { // another fetch ended just now
			return b, nil
		}
		b, err := rr.fetch(ctx, i)
		if err == nil {
			rr.r.counters.remoteReads.Add(1)
			rr.r.cache.put(key, b)
		}
		return b, err
	})
}

// fetch asks the holders for block i.
func (rr *remoteReader) fetch(ctx context.Context, i int64) ([]byte, error) {
	want := min(content.BlockBytes, rr.content.Size-i*content.BlockBytes)
	var block []byte
	err := rr.fromHolders(ctx, func(ctx context.Context, node meta.NodeID) error {
		b, err := rr.r.call(ctx, node, KindFetch, fetch{rr.content.ID, i * content.BlockBytes, uint32(want)})
		if err != nil {
			return err
		}
		if int64(len(b)) != want || content.Leaf(b) != rr.leaves[i] {
			return ErrDamaged
		}
		block = b
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("replicate: block %d of content %v: %w", i, rr.content.ID, err)
	}
	return block, nil
}

// ReadAt implements io.ReaderAt. It waits as long as bytes come, and ends when no holder can give them, or with Close.
func (rr *remoteReader) ReadAt(p []byte, off int64) (n int, err error) {
	if off < 0 {
		return 0, fmt.Errorf("replicate: read content %v at %d", rr.content.ID, off)
	}
	for n < len(p) {
		at := off + int64(n)
		if at >= rr.content.Size {
			return n, io.EOF
		}
		block, err := rr.block(rr.ctx, at/content.BlockBytes)
		if err != nil {
			return n, err
		}
		n += copy(p[n:], block[at%content.BlockBytes:])
	}
	return n, nil
}

// Close ends reads that are under way.
func (rr *remoteReader) Close() error { rr.cancel(); return nil }

// Fd is -1: there is no file here.
func (rr *remoteReader) Fd() int { return -1 }

// Size is the content's length.
func (rr *remoteReader) Size() int64 { return rr.content.Size }

type cacheKey struct {
	content meta.ContentID
	block   int64
}

// blockCache keeps the blocks that were used last, up to a number of bytes.
type blockCache struct {
	mu    sync.Mutex
	limit int64
	bytes int64
	order *list.List // of cacheEntry, the newest first
	byKey map[cacheKey]*list.Element
}

type cacheEntry struct {
	key   cacheKey
	block []byte
}

func newBlockCache(limit int64) *blockCache {
	return &blockCache{limit: limit, order: list.New(), byKey: make(map[cacheKey]*list.Element)}
}

func (c *blockCache) get(key cacheKey) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.byKey[key]
	if e == nil {
		return nil
	}
	c.order.MoveToFront(e)
	return e.Value.(cacheEntry).block
}

func (c *blockCache) put(key cacheKey, block []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byKey[key] != nil {
		return
	}
	c.byKey[key] = c.order.PushFront(cacheEntry{key, block})
	c.bytes += int64(len(block))
	for c.bytes > c.limit && c.order.Len() > 0 {
		last := c.order.Back()
		old := c.order.Remove(last).(cacheEntry)
		delete(c.byKey, old.key)
		c.bytes -= int64(len(old.block))
	}
}
