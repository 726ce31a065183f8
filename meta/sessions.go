package meta

// seqSet is a set of numbers from 1, as ranges lo < i <= hi, ascending, never touching.
type seqSet []IndexRange

// seqSetMax bounds the ranges of a set that apply keeps.
const seqSetMax = 1024

func (s seqSet) has(v uint64) bool {
	for i := len(s) - 1; i >= 0; i-- {
		if v > s[i].Lo {
			return v <= s[i].Hi
		}
	}
	return false
}

// addRange returns the set with all of r added; the receiver is left alone.
func (s seqSet) addRange(r IndexRange) seqSet {
	if r.Lo >= r.Hi {
		return s
	}
	out := make(seqSet, 0, len(s)+1)
	i := 0
	for ; i < len(s) && s[i].Hi < r.Lo; i++ {
		out = append(out, s[i])
	}
	for ; i < len(s) && s[i].Lo <= r.Hi; i++ {
		r.Lo, r.Hi = min(r.Lo, s[i].Lo), max(r.Hi, s[i].Hi)
	}
	out = append(out, r)
	return append(out, s[i:]...)
}

// dropUpTo returns the set without the numbers at or below v.
func (s seqSet) dropUpTo(v uint64) seqSet {
	var out seqSet
	for _, r := range s {
		if r.Hi <= v {
			continue
		}
		out = append(out, IndexRange{max(r.Lo, v), r.Hi})
	}
	return out
}

// lowestGap is the first range of numbers from 1 that are not in the set, when a later one is.
func (s seqSet) lowestGap() IndexRange {
	switch {
	case len(s) > 0 && s[0].Lo > 0:
		return IndexRange{0, s[0].Lo}
	case len(s) > 1:
		return IndexRange{s[0].Hi, s[1].Lo}
	}
	return IndexRange{}
}

// progress is what changes of a node with every entry it proposes. It belongs to one incarnation, except LastIno, which
// only grows.
type progress struct {
	Incarnation uint32
	Acked       uint64 // proposals at or below are answered and forgotten
	LastIno     uint64
	LastUnheld  uint64 // proposal number of the last Unheld or Release: an earlier Held is out of date
	Decided     seqSet // sessions published or aborted
}

func (p *progress) code(c *fields) {
	c.V32(&p.Incarnation)
	c.V64(&p.Acked)
	c.V64(&p.LastIno)
	c.V64(&p.LastUnheld)
	c.ranges((*[]IndexRange)(&p.Decided))
}
