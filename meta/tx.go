package meta

import (
	"bytes"
	"fmt"
	"sort"
	"syscall"
)

// tx applies one entry: an overlay of writes over the previous version. Faults of the store or damaged records
// stick in err; reads then find nothing, and the entry is not committed.
type tx struct {
	view  kvView
	entry Entry
	now   int64
	head  head
	cl    *cluster
	// clNew is set once cl is this entry's own copy.
	clNew    bool
	progress map[NodeID]*progress
	locks    map[Ino]*fileLocks // read by this entry, and what was changed of them
	pairs    map[string]*pair
	events   []Event
	err      error
}

// pair is a key that was read or written.
type pair struct {
	key      []byte
	old, now []byte // nil: absent
}

func newTx(view kvView, h head, cl *cluster) *tx {
	return &tx{view: view, head: h, cl: cl, progress: map[NodeID]*progress{}, pairs: make(map[string]*pair, 16)}
}

func (t *tx) fail(err error) {
	if t.err == nil {
		t.err = err
	}
}

func (t *tx) pair(key []byte) *pair {
	if p := t.pairs[string(key)]; p != nil {
		return p
	}
	old, err := t.view.get(key)
	if err != nil {
		t.fail(fmt.Errorf("meta: read key %x: %w", key, err))
		old = nil
	}
	p := &pair{key: key, old: old, now: old}
	t.pairs[string(key)] = p
	return p
}

func (t *tx) get(key []byte) []byte { return t.pair(key).now }

func (t *tx) set(key, value []byte) { t.pair(key).now = value }

func (t *tx) del(key []byte) { t.pair(key).now = nil }

// load decodes the record under key and reports whether there is one.
func (t *tx) load(key []byte, r record) bool {
	raw := t.get(key)
	if raw == nil {
		return false
	}
	if err := decodeRecord(raw, r); err != nil {
		t.fail(fmt.Errorf("meta: record %x: %w", key, err))
		return false
	}
	return true
}

func (t *tx) save(key []byte, r record) { t.set(key, encodeRecord(r)) }

// scan calls fn with the present pairs that begin with prefix, in order, until it returns false. fn may write.
func (t *tx) scan(prefix []byte, fn func(key, value []byte) bool) { t.scanFrom(prefix, prefix, fn) }

// scanFrom is scan from a key on.
func (t *tx) scanFrom(prefix, from []byte, fn func(key, value []byte) bool) {
	added := t.addedUnder(prefix)
	for len(added) > 0 && bytes.Compare(added[0].key, from) < 0 {
		added = added[1:]
	}
	cur := t.view.scan(prefix, from)
	defer func() {
		if err := cur.sure(); err != nil {
			t.fail(fmt.Errorf("meta: scan keys %x from %x: %w", prefix, from, err))
		}
		cur.close()
	}()
	for cur.next() {
		key := append([]byte(nil), cur.key()...)
		for len(added) > 0 && bytes.Compare(added[0].key, key) < 0 {
			if added[0].now != nil && !fn(added[0].key, added[0].now) {
				return
			}
			added = added[1:]
		}
		value, err := cur.value()
		if err != nil {
			t.fail(fmt.Errorf("meta: scan key %x: %w", key, err))
			return
		}
		if p := t.pairs[string(key)]; p != nil {
			value = p.now
		} else {
			t.pairs[string(key)] = &pair{key: key, old: value, now: value}
		}
		if value != nil && !fn(key, value) {
			return
		}
	}
	for _, p := range added {
		if p.now != nil && !fn(p.key, p.now) {
			return
		}
	}
}

// addedUnder lists the pairs of this entry that the store lacks.
func (t *tx) addedUnder(prefix []byte) []*pair {
	var out []*pair
	for _, p := range t.pairs {
		if p.old == nil && p.now != nil && bytes.HasPrefix(p.key, prefix) {
			out = append(out, p)
		}
	}
	sort.Slice(out, func(i, j int) bool { return bytes.Compare(out[i].key, out[j].key) < 0 })
	return out
}

// undo drops every effect so far, so that an operation that answers an errno has none.
func (t *tx) undo(h head, cl *cluster) {
	t.head, t.cl, t.clNew, t.events = h, cl, false, nil
	clear(t.progress)
	clear(t.locks)
	for _, p := range t.pairs {
		p.now = p.old
	}
}

// complete runs an entry and lists its changes, unless it has failed: what could not be read looks as if it was not
// there, and an operation may panic over that.
func (t *tx) complete(run func(*tx) Result) (res Result, writes []kvWrite) {
	defer func() {
		if t.err != nil {
			recover()
		}
	}()
	res = run(t)
	return res, t.finish()
}

// finish writes the records kept decoded, updates the digest, and lists the changes in key order.
func (t *tx) finish() []kvWrite {
	for id, p := range t.progress {
		t.save(key32(tableProgress, uint32(id)), p)
	}
	writes := make([]kvWrite, 0, len(t.pairs)+1)
	for _, p := range t.pairs {
		if p.now == nil && p.old == nil || p.now != nil && p.old != nil && bytes.Equal(p.old, p.now) {
			continue
		}
		if p.old != nil {
			t.head.Sum.sub(hashPair(p.key, p.old))
		}
		if p.now != nil {
			t.head.Sum.add(hashPair(p.key, p.now))
		}
		writes = append(writes, kvWrite{p.key, p.now})
	}
	sort.Slice(writes, func(i, j int) bool { return bytes.Compare(writes[i].key, writes[j].key) < 0 })
	return append(writes, kvWrite{headKey, encodeRecord(&t.head)})
}

func (t *tx) emit(e Event) {
	e.Index = t.head.Index
	if e.Node == 0 && e.Kind != EventRetired {
		e.Node = t.entry.Node
	}
	t.events = append(t.events, e)
}

func (t *tx) lease() Lease { return Lease{t.entry.Node, t.entry.Incarnation} }

// progressOf is the decoded progress record of a node; changes to it are written by finish.
func (t *tx) progressOf(id NodeID) *progress {
	if p := t.progress[id]; p != nil {
		return p
	}
	p := new(progress)
	t.load(key32(tableProgress, uint32(id)), p)
	t.progress[id] = p
	return p
}

// own makes cl this entry's own copy.
func (t *tx) own() *cluster {
	if !t.clNew {
		t.cl, t.clNew = t.cl.clone(), true
	}
	return t.cl
}

// saveNode stores a changed copy of a node's record.
func (t *tx) saveNode(n nodeRecord) {
	t.own().setNode(&n)
	t.save(key32(tableNode, uint32(n.ID)), &n)
}

const ok = syscall.Errno(0)
