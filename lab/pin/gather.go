package pin

import "github.com/rdmcfs/rdmcfs/rdma"

// gather lists the memory of the next fragments that one write can take, and counts them: those behind the first that
// lie behind it in a region of the receiver's too, and are registered here.
func (e *sending) gather() (n int64) {
	l := e.l
	pins := e.pins[e.posted-e.w.done]
	l.list = appendPieces(l.list[:0], pins)
	tail := pins[len(pins)-1]
	limits := l.dev.Limits()
	from, to := e.at(e.posted)
	for n = 1; e.posted+n <= e.ends[0]; n++ {
		_, end := e.at(e.posted + n)
		if e.places[n] != (place{e.places[0].key, e.places[0].addr + uint64(to-from)}) ||
			end-from > int64(limits.MaxMessage) {
			break
		}
		if e.posted+n == e.w.next {
			if e.extend(tail, end-to) {
				l.list[len(l.list)-1].Length += int(end - to)
				to = end
				continue
			}
			if len(l.list) >= limits.MaxSGE || !e.find() {
				break
			}
		}
		pins = e.pins[e.posted+n-e.w.done]
		list := appendPieces(l.list, pins)
		if len(list) > limits.MaxSGE {
			break
		}
		l.list, to, tail = list, end, pins[len(pins)-1]
	}
	return n
}

// appendPieces adds the memory of pins; what lies behind each other in a region is one piece.
func appendPieces(list []rdma.SGE, pins []*Pin) []rdma.SGE {
	for _, p := range pins {
		s := p.SGE()
		if k := len(list) - 1; k >= 0 && list[k].Region == s.Region && list[k].Offset+list[k].Length == s.Offset {
			list[k].Length += s.Length
			continue
		}
		list = append(list, s)
	}
	return list
}
