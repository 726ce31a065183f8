package rdmc

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// fourFigures are those of four members of which the last takes at half the pace.
func fourFigures() []figures {
	return []figures{{}, {pace: 20000, rate: 9000, busy: 40, peers: 2}, {pace: 22000, rate: 9000, busy: 50, peers: 2},
		{pace: 8000, rate: 9000, busy: 95, wait: 5, peers: 2}}
}

func TestStraggler(t *testing.T) {
	s, ok := worst(fourFigures(), 1.6, burstBytes)
	if !ok || s.Rank != 3 || s.Pace != 8000*paceUnit || s.Others != 20000*paceUnit || s.Peers != 2 || !strings.Contains(s.String(), "its link or its processor") {
		t.Errorf("%v, %t", s, ok)
	}
	for name, excuse := range map[string]func(f []figures){
		"one source only":         func(f []figures) { f[3].peers = 1 },
		"a source has time":       func(f []figures) { f[3].busy = 60 },
		"busy with others":        func(f []figures) { f[3].elsewhere = true },
		"quick with one":          func(f []figures) { f[3].pace = 14000 },
		"nothing known":           func(f []figures) { f[3].pace = 0 },
		"nobody to compare with":  func(f []figures) { f[1].pace, f[2].pace = 0, 0 },
		"half of the others slow": func(f []figures) { f[1].pace, f[1].busy = 8000, 50 },
	} {
		f := fourFigures()
		excuse(f)
		if s, ok := worst(f, 1.6, burstBytes); ok {
			t.Errorf("%s: %v", name, s)
		}
	}
	quick := figures{pace: 83800, rate: 23700, busy: 5, peers: 3} // as seen on shaped links, with nobody slow
	if s, ok := worst([]figures{{}, quick, {pace: 15300, rate: 23700, busy: 52, peers: 3}, quick, quick}, 1.6, burstBytes/4); ok && !s.doubtful {
		t.Errorf("in a group at full pace: %v", s)
	}
	for rate, doubtful := range map[uint32]bool{9000: false, 90000: true} { // 256 KiB are 29 ms, 2.9 ms
		f := fourFigures()
		f[3].rate = rate
		if s, ok := worst(f, 1.6, burstBytes); !ok || s.doubtful != doubtful {
			t.Errorf("%d KiB a second: %v, doubtful %t", rate, s, s.doubtful)
		}
	}
	f := fourFigures()
	f[2].pace, f[2].busy = 9000, 90
	f[3].wait = 80
	if s, ok := worst(append(f, f[1], f[1]), 1.6, burstBytes); !ok || s.Rank != 3 || !strings.Contains(s.String(), "makes room late") {
		t.Errorf("two are slow: %v, %t", s, ok)
	}
}

// TestFiguresOnTheWire holds what control messages carry of paces, and that truncated ones are refused.
func TestFiguresOnTheWire(t *testing.T) {
	m := controlMessage{epoch: 1, paced: true, pace: laneFigures{pace: 7, busy: 90, wait: 3}}
	for rank := range uint32(maxFigures) {
		m.figures = append(m.figures, memberFigures{rank, figures{pace: 1 << 30, rate: rank, pulse: 5 + rank, busy: 100, wait: 99, peers: 3, elsewhere: rank%2 == 0}})
	}
	b := m.appendBinary(nil)
	var got controlMessage
	if err := decodeControl(b, &got); err != nil || !cmp.Equal(got.figures, m.figures, cmp.AllowUnexported(memberFigures{}, figures{})) || got.pace != m.pace || !got.paced {
		t.Fatalf("%+v, %v", got, err)
	}
	for n := controlHeader; n < len(b); n++ {
		if err := decodeControl(b[:n], &got); err == nil {
			t.Errorf("%d of %d bytes are taken", n, len(b))
		}
	}
	m.figures = append(m.figures, m.figures[0])
	if err := decodeControl(m.appendBinary(nil), &got); err == nil {
		t.Error("too many figures are taken")
	}
}

// TestOldFiguresAreForgotten has a straggler's rounds not count together over a pause, and figures of long ago count
// for nothing.
func TestOldFiguresAreForgotten(t *testing.T) {
	c := newCore(simPlan(4), 0, burstBytes, 1, false, coreLimits{slow: SlowReport, slowFactor: 1.6, slowTime: time.Second, sends: 1})
	all := fourFigures()
	tell := func(at time.Duration) {
		c.now = simStart.Add(at)
		for rank := range all {
			c.learnFigures(rank, all[rank])
		}
	}
	for round := range time.Duration(paceRounds - 1) {
		tell(round * time.Second / 4)
	}
	if c.members[3].slow.rounds != paceRounds-1 {
		t.Fatalf("%d rounds", c.members[3].slow.rounds)
	}
	tell(time.Hour)
	if got := c.members[3].slow.rounds; got != 1 || len(c.acts) > 0 {
		t.Errorf("%d rounds after a pause, actions %v", got, c.acts)
	}
	c.now = c.now.Add(time.Second)
	if _, ok := worst(c.freshFigures(), 1.6, burstBytes); ok {
		t.Error("old figures count")
	}
	for round := range time.Duration(paceRounds) {
		tell(2*time.Hour + round*time.Second/4)
	}
	if len(c.acts) != 1 || c.acts[0].kind != actSlow || c.slowest.Rank != 3 {
		t.Errorf("actions %v", c.acts)
	}
}
