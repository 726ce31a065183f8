package rdmc

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// linkRound is what members of a group told the root in a round, on links of 200 Mbit/s through token buckets of 128
// KiB: the pace with the best source in MB a second and the percent of the least busy one, by rank from 1. slow is
// who had half the rate, 0 if nobody.
type linkRound struct {
	name  string
	block int     // KiB
	rate  float64 // MB a second that all got
	slow  int
	told  string
}

var linkRounds = []linkRound{
	{"6 at full pace", 64, 23.7, 0, "15/53 12/66 19/42 36/21 111/7"},
	{"7 at full pace", 64, 23.7, 0, "10/80 23/33 160/4 23/34 256/3 190/4"},
	{"7 at full pace, later", 64, 23.7, 0, "11/71 17/46 435/1 20/38 205/3 153/5"},
	{"8 at full pace", 64, 23.7, 0, "11/73 15/52 16/49 13/62 18/43 21/37 17/48"},
	{"13 at full pace", 64, 23.7, 0, "9/62 20/29 37/16 19/31 24/24 112/5 19/31 15/40 74/8 64/9 116/5 131/4"},
	{"large blocks, 6 at full pace", 256, 23.7, 0, "10/74 13/61 15/55 13/60 17/45"},
	{"large blocks, 7 at full pace", 256, 23.7, 0, "10/75 15/52 16/47 12/62 15/48 14/53"},
	{"large blocks, 13 at full pace", 256, 23.7, 0, "14/39 14/38 11/46 14/37 14/40 13/43 14/42 10/49 10/55 14/41 13/39 16/31"},
	{"relay of 8", 64, 12.2, 3, "188/2 270/1 5/79 131/3 57/6 160/2 148/2"},
	{"leaf of 8", 64, 12.2, 4, "190/1 32/11 93/4 3/99 67/5 122/3 43/8"},
	{"relay of 13", 64, 12.2, 2, "66/4 11/28 192/1 45/6 195/1 224/1 274/1 79/3 182/1 30/9 159/1 224/1"},
	{"relay of 13, from mid-transfer", 64, 12.2, 2, "92/3 7/43 322/1 21/13 121/2 156/1 229/1 71/4 231/1 74/3 114/2 177/1"},
	{"leaf of 13", 64, 12.2, 12, "293/1 157/1 137/2 70/4 229/1 68/4 206/1 151/1 305/1 121/2 36/8 4/78"},
	{"large blocks, relay of 8", 256, 12.2, 3, "18/21 22/19 4/89 14/20 26/15 21/16 15/28"},
	{"large blocks, relay of 13", 256, 12.2, 2, "21/13 6/45 22/12 27/12 21/13 26/10 21/13 17/21 28/10 26/12 21/15 20/12"},
	{"large blocks, leaf of 13", 256, 12.2, 12, "23/11 23/14 17/13 21/12 21/13 27/11 18/15 15/19 17/16 29/10 24/10 4/89"},
}

// TestRoundsOnLinks has nobody who is healthy blamed without pulses, and all who are slow stand out.
func TestRoundsOnLinks(t *testing.T) {
	for _, r := range linkRounds {
		all := make([]figures, 1)
		for told := range strings.FieldsSeq(r.told) {
			f := figures{rate: uint32(r.rate * 1e6 / paceUnit), peers: 3}
			var pace float64
			if _, err := fmt.Sscanf(told, "%f/%d", &pace, &f.busy); err != nil {
				t.Fatal(err)
			}
			f.pace = uint32(pace * 1e6 / paceUnit)
			all = append(all, f)
		}
		s, found := worst(all, 1.6, r.block<<10)
		switch {
		case r.slow == 0 && found && !s.doubtful:
			t.Errorf("%s: %v", r.name, s)
		case r.slow > 0 && (!found || s.Rank != r.slow):
			t.Errorf("%s: %d is slow, and found is %d", r.name, r.slow, s.Rank)
		}
	}
}

// pulseRound is how fast members took blocks in pulses on such links, in MB a second by rank from 1.
type pulseRound struct {
	name  string
	slow  int
	paces []float64
}

var pulseRuns = []pulseRound{
	{"6 at full pace", 0, []float64{24.9, 23.9, 22.5, 22.6, 23.4}},
	{"7 at full pace", 0, []float64{21.4, 23.2, 21.6, 22.1, 21.1, 21.6}},
	{"8 at full pace", 0, []float64{21.8, 22.8, 22.4, 23.4, 23.5, 23.8, 23.0}},
	{"13 at full pace", 0, []float64{22.3, 22.0, 23.9, 22.6, 22.7, 22.9, 21.9, 22.7, 21.6, 21.3, 22.2, 21.3}},
	{"8 at full pace, buckets of 256 KiB", 0, []float64{36.0, 32.6, 32.2, 30.7, 32.3, 30.5, 29.2}},
	{"13 at full pace, buckets of 256 KiB", 0, []float64{30.2, 30.2, 31.7, 30.9, 28.8, 32.0, 28.7, 30.8, 31.4, 33.0, 31.7, 33.0}},
	{"relay of 8", 3, []float64{20.5, 18.7, 12.5, 21.8, 20.9, 20.7, 20.1}},
	{"relay of 13", 2, []float64{18.1, 11.7, 12.3, 15.1, 21.0, 15.4, 18.1, 17.6, 17.2, 12.0, 17.7, 15.2}}, // 3 and 10 get blocks from it
	{"relay of 13, buckets of 256 KiB", 2, []float64{28.0, 19.1, 25.5, 21.6, 26.5, 27.2, 22.5, 25.6, 26.4, 22.9, 25.9, 28.0}},
}

// TestPulsesOnLinks has pulses prove that the slow one is slow, and clear everybody where nobody is.
func TestPulsesOnLinks(t *testing.T) {
	c := &core{limits: coreLimits{slowFactor: 1.6}}
	for _, run := range pulseRuns {
		all := make([]figures, 1)
		for _, pace := range run.paces {
			all = append(all, figures{pace: 1, rate: 1, pulse: uint32(pace * 1e6 / paceUnit)})
		}
		for rank := 1; rank < len(all); rank++ {
			own, others := inPulses(all, rank)
			if slower := own*c.proof() < others; run.slow == 0 && slower || run.slow == rank && !slower {
				t.Errorf("%s: %d at %.1f, others at %.1f", run.name, rank, own*paceUnit/1e6, others*paceUnit/1e6)
			}
		}
	}
}

// TestPulsePace measures pulses as they came to three members on such links, in ms: a slow relay, a member that it
// feeds, and another.
func TestPulsePace(t *testing.T) {
	for _, c := range []struct {
		arrivals    [pulseBlocks]int
		least, most float64 // MB a second
	}{
		{[...]int{2, 2, 7, 12, 17, 23, 28, 34, 39, 45, 50}, 11, 13},
		{[...]int{1, 6, 8, 9, 12, 17, 23, 28, 31, 35, 60}, 17, 21},
		{[...]int{3, 6, 9, 12, 15, 17, 20, 23, 26, 28, 34}, 21, 25},
	} {
		var p pulsePace
		for pulse := range 3 {
			for n, at := range c.arrivals {
				p.arrived(simStart.Add(time.Duration(100*pulse+at)*time.Millisecond), uint64(pulse*pulseBlocks+n), 64<<10)
			}
		}
		if pace := float64(p.take()) * paceUnit / 1e6; pace < c.least || pace > c.most {
			t.Errorf("%v: %.1f MB a second", c.arrivals, pace)
		}
		if p.take() != 0 {
			t.Error("a pulse counts twice")
		}
	}
}
