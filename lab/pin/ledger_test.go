package pin

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/rdmcfs/rdmcfs/rdma"
)

func kept(lo, hi uint64) want { return want{span: span{lo, hi}, keep: true} }

// must takes what has to be made.
func must(t *testing.T, l *ledger, w want) *entry {
	t.Helper()
	v, e, _ := l.take(w)
	if v != made {
		t.Fatalf("take %v: verdict %v, want made", w.span, v)
	}
	return e
}

func TestLedgerFindsWhatCovers(t *testing.T) {
	l := &ledger{}
	e := must(t, l, kept(0, 100))
	must(t, l, kept(200, 300))
	if v, got, _ := l.take(kept(10, 100)); v != found || got != e || e.users != 2 {
		t.Fatalf("verdict %v, users %d", v, e.users)
	}
	must(t, l, kept(50, 150))
	must(t, l, want{span: span{0, 100}, keep: true, access: rdma.RemoteWrite})
	must(t, l, want{span: span{0, 100}}) // on demand: never shared
}

func TestLedgerEvictsTheOldest(t *testing.T) {
	l := &ledger{budget: 300}
	a, b, c := must(t, l, kept(0, 100)), must(t, l, kept(100, 200)), must(t, l, kept(200, 300))
	for _, e := range []*entry{b, a, c} {
		if l.give(e) {
			t.Fatal("a kept entry leaves when nobody uses it")
		}
	}
	l.give(func() *entry { _, e, _ := l.take(kept(100, 150)); return e }()) // b is the newest now
	v, _, victims := l.take(kept(400, 550))
	if v != evicted || !slices.Equal(victims, []*entry{a, c}) {
		t.Fatalf("verdict %v, victims %v", v, victims)
	}
	if v, _, _ := l.take(kept(600, 700)); v != waiting {
		t.Fatalf("verdict %v while others leave, want waiting", v)
	}
	l.gone(a)
	l.gone(c)
	must(t, l, kept(400, 550))
	if v, _, _ := l.take(kept(1000, 1200)); v != refused {
		t.Fatalf("verdict %v beyond what is free of users, want refused", v)
	}
	if !b.findable() {
		t.Fatal("refused, and yet evicted")
	}
}

func TestLedgerInvalidation(t *testing.T) {
	l := &ledger{}
	idle, used, other := must(t, l, kept(0, 100)), must(t, l, kept(100, 200)), must(t, l, kept(200, 300))
	l.give(idle)
	leave, inUse := l.invalidate(span{50, 200})
	if !slices.Equal(leave, []*entry{idle}) || !slices.Equal(inUse, []*entry{used}) || other.stale {
		t.Fatalf("leave %v, in use %v", leave, inUse)
	}
	if v, e, _ := l.take(kept(120, 180)); v != made || e == used {
		t.Fatal("a stale entry was found")
	}
	if !l.give(used) {
		t.Fatal("the last user of a stale entry must have it deregistered")
	}
	l.gone(used)
	if l.give(other) || !l.touches(span{299, 400}) || l.touches(span{300, 400}) {
		t.Fatal("an entry beside the range was touched")
	}
}

func TestLedgerClaims(t *testing.T) {
	l := &ledger{budget: 400}
	must(t, l, want{span: span{0, 100}, fixed: true})
	ahead, peer := want{span: span{0, 101}, claim: ClaimAhead}, want{span: span{0, 101}, claim: ClaimPeer}
	if v, _, _ := l.take(ahead); v != refused || !l.never(ahead) || l.never(peer) {
		t.Fatalf("verdict %v: more than a third", v)
	}
	must(t, l, want{span: span{0, 100}, claim: ClaimAhead})
	if v, _, _ := l.take(peer); v != refused {
		t.Fatalf("verdict %v: more than two thirds", v)
	}
	must(t, l, want{span: span{0, 100}, claim: ClaimPeer})
	must(t, l, want{span: span{0, 100}, claim: ClaimNow})
}

// TestLedgerClaimsWhatIsFound: a registration that nobody uses counts like a new one for a user that finds it. So users
// that wait for peers leave the others' part of the budget to them, even if all is registered already.
func TestLedgerClaimsWhatIsFound(t *testing.T) {
	l := &ledger{budget: 300}
	idle := func(lo, hi uint64) *entry {
		e := must(t, l, kept(lo, hi))
		l.give(e)
		return e
	}
	large, small := idle(0, 200), idle(300, 400)
	ahead := func(lo, hi uint64) want {
		return want{span: span{lo, hi}, keep: true, claim: ClaimAhead}
	}
	if v, _, victims := l.take(ahead(0, 50)); v != evicted || len(victims) != 1 || victims[0] != large {
		t.Fatalf("verdict %v, victims %v: a part of what is more than a third has to be registered alone", v, victims)
	}
	l.gone(large)
	if v, e, _ := l.take(ahead(300, 400)); v != found || e != small {
		t.Fatalf("verdict %v: a third", v)
	}
	if v, e, _ := l.take(ahead(300, 400)); v != found || e != small {
		t.Fatalf("verdict %v: in use already", v)
	}
	idle(500, 600)
	if v, _, _ := l.take(ahead(500, 600)); v != refused {
		t.Fatalf("verdict %v: a third more", v)
	}
	if v, _, _ := l.take(kept(500, 600)); v != found {
		t.Fatalf("verdict %v: all of the budget", v)
	}
	if v, _, _ := l.take(ahead(500, 600)); v == found {
		t.Fatal("what another may let go of before, beyond a third")
	}
}

