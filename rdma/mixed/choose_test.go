package mixed

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// having is the address of a host with devices from these providers.
func having(host byte, names ...string) *address {
	a := &address{host: hostID{host}}
	for _, n := range names {
		a.offers = append(a.offers, offer{name: n})
	}
	return a
}

func TestChoose(t *testing.T) {
	for _, c := range []struct {
		a, b  []string
		want  kind
		spare string
	}{
		{[]string{"verbs", "tcp"}, []string{"verbs", "tcp"}, kind{"verbs", 0}, "tcp"},
		{[]string{"verbs", "tcp"}, []string{"tcp"}, kind{"tcp", 0}, ""},
		{[]string{"verbs", "tcp"}, []string{"verbs"}, kind{"verbs", 0}, ""},
		{[]string{"verbs", "mem", "tcp"}, []string{"mem", "tcp"}, kind{"mem", 0}, "tcp"},
		{[]string{"verbs", "tcp"}, []string{"tcp", "verbs"}, kind{"tcp", 0}, "verbs"}, // a tie: by name
		{[]string{"verbs", "verbs", "tcp"}, []string{"verbs", "tcp"}, kind{"verbs", 0}, "tcp"},
		{[]string{"verbs", "verbs"}, []string{"verbs", "verbs"}, kind{"verbs", 0}, "verbs"},
	} {
		for _, flip := range []bool{false, true} {
			a, b := having(1, c.a...), having(2, c.b...)
			if flip {
				a, b = b, a
			}
			got, err := choose(a, b)
			if err != nil || got.kind != c.want || got.spare != c.spare {
				t.Errorf("%v and %v (flipped: %v): %+v, %v", c.a, c.b, flip, got, err)
			}
		}
	}
	_, err := choose(having(1, "verbs"), having(2, "tcp"))
	if !errors.Is(err, rdma.ErrRequest) || !strings.Contains(err.Error(), "here verbs, there tcp") {
		t.Errorf("nothing in common: %v", err)
	}
}

// TestChooseAvoids: what either end avoids is left out, for that host and provider only, and the last never.
func TestChooseAvoids(t *testing.T) {
	var m memory
	now := time.Unix(1, 0)
	m.blame(route{hostID{2}, kind{"verbs", 0}}, now)
	m.blame(route{hostID{2}, kind{"tcp", 0}}, now)
	both := []string{"verbs", "tcp"}
	for _, c := range []struct {
		peer byte
		want string
	}{{2, "tcp"}, {3, "verbs"}} {
		a, b := having(1, both...), having(c.peer, both...)
		a.avoid = m.filter(now, filterMax)
		for _, ends := range [][2]*address{{a, b}, {b, a}} {
			if got, err := choose(ends[0], ends[1]); err != nil || got.name != c.want {
				t.Errorf("host %d: %+v, %v, want %s", c.peer, got, err, c.want)
			}
		}
	}
	only := having(2, "verbs")
	only.avoid = filter{255}
	if got, err := choose(having(1, "verbs"), only); err != nil || got.name != "verbs" {
		t.Errorf("the only one, avoided: %+v, %v", got, err)
	}
}

func TestMemorySpans(t *testing.T) {
	var m memory
	r := route{hostID{1}, kind{"verbs", 0}}
	now := time.Unix(1000, 0)
	if got := m.blame(r, now); got != avoidMin {
		t.Fatalf("first failure: %v", got)
	}
	if got := m.blame(r, now.Add(time.Second)); got != avoidMin-time.Second {
		t.Fatalf("another of the same time: %v", got)
	}
	for want := 2 * avoidMin; want <= 4*avoidMax; want *= 2 {
		now = now.Add(m.failed[r].span)
		if m.filter(now, filterMax) != nil || m.count(now, r.kind) != 0 {
			t.Fatal("avoided after its time")
		}
		if got := m.blame(r, now); got != min(want, avoidMax) {
			t.Fatalf("failed again: %v, want %v", got, want)
		}
	}
	now = now.Add(2 * avoidMax)
	if got := m.blame(r, now); got != avoidMin {
		t.Fatalf("a failure long after: %v", got)
	}
	m.clear(r)
	if m.filter(now, filterMax) != nil {
		t.Fatal("avoided although it works")
	}
}

func hostNumber(i int) hostID {
	var h hostID
	binary.LittleEndian.PutUint64(h[:], rand.New(rand.NewPCG(uint64(i), 7)).Uint64())
	return h
}

func TestMemoryIsBounded(t *testing.T) {
	var m memory
	start := time.Unix(1000, 0)
	for i := range 3 * routesMax {
		m.blame(route{hostNumber(i), kind{"verbs", 0}}, start.Add(time.Duration(i)*time.Millisecond))
	}
	if len(m.failed) != routesMax {
		t.Errorf("%d routes", len(m.failed))
	}
	if _, ok := m.failed[route{hostNumber(3*routesMax - 1), kind{"verbs", 0}}]; !ok {
		t.Error("the newest failure is forgotten")
	}
}

// TestFilterHits: a filter never forgets, and is wrong as rarely as its comment says.
func TestFilterHits(t *testing.T) {
	for _, c := range []struct {
		routes  int
		falseOf float64
	}{{1, 0.001}, {30, 0.008}, {100, 0.12}} {
		f := make(filter, filterMax)
		k := kind{"verbs", 0}
		for i := range c.routes {
			f.add(hostNumber(i), k)
		}
		hits := 0
		const others = 20000
		for i := range others {
			if f.has(hostNumber(1000+i), k) {
				hits++
			}
		}
		for i := range c.routes {
			if !f.has(hostNumber(i), k) {
				t.Fatalf("route %d of %d is not in the filter", i, c.routes)
			}
		}
		if got := float64(hits) / others; got > c.falseOf {
			t.Errorf("%d routes: %.4f false, want at most %.4f", c.routes, got, c.falseOf)
		}
	}
}
