package replicate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/session"
)

// put handles KindPut: small contents, stored and answered one by one.
func (m *Member) put(ctx context.Context, from meta.NodeID, items []putItem) []standing {
	out := make([]standing, len(items))
	var wg sync.WaitGroup
	m.awaitKnown(ctx, items)
	for i := range items {
		select {
		case m.putSlots <- struct{}{}:
		case <-ctx.Done():
			out[i] = standing{items[i].Content, session.Standing{Status: session.StatusRefused, Reason: meta.OwedSlow,
				Text: ctx.Err().Error()}}
			continue
		}
		wg.Go(func() {
			defer func() { <-m.putSlots }()
			out[i] = m.putOne(from, &items[i])
		})
	}
	wg.Wait()
	return out
}

func (m *Member) putOne(from meta.NodeID, it *putItem) standing {
	if it.Content.IsZero() || len(it.Bytes) == 0 && len(it.Shape) == 0 || !it.Published && it.Content.Node != from {
		return standing{it.Content, session.Standing{Status: session.StatusRefused, Reason: meta.OwedFailed,
			Text: "not a content of this node"}}
	}
	if st, ok := m.already(it.Content, it.Published); ok {
		return st
	}
	if it.Published && !m.applied.known(it.Content, it.Root) {
		return standing{it.Content, session.Standing{Status: session.StatusRefused, Reason: meta.OwedSlow,
			Text: errNotKnown.Error()}}
	}
	if err := m.putStore(it); err != nil && !errors.Is(err, content.ErrExists) {
		return standing{it.Content, session.Standing{Status: session.StatusRefused, Reason: m.refusalReason(err),
			Text: err.Error()}}
	}
	m.votes.voted(it.Content, it.Root)
	m.cfg.Point(PointVote)
	if !m.verdicts.settle(it.Content) {
		return standing{it.Content, session.Standing{Status: session.StatusGone}}
	}
	return standing{it.Content, session.Standing{Status: session.StatusVoted}}
}

var errNotKnown = errors.New("replicate: not published by the log as far as it was applied here")

const (
	knownWait = 2 * time.Second // a node that is back may be a moment behind the log
	knownPoll = 20 * time.Millisecond
)

// awaitKnown waits a moment for contents that the log has published, but not yet as far as it was applied here.
func (m *Member) awaitKnown(ctx context.Context, items []putItem) {
	limit := m.cfg.Clock.Now().Add(knownWait)
	for i := range items {
		it := &items[i]
		for it.Published && !m.applied.known(it.Content, it.Root) && m.applied.judge(it.Content) == session.Undecided {
			if ctx.Err() != nil || m.cfg.Clock.Now().After(limit) {
				return
			}
			pause(ctx, m.cfg.Clock, knownPoll)
		}
	}
}

// putStore stores a small content durably and checks its root.
func (m *Member) putStore(it *putItem) error {
	id := storeID(it.Content)
	plain := len(it.Shape) == 0
	if plain && it.Published && m.mender.committedDamaged(it.Content) {
		if contentRoot(it.Bytes) != it.Root {
			return content.ErrMismatch // what is here stays until right bytes have come
		}
		if err := m.cfg.Store.Delete(id); err != nil {
			return err
		}
	}
	if !plain {
		return m.putShaped(it)
	}
	root, err := m.cfg.Store.Put(m.ctx, id, content.Shape{Size: int64(len(it.Bytes))}, bytes.NewReader(it.Bytes))
	if err != nil {
		return err
	}
	if root != content.Hash(it.Root) {
		return errors.Join(content.ErrMismatch, m.cfg.Store.Abort(id))
	}
	return nil
}

// putShaped stores a content of little stream: most often a small delta over a large base.
func (m *Member) putShaped(it *putItem) error {
	shape, err := content.DecodeShape(it.Shape)
	if err != nil {
		return err
	}
	recv, err := m.beginStore(it.Content, meta.ContentID{}, shape)
	if err != nil {
		return err
	}
	if err = fillStream(recv, it.Bytes); err == nil {
		err = recv.Finish(m.ctx, content.Hash(it.Root))
	}
	if err == nil {
		return nil
	}
	if shape.IsDelta() && (errors.Is(err, content.ErrMismatch) || errors.Is(err, content.ErrCorrupt)) {
		err = errors.Join(content.ErrNoBase, err) // the base here is not what it should be: as good as none
	}
	return errors.Join(err, recv.Discard())
}

// fillStream writes the whole stream of a content.
func fillStream(recv *content.Receiving, stream []byte) error {
	l := recv.Layout()
	if int64(len(stream)) != l.StreamBytes() {
		return fmt.Errorf("replicate: %d bytes for a stream of %d: %w", len(stream), l.StreamBytes(), content.ErrShape)
	}
	for i := range l.Blocks() {
		block := stream[i*content.BlockBytes:][:l.BlockLen(i)]
		if recv.Has(i) {
			continue
		}
		if err := recv.WriteBlock(i, block, nil); err != nil {
			return err
		}
	}
	return nil
}
