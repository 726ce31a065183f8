package mixed

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// keysMax bounds the translations that a pair remembers.
const keysMax = 1024

// keys translates the remote keys of a pair. One key is looked up at a time, by a read of the peer's directory. All
// requests from the one that needs it on are held: when the read completes, all before it have, so the send queue is
// empty, and has room for all that are held.
type keys struct {
	peer    rdma.RegionKey // of the peer's directory; 0: keys need no translation
	kind    kind           // of the carrier
	known   map[rdma.RegionKey]rdma.RegionKey
	landing rdma.Region // where the read puts its word; of the carrier
	sought  rdma.RegionKey
	held    []rdma.SendWR // users of their regions
}

// missing is the first request whose key must be looked up; -1: none.
func (k *keys) missing(wrs []rdma.SendWR) int {
	if k.peer == 0 {
		return -1
	}
	return slices.IndexFunc(wrs, func(wr rdma.SendWR) bool {
		_, known := k.known[wr.RemoteKey]
		return wr.RemoteKey != 0 && wr.Op != rdma.OpSend && !known
	})
}

// translate is the carrier's key for a key that is not missing.
func (k *keys) translate(key rdma.RegionKey) rdma.RegionKey {
	if k.peer == 0 {
		return key
	}
	return k.known[key]
}

// learn takes the word in that was sought.
func (k *keys) learn() {
	if k.known == nil {
		k.known = make(map[rdma.RegionKey]rdma.RegionKey)
	}
	if len(k.known) >= keysMax {
		clear(k.known)
	}
	word := rdma.RegionKey(binary.LittleEndian.Uint64(k.landing.Bytes()))
	k.known[k.sought] = seal(k.sought, word, k.kind)
}

func (k *keys) close() {
	if k.landing != nil {
		_ = k.landing.Close()
		k.landing = nil
	}
}

// lookup is the request that reads a key's word.
func (p *pair) lookup(key rdma.RegionKey) (rdma.SendWR, error) {
	k := &p.keys
	if k.landing == nil {
		r, err := p.dev.members[p.carrier].AllocRegion(slotBytes, 0)
		if err != nil {
			return rdma.SendWR{}, fmt.Errorf("mixed: look up a key: %w", err)
		}
		k.landing = r
	}
	k.sought = key
	return rdma.SendWR{ID: p.dev.lookupID, Op: rdma.OpRead, List: []rdma.SGE{{Region: k.landing, Length: slotBytes}},
		RemoteKey: k.peer, RemoteAddr: uint64(slotOf(key) * slotBytes)}, nil
}

// hold keeps copies of requests until the keys before them are known, and starts the first lookup.
func (p *pair) hold(wrs []rdma.SendWR) error {
	k := &p.keys
	if n := len(k.held); len(wrs) > p.sendDepth-n {
		return fmt.Errorf("mixed: post %d sends behind %d of %d: %w", len(wrs), n, p.sendDepth, rdma.ErrQueueFull)
	}
	before := len(k.held)
	err := p.keep(wrs)
	if err == nil && before == 0 {
		err = p.postSends(nil, wrs[k.missing(wrs)].RemoteKey)
	}
	if err != nil {
		releaseSends(k.held[before:])
		k.held = k.held[:before]
	}
	return err
}

// keep appends copies of requests to the held ones, until one fails.
func (p *pair) keep(wrs []rdma.SendWR) error {
	for i := range wrs {
		for _, e := range wrs[i].List {
			if _, err := e.Region.(*region).on(p.carrier); err != nil {
				return fmt.Errorf("mixed: post send %d: %w", wrs[i].ID, err)
			}
		}
		if err := acquireList(wrs[i].List); err != nil {
			return fmt.Errorf("mixed: post send %d: %w", wrs[i].ID, err)
		}
		wr := wrs[i]
		wr.List, wr.Inline = slices.Clone(wr.List), slices.Clone(wr.Inline)
		p.keys.held = append(p.keys.held, wr)
	}
	return nil
}

// found continues after a lookup. The lock of the feed is held.
func (p *pair) found(status rdma.Status) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if status != rdma.StatusOK {
		p.state = stateError
		p.flushHeld(status)
		return
	}
	k := &p.keys
	k.learn()
	n, next := len(k.held), rdma.RegionKey(0)
	if i := k.missing(k.held); i >= 0 {
		n, next = i, k.held[i].RemoteKey
	}
	if err := p.postSends(k.held[:n], next); err != nil { // the pair is in error
		p.qps[p.carrier].Abort()
		p.state = stateError
		p.flushHeld(rdma.StatusFlushed)
		return
	}
	releaseSends(k.held[:n])
	k.held = slices.Delete(k.held, 0, n)
}

// flushHeld ends all that is held, the oldest with first and the others as flushed.
func (p *pair) flushHeld(first rdma.Status) {
	k := &p.keys
	for i := range k.held {
		wr := &k.held[i]
		p.send.own.Push(rdma.Completion{ID: wr.ID, QP: p, Op: wr.Op, Status: first})
		first = rdma.StatusFlushed
	}
	releaseSends(k.held)
	k.held = nil
}

func releaseSends(wrs []rdma.SendWR) {
	for i := range wrs {
		releaseList(wrs[i].List)
	}
}
