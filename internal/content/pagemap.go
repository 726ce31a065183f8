package content

import (
	"iter"
	"math/bits"
)

// pageMap is a set of pages of [PageBytes]. It grows with what is set; a range that is set whole costs
// next to nothing, so that numbers from disk can't make it large.
type pageMap struct {
	nodes []*pageNode // each for nodePages pages; nil is empty
}

type pageNode [nodeWords]uint64

const (
	nodeWords = 512
	nodePages = nodeWords * 64
)

// fullNode stands for a node with all pages set; it is never written.
var fullNode = func() *pageNode {
	n := new(pageNode)
	for i := range n {
		n[i] = ^uint64(0)
	}
	return n
}()

// has reports whether page i is set.
func (m *pageMap) has(i int64) bool {
	at := i / nodePages
	if at >= int64(len(m.nodes)) || m.nodes[at] == nil {
		return false
	}
	return m.nodes[at][i%nodePages/64]>>(i%64)&1 == 1
}

// set adds the pages that hold any of n bytes at off.
func (m *pageMap) set(off, n int64) {
	if n <= 0 {
		return
	}
	m.setPages(off/PageBytes, (off+n-1)/PageBytes+1)
}

// setPages adds pages first up to but not including end.
func (m *pageMap) setPages(first, end int64) {
	for first < end {
		at := first / nodePages
		for int64(len(m.nodes)) <= at {
			m.nodes = append(m.nodes, nil)
		}
		stop := min(end, (at+1)*nodePages)
		switch {
		case m.nodes[at] == fullNode:
		case stop-first == nodePages:
			m.nodes[at] = fullNode
		default:
			if m.nodes[at] == nil {
				m.nodes[at] = new(pageNode)
			}
			m.nodes[at].fill(first%nodePages, stop-at*nodePages)
		}
		first = stop
	}
}

func (n *pageNode) fill(first, end int64) {
	for first < end {
		stop := min(end, (first/64+1)*64)
		n[first/64] |= ^uint64(0) >> (64 - (stop - first)) << (first % 64)
		first = stop
	}
}

// merge adds all pages of o.
func (m *pageMap) merge(o *pageMap) {
	for first, end := range o.runs(0, int64(len(o.nodes))*nodePages) {
		m.setPages(first, end)
	}
}

// next finds the first page from i on, below end, that is set (or not set, if want is false).
func (m *pageMap) next(i, end int64, want bool) int64 {
	for i < end {
		at := i / nodePages
		if at >= int64(len(m.nodes)) {
			if want {
				return end
			}
			return i
		}
		node := m.nodes[at]
		if node == nil || node == fullNode {
			if (node == fullNode) == want {
				return i
			}
			i = (at + 1) * nodePages
			continue
		}
		word := node[i%nodePages/64]
		if !want {
			word = ^word
		}
		if word = word >> (i % 64); word != 0 {
			return min(end, i+int64(bits.TrailingZeros64(word)))
		}
		i = (i/64 + 1) * 64
	}
	return end
}

// runs iterates over the runs of set pages in [first, end): the first page of each, and the page behind its last.
func (m *pageMap) runs(first, end int64) iter.Seq2[int64, int64] {
	return func(yield func(int64, int64) bool) {
		for i := m.next(first, end, true); i < end; {
			stop := m.next(i, end, false)
			if !yield(i, stop) {
				return
			}
			i = m.next(stop, end, true)
		}
	}
}
