package pin

// plan cuts a message into what goes by send/receive, [0, offset), and the fragments that are written, from offset on.
// The first fragment may be shorter, so that the others begin on boundaries of the receiver's memory.
type plan struct {
	size     int64
	offset   int64 // of the first fragment; size if there is none
	first    int64 // bytes of the first fragment
	fragment int64 // bytes of each other fragment, except the last
}

// Fragments of a long message are longer, as each costs a message, two wake-ups and a request: up to fragmentGrowth
// times as long, while there are more than fragmentsEnough of them, which are what a pipeline needs, and while the
// budget has room for many.
const (
	fragmentGrowth  = 4
	fragmentsEnough = 8
)

// grown is the length of the fragments of a message of size bytes.
func grown(fragment, size, room int64) int64 {
	most := min(fragmentGrowth*fragment, room/fragmentsEnough)
	for 2*fragment <= most && size/fragment > fragmentsEnough {
		fragment *= 2
	}
	return fragment
}

// fragmentWithin is a length of fragments that room is large enough for, if any is.
func fragmentWithin(fragment, room int64) int64 {
	return max(min(fragment, room)&^(fragmentMin-1), fragmentMin)
}

// newPlan makes the plan of a message whose part from offset on is written into memory that begins at base.
func newPlan(size, offset, fragment int64, base uint64, align bool) plan {
	p := plan{size: size, offset: min(offset, size), fragment: fragment, first: fragment}
	if align {
		p.first = fragment - int64((base+uint64(p.offset))%uint64(fragment))
	}
	return p
}

// count is the number of fragments.
func (p plan) count() int64 {
	rest := p.size - p.offset
	switch {
	case rest <= 0:
		return 0
	case rest <= p.first:
		return 1
	}
	return 1 + (rest-p.first+p.fragment-1)/p.fragment
}

// at is where fragment i lies in the message.
func (p plan) at(i int64) (from, to int64) {
	if i == 0 {
		return p.offset, min(p.offset+p.first, p.size)
	}
	from = p.offset + p.first + (i-1)*p.fragment
	return from, min(from+p.fragment, p.size)
}

// window is how far one end is in the fragments of a message: those in [done, next) are registered here, at most
// depth of them. Fragments end in order.
type window struct {
	plan
	depth int64
	next  int64 // the first that is not registered
	done  int64 // the first that has not ended
}

// open reports whether the next fragment may be registered.
func (w *window) open() bool { return w.next < w.count() && w.next-w.done < w.depth }

// held is the number of fragments under way.
func (w *window) held() int64 { return w.next - w.done }

// over reports whether all fragments have ended.
func (w *window) over() bool { return w.done == w.count() }
