package replicate

import (
	"context"
	"errors"
	"sync"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/session"
)

// putBatch gathers small contents for one message.
type putBatch struct {
	s     *supplier
	ships []*shipment
	items []putItem
	bytes int
}

// add reads a small content into the batch, after sending what is full.
func (b *putBatch) add(sh *shipment, reader *content.Reader) {
	item, err := readSmall(sh.id, reader)
	if err != nil {
		sh.absent = true
		b.s.finish(sh)
		return
	}
	if b.bytes+len(item.Bytes) > putBatchBytes || len(b.items) >= putBatchItems {
		b.flush()
	}
	b.ships, b.items, b.bytes = append(b.ships, sh), append(b.items, item), b.bytes+len(item.Bytes)
}

func (b *putBatch) flush() {
	if len(b.ships) > 0 {
		b.s.put(b.ships, b.items)
	}
	b.ships, b.items, b.bytes = nil, nil, 0
}

// readSmall reads a whole content and closes the reader.
func readSmall(id meta.ContentID, r *content.Reader) (putItem, error) {
	buf := make([]byte, r.Size())
	n, err := r.ReadAt(buf, 0)
	if n == len(buf) {
		err = nil
	}
	return putItem{Content: id, Published: true, Root: r.Root(), Bytes: buf}, errors.Join(err, r.Close())
}

// put sends small contents to all targets at once.
func (s *supplier) put(batch []*shipment, items []putItem) {
	request := encodePut(items)
	targets := batch[0].targets
	failed := make([][]meta.NodeID, len(batch))
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, n := range targets {
		wg.Go(func() {
			ok := s.putAt(s.ctx, n, request, len(items))
			mu.Lock()
			defer mu.Unlock()
			for i := range failed {
				if !ok[i] {
					failed[i] = append(failed[i], n)
				}
			}
		})
	}
	wg.Wait()
	for i, sh := range batch {
		sh.sent, sh.failed = true, failed[i]
		s.moved.Add(uint64(len(items[i].Bytes)) * uint64(len(targets)-len(failed[i])))
		s.count(int64(len(items[i].Bytes)), len(targets)-len(failed[i]))
		s.finish(sh)
	}
}

// count counts a content that targets have got, and the bytes that each of them has got for it.
func (s *supplier) count(bytes int64, targets int) {
	if targets > 0 {
		s.counters.caughtUp.Add(1)
		s.counters.caughtUpBytes.Add(uint64(bytes) * uint64(targets))
	}
}

// putAt returns for each item whether the target is done with it.
func (s *supplier) putAt(ctx context.Context, node meta.NodeID, request []byte, n int) []bool {
	ok := make([]bool, n)
	ctx, cancel := whileUp(ctx, &s.wg, s.cfg, s.views, node)
	defer cancel()
	answer, err := callWhileMoving(ctx, &s.cfg, node, KindPut, request, batchSilent)
	if err != nil {
		s.cfg.Logger.Debug("catch-up: put", "node", node, "err", err)
		return ok
	}
	list, err := decodeStandings(answer)
	if err != nil || len(list) != n {
		s.cfg.Logger.Warn("catch-up: bad answer", "node", node, "err", err)
		return ok
	}
	for i := range ok {
		ok[i] = list[i].Status == session.StatusVoted || list[i].Status == session.StatusGone
	}
	return ok
}
