package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/internal/control"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
)

const (
	// kindDamage is the kind of the call that asks a member what is damaged there. The answer is an admin.Damage in
	// JSON.
	kindDamage = 8
	// damageEvery is how often a node asks the others.
	damageEvery = 5 * time.Second
	// damageTimeout bounds the question to one of them.
	damageTimeout = 2 * time.Second
	// damageNames is how many files a report names.
	damageNames = 8
)

// damage is what this node knows of damaged contents, here and elsewhere.
type damage struct {
	self    meta.NodeID
	name    string // of this node
	db      *meta.DB
	store   *content.Store
	members *members
	peers   *control.Peers
	paths   *paths

	others atomic.Pointer[[]admin.Damage] // by the last answers
}

// damageReport describes contents that failed their checks; ok is false if there are none. pathOf names a content,
// and lost reports whether the log knows no node that holds it.
func damageReport(
	ids []content.ID, pathOf func(content.ID) string, lost func(content.ID) bool,
) (d admin.Damage, ok bool) {
	d.Count = len(ids)
	for _, id := range ids {
		if lost(id) {
			d.Lost++
		}
		d.Names = append(d.Names, pathOf(id))
	}
	slices.Sort(d.Names)
	d.Names = d.Names[:min(len(d.Names), damageNames)]
	return d, d.Count > 0
}

// here is what reads and scrubs of this node have found damaged and nobody has mended since.
func (k *damage) here() (admin.Damage, bool) {
	pathOf := func(id content.ID) string {
		c, err := k.db.Content(meta.ContentIDFromBytes(id))
		if err != nil {
			return "content " + id.String()
		}
		if note, is := strings.CutPrefix(stateNote(c), ", "); is {
			return k.paths.ofContent(c) + " (" + note + ")"
		}
		return k.paths.ofContent(c)
	}
	lost := func(id content.ID) bool {
		holders, err := k.db.Holders(meta.ContentIDFromBytes(id))
		return err == nil && len(holders) == 0
	}
	d, ok := damageReport(k.contents(), pathOf, lost)
	d.Node, d.Name = uint32(k.self), k.name
	return d, ok
}

// contents lists what failed its checks here, and what this node has lost and no node has any more: what was damaged
// everywhere may have been removed to make room for a copy that did not come.
func (k *damage) contents() []content.ID {
	ids := k.store.Damaged()
	nowhere, err := meta.Losses{DB: k.db}.Nowhere(nowhereMost)
	if err != nil {
		return ids
	}
	for _, c := range nowhere {
		members, err := k.db.Members(c.Policy, c.Ino)
		id := content.ID(c.ID.Bytes())
		lost, lostErr := meta.Losses{DB: k.db}.IsLost(k.self, c)
		if err == nil && lostErr == nil && lost && slices.Contains(members, k.self) && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// unreported counts the contents, and their bytes, that failed their checks here and of which the log still believes
// that this node has them. Each is about to be mended or reported.
func (k *damage) unreported() (count int, bytes int64, err error) {
	for _, id := range k.store.Damaged() {
		c, err := k.db.Content(meta.ContentIDFromBytes(id))
		if err == nil {
			var holds bool
			if holds, err = k.db.Holds(k.self, c.ID); holds {
				count, bytes = count+1, bytes+c.Size
			}
		}
		if err != nil && !errors.Is(err, meta.ErrNotFound) {
			return 0, 0, err
		}
	}
	return count, bytes, nil
}

// has reports whether a content has failed a check here and was not mended since.
func (k *damage) has(id meta.ContentID) bool {
	info, err := k.store.Stat(id.Bytes())
	return errors.Is(err, content.ErrCorrupt) || err == nil && info.Damaged
}

// handle answers with what is damaged here.
func (k *damage) handle(context.Context, control.Caller, []byte) ([]byte, error) {
	d, _ := k.here()
	return admin.Marshal(d)
}

// watch asks the other nodes now and then what is damaged there, until ctx ends.
func (k *damage) watch(ctx context.Context) {
	for range ticks(ctx, damageEvery) {
		k.askAll(ctx)
	}
}

// askAll asks all nodes that are up. The last answer of a node stands while it does not answer: it is declared down
// soon if it is not there.
func (k *damage) askAll(ctx context.Context) {
	k.ask(k.self, k.members.book().nodes, func(id meta.NodeID) (d admin.Damage, err error) {
		call, cancel := context.WithTimeout(ctx, damageTimeout)
		defer cancel()
		answer, err := k.peers.Call(call, uint32(id), kindDamage, nil)
		if err == nil {
			err = admin.Unmarshal(answer, &d)
		}
		return d, err
	})
}

// ask puts a question to all nodes that are up, except this one.
func (k *damage) ask(self meta.NodeID, nodes map[meta.NodeID]meta.Node, of func(meta.NodeID) (admin.Damage, error)) {
	before := map[uint32]admin.Damage{}
	if others := k.others.Load(); others != nil {
		for _, d := range *others {
			before[d.Node] = d
		}
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	var found []admin.Damage
	for id, rec := range nodes {
		if id == self || rec.State != meta.NodeUp {
			continue
		}
		wg.Go(func() {
			d, err := of(id)
			if err != nil {
				d = before[uint32(id)]
			}
			if d.Count == 0 {
				return
			}
			d.Node, d.Name, d.Names = uint32(id), rec.Name, d.Names[:min(len(d.Names), damageNames)]
			mu.Lock()
			defer mu.Unlock()
			found = append(found, d)
		})
	}
	wg.Wait()
	k.others.Store(&found)
}

// known is the damage here and, by the last answers, elsewhere, by node.
func (k *damage) known() (out []admin.Damage) {
	if d, ok := k.here(); ok {
		out = append(out, d)
	}
	if others := k.others.Load(); others != nil {
		out = append(out, *others...)
	}
	slices.SortFunc(out, func(a, b admin.Damage) int { return int(a.Node) - int(b.Node) })
	return out
}

// damageWarning says what is damaged at a node and what becomes of it.
func damageWarning(d admin.Damage) string {
	names := strings.Join(d.Names, ", ")
	if d.Count > len(d.Names) {
		names += ", ..."
	}
	what := "1 content failed its checks or is gone"
	if d.Count != 1 {
		what = fmt.Sprintf("%d contents failed their checks or are gone", d.Count)
	}
	text := fmt.Sprintf("damaged on %s: %s: %s; ", orDefault(d.Name, fmt.Sprintf("node %d", d.Node)), what, names)
	switch {
	case d.Lost == 0:
		return text + "they are mended as soon as a holder that is up has them right"
	case d.Lost < d.Count:
		return text +
			fmt.Sprintf("no node holds %d of them any more: restore another version of these, or copy them in again; the "+
				"rest is mended as soon as a holder that is up has it right", d.Lost)
	}
	return text + "no node holds them any more: restore another version, or copy the files in again"
}
