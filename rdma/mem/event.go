package mem

import (
	"iter"
	"time"
)

// eventKind is what happens to a pair.
type eventKind uint8

const (
	eventExecute  eventKind = iota // its next request reaches the peer
	eventAck                       // the acknowledgement of its oldest request arrives
	eventLate                      // its request number has waited long enough for a receive
	eventPeerGone                  // it notices the end of its peer
	eventCut                       // it notices cut number
)

// event is something that will happen to pair.
type event struct {
	at     time.Duration
	tie    uint64
	kind   eventKind
	pair   *queuePair
	number uint64
}

func (e *event) before(o *event) bool {
	if e.at != o.at {
		return e.at < o.at
	}
	return e.tie < o.tie
}

// eventHeap is a binary heap, the next event first.
type eventHeap []event

func (h *eventHeap) push(e event) {
	*h = append(*h, e)
	s := *h
	for i := len(s) - 1; i > 0; {
		up := (i - 1) / 2
		if !s[i].before(&s[up]) {
			return
		}
		s[i], s[up] = s[up], s[i]
		i = up
	}
}

func (h *eventHeap) pop() event {
	s := *h
	first := s[0]
	last := len(s) - 1
	s[0] = s[last]
	s[last] = event{}
	s = s[:last]
	*h = s
	for i := 0; ; {
		next := i
		for _, c := range [2]int{2*i + 1, 2*i + 2} {
			if c < last && s[c].before(&s[next]) {
				next = c
			}
		}
		if next == i {
			return first
		}
		s[i], s[next] = s[next], s[i]
		i = next
	}
}

// pairList keeps the pairs of a device in the order they were made, so that a seed replays.
type pairList []*queuePair

func (l *pairList) add(q *queuePair) { *l = append(*l, q) }

func (l *pairList) remove(q *queuePair) {
	for i, p := range *l {
		if p == q {
			*l = append((*l)[:i:i], (*l)[i+1:]...)
			return
		}
	}
}

// all goes over a snapshot: the list may change meanwhile.
func (l *pairList) all() iter.Seq[*queuePair] {
	snapshot := *l
	return func(yield func(*queuePair) bool) {
		for _, q := range snapshot {
			if !yield(q) {
				return
			}
		}
	}
}
