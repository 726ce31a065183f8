package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
)

const (
	// scrubLooks is how often a scrub looks whether what it found is mended.
	scrubLooks = 250 * time.Millisecond
	// scrubStuck is how long it waits while nothing of that changes.
	scrubStuck = time.Minute
	// scrubStuckWhole is how long it waits while a content comes again as a whole, which it does not see grow.
	scrubStuckWhole = 10 * time.Minute
)

// scrubber checks what this node holds when somebody asks for it. What it finds damaged is mended as always: it only
// waits for that.
type scrubber struct {
	self    meta.NodeID
	db      *meta.DB
	store   *content.Store
	paths   *paths
	members *members
	damage  *damage
	repl    *replicate.Replicator
}

// scrubbed is a content that was found damaged.
type scrubbed struct {
	content meta.Content
	damage  content.Damage
	mended  bool
	gone    bool   // no file needs it here any more
	why     string // it is not mended
}

// scrub checks the contents of a request and waits until what is damaged is mended, or can't be.
func (sb *scrubber) scrub(
	ctx context.Context, req admin.ScrubRequest, tell func(admin.Progress),
) (admin.ScrubResult, error) {
	if req.BytesPerSec < 0 {
		return admin.ScrubResult{}, admin.Errorf(admin.CodeInvalid, "a negative rate")
	}
	list, err := sb.scope(ctx, req.Path)
	if err != nil {
		return admin.ScrubResult{}, err
	}
	var p admin.Progress
	for _, c := range list {
		p.SizeBytes += c.Size
	}
	found, err := sb.check(ctx, list, req.BytesPerSec, func(done int64, damaged int) {
		p.Bytes, p.Mending = done, damaged
		tell(p)
	})
	if err != nil {
		return admin.ScrubResult{}, err
	}
	p.Bytes = p.SizeBytes
	if err := sb.await(ctx, found, func(left int) { p.Mending = left; tell(p) }); err != nil {
		return admin.ScrubResult{}, err
	}
	return sb.result(len(list), p.SizeBytes, found), nil
}

// scope lists the contents that a scrub of a path checks, in the order of their files: those of the store, and those
// that are known to be damaged or lost.
func (sb *scrubber) scope(ctx context.Context, path string) ([]meta.Content, error) {
	wanted, err := scopeOf(sb.db, sb.paths, path)
	if err != nil {
		return nil, err
	}
	var list []meta.Content
	seen := map[content.ID]bool{}
	for _, id := range append(sb.store.List(content.Committed), sb.damage.contents()...) {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if seen[id] {
			continue
		}
		seen[id] = true
		c, needed, err := sb.needed(meta.ContentIDFromBytes(id))
		if err != nil {
			return nil, err
		}
		if !needed {
			continue
		}
		in, err := wanted.has(c)
		if err != nil {
			return nil, err
		}
		if in {
			list = append(list, c)
		}
	}
	slices.SortFunc(list, func(a, b meta.Content) int {
		return cmp.Or(cmp.Compare(a.Ino, b.Ino), cmp.Compare(a.Version, b.Version), cmp.Compare(a.Published, b.Published))
	})
	return list, nil
}

// needed reads the record of a content, and reports whether a file needs it at this node. What no file needs is deleted
// some minutes later.
func (sb *scrubber) needed(id meta.ContentID) (c meta.Content, needed bool, err error) {
	c, err = sb.db.Content(id)
	if errors.Is(err, meta.ErrNotFound) {
		return c, false, nil
	}
	if err != nil || c.State == meta.ContentRetired || c.Inline {
		return c, false, err
	}
	if holds, err := sb.db.Holds(sb.self, id); err != nil || holds {
		return c, holds, err
	}
	members, err := sb.db.Members(c.Policy, c.Ino)
	return c, slices.Contains(members, sb.self), err
}