// bookModel is the ledger as anyone would write it: a list of all calls, searched each time.
type bookModel struct {
	l       *ledger
	users   map[*entry]int
	leaving map[*entry]bool
}

func (m *bookModel) check(t *rapid.T) {
	sum := uint64(0)
	for _, e := range m.l.entries {
		sum += e.bytes()
		if e.users != m.users[e] {
			t.Fatalf("%v has %d users, want %d", e.span, e.users, m.users[e])
		}
		if e.leaving && e.users > 0 {
			t.Fatalf("%v leaves with users", e.span)
		}
	}
	if sum != m.l.used {
		t.Fatalf("%d bytes noted, %d there", m.l.used, sum)
	}
	if m.l.budget > 0 && sum > m.l.budget {
		t.Fatalf("%d bytes, budget %d", sum, m.l.budget)
	}
	if !slices.IsSortedFunc(m.l.entries, func(a, b *entry) int { return a.less(b.lo) }) {
		t.Fatal("not in order")
	}
}

func (m *bookModel) take(t *rapid.T, w want) {
	inUse, fixed := w.bytes(), uint64(0)
	for _, e := range m.l.entries {
		switch {
		case e.fixed:
			fixed += e.bytes()
		case e.users > 0:
			inUse += e.bytes()
		}
	}
	limit := m.l.budget - min(fixed, m.l.budget)
	if !w.fixed {
		limit = limit * uint64(3-w.claim) / 3
	}
	var serving []*entry
	for _, e := range m.l.entries {
		if w.keep && e.serves(w) && (m.l.budget == 0 || inUse-w.bytes()+e.more() <= limit) {
			serving = append(serving, e)
		}
	}
	before := m.l.used
	v, e, victims := m.l.take(w)
	switch v {
	case found:
		if !slices.Contains(serving, e) || e.stale || m.leaving[e] {
			t.Fatalf("%v found for %v", e, w.span)
		}
		m.users[e]++
	case made:
		if len(serving) > 0 {
			t.Fatalf("%v made beside %v", w.span, serving[0].span)
		}
		m.users[e]++
	case evicted:
		for i, v := range victims {
			if m.users[v] > 0 || m.leaving[v] {
				t.Fatal("a victim in use")
			}
			if i > 0 && victims[i-1].used > v.used {
				t.Fatal("not the oldest first")
			}
			m.leaving[v] = true
		}
		fallthrough
	case waiting, refused:
		if v != refused && before+w.bytes() <= m.l.budget || m.l.budget == 0 {
			t.Fatalf("%v: verdict %d with room", w.span, v)
		}
		if (v == refused) != (inUse > limit) {
			t.Fatalf("verdict %d with %d of %d in use", v, inUse, limit)
		}
	}
}

// TestLedgerModel runs random calls and looks at each answer.
func TestLedgerModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &bookModel{
			l:       &ledger{budget: rapid.Uint64Range(0, 400).Draw(t, "budget")},
			users:   make(map[*entry]int),
			leaving: make(map[*entry]bool),
		}
		pick := func(t *rapid.T, ok func(*entry) bool) *entry {
			var some []*entry
			for _, e := range m.l.entries {
				if ok(e) {
					some = append(some, e)
				}
			}
			if len(some) == 0 {
				t.Skip("none")
			}
			return some[rapid.IntRange(0, len(some)-1).Draw(t, "which")]
		}
		drawSpan := func(t *rapid.T) span {
			lo := rapid.Uint64Range(0, 300).Draw(t, "lo")
			return span{lo, lo + rapid.Uint64Range(1, 120).Draw(t, "bytes")}
		}
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				m.take(t, want{
					span: drawSpan(t), keep: rapid.Bool().Draw(t, "keep"),
					access: rdma.Access(rapid.IntRange(0, 3).Draw(t, "access")),
					claim:  Claim(rapid.IntRange(0, 2).Draw(t, "claim")),
				})
			},
			"give": func(t *rapid.T) {
				e := pick(t, func(e *entry) bool { return e.users > 0 })
				m.users[e]--
				leave := m.l.give(e)
				if leave != (m.users[e] == 0 && (e.stale || !e.keep)) {
					t.Fatalf("leave %v with %d users, stale %v, keep %v", leave, m.users[e], e.stale, e.keep)
				}
				m.leaving[e] = leave
			},
			"gone": func(t *rapid.T) {
				e := pick(t, func(e *entry) bool { return e.leaving })
				m.l.gone(e)
				delete(m.leaving, e)
			},
			"invalidate": func(t *rapid.T) {
				s := drawSpan(t)
				leave, inUse := m.l.invalidate(s)
				for _, e := range leave {
					m.leaving[e] = true
				}
				for _, e := range append(leave, inUse...) {
					if !e.overlaps(s) {
						t.Fatal("beside the range")
					}
				}
				for _, e := range m.l.entries {
					if e.overlaps(s) && e.findable() {
						t.Fatal("can still be found")
					}
				}
			},
			"": m.check,
		})
	})
}
