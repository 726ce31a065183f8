package core

import "time"

// pace measures what a member's sends wait for, by neighbour: the link there, or room at its end. With a slow link,
// blocks are on their way for long. With a slow disk or processor, the next block waits for room and none is on its
// way. pace is a part of the core: values in, values out. See docs/decisions/038.
type pace struct {
	at    time.Time
	lanes []lanePace
	waits int // lane whose credit the next send waits for, or -1
}

// lanePace is a neighbour's part.
type lanePace struct {
	flight  int           // blocks on their way
	sending time.Duration // with a block on its way
	waiting time.Duration // with none on its way, and the next one waiting for room
}

func (p *pace) open(lanes int) {
	p.lanes, p.waits = make([]lanePace, lanes), -1
}

// to moves the times on.
func (p *pace) to(now time.Time) {
	passed := now.Sub(p.at)
	p.at = now
	if passed <= 0 || passed > time.Hour {
		return // the first time
	}
	for i := range p.lanes {
		l := &p.lanes[i]
		switch {
		case l.flight > 0:
			l.sending += passed
		case i == p.waits:
			l.waiting += passed
		}
	}
}

// post says that a block is on its way.
func (p *pace) post(now time.Time, lane int) {
	p.to(now)
	p.lanes[lane].flight++
}

// done says that it has arrived.
func (p *pace) done(now time.Time, lane int) {
	p.to(now)
	p.lanes[lane].flight--
}

// wait says whose credit the next send waits for, -1 if for nobody's.
func (p *pace) wait(now time.Time, lane int) {
	if p.waits != lane {
		p.to(now)
		p.waits = lane
	}
}