// check reads contents and lists the damaged ones. tell hears how many bytes of all are done, and how many were found.
func (sb *scrubber) check(
	ctx context.Context, list []meta.Content, rate int64, tell func(done int64, damaged int),
) ([]*scrubbed, error) {
	var found []*scrubbed
	var done, here, size int64
	checks := sb.store.Scrubber(rate, func(n int64) {
		here += n
		tell(done+min(here, size), len(found))
	})
	for _, c := range list {
		here, size = 0, c.Size
		damage, err := checks.Check(ctx, c.ID.Bytes())
		if err != nil {
			return nil, err
		}
		if damage == nil && sb.lost(c.ID) {
			damage = &content.Damage{Err: errNotHere}
		}
		if damage != nil {
			found = append(found, &scrubbed{content: c, damage: *damage})
		}
		done += c.Size
		tell(done, len(found))
	}
	return found, nil
}

var errNotHere = errors.New("it is not here")

// lost reports whether a content is not in the store at all.
func (sb *scrubber) lost(id meta.ContentID) bool {
	state, ok := sb.store.State(id.Bytes())
	return !ok || state == content.Partial
}

// await waits until all that was found is mended, or is known not to be. tell hears how much is left.
func (sb *scrubber) await(ctx context.Context, found []*scrubbed, tell func(left int)) error {
	changed, before := time.Now(), ""
	for {
		left, look, whole := 0, strings.Builder{}, false
		for _, f := range found {
			if sb.look(f) {
				left++
				state, _ := sb.store.State(f.content.ID.Bytes())
				whole = whole || state == content.Partial
				look.WriteString(f.content.ID.String() + state.String())
			}
		}
		if tell(left); left == 0 {
			return nil
		}
		now := fmt.Sprint(look.String(), sb.repl.Counters().RemoteReads)
		limit := scrubStuck
		if whole {
			limit = scrubStuckWhole
		}
		if now != before {
			changed, before = time.Now(), now
		} else if time.Since(changed) > limit {
			return nil
		}
		if !pause(ctx, scrubLooks) {
			return ctx.Err()
		}
	}
}

// look updates what is known of a damaged content, and reports whether it may still be mended.
func (sb *scrubber) look(f *scrubbed) (waits bool) {
	id := f.content.ID
	if f.mended || f.gone {
		return false
	}
	_, needed, err := sb.needed(id)
	if err != nil {
		f.why = err.Error()
		return false
	}
	if f.gone = !needed; f.gone {
		return false
	}
	if info, err := sb.store.Stat(id.Bytes()); err == nil && info.State == content.Committed && !info.Damaged {
		f.mended = true
		return false
	}
	if f.why = sb.noSource(id); f.why != "" {
		return false
	}
	f.why = "other nodes hold it, and it is not mended yet: 'rdmcfs status' shows when it is"
	return true
}

// noSource says why no other node can give a content; "" if one can.
func (sb *scrubber) noSource(id meta.ContentID) string {
	holders, err := sb.db.Holders(id)
	if err != nil {
		return err.Error()
	}
	others := 0
	for _, h := range holders {
		if h == sb.self {
			continue
		}
		if others++; sb.members.book().nodes[h].State == meta.NodeUp {
			return ""
		}
	}
	if others > 0 {
		return "the other nodes that hold it are down: it is mended when one is back"
	}
	return "no other node holds it"
}

// result counts and lists what was found.
func (sb *scrubber) result(contents int, bytes int64, found []*scrubbed) admin.ScrubResult {
	out := admin.ScrubResult{Contents: contents, SizeBytes: bytes}
	for _, f := range found {
		if f.gone {
			continue
		}
		if out.Damaged++; f.mended {
			out.Mended++
			f.why = ""
		}
		c := f.content
		out.List = append(out.List, admin.ScrubDamage{Path: sb.paths.ofContent(c), Version: c.Version, Content: c.ID.String(),
			State: contentWords[c.State], SizeBytes: c.Size, Blocks: len(f.damage.Blocks), Damage: f.damage.Err.Error(),
			Mended: f.mended, Reason: f.why})
	}
	slices.SortStableFunc(out.List, func(a, b admin.ScrubDamage) int {
		if a.Mended == b.Mended {
			return 0
		}
		if a.Mended {
			return 1
		}
		return -1
	})
	out.List = out.List[:min(len(out.List), admin.ScrubListMost)]
	return out
}
