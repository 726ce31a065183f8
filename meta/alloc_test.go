package meta

import "testing"

// Keys, ids and digests are made for each record that an entry touches.
func TestKeysAllocateOnce(t *testing.T) {
	id, name := ContentID{Node: 1, Incarnation: 2, Seq: 3}, "name"
	value := make([]byte, 100)
	for what, c := range map[string]struct {
		allocs float64
		do     func()
	}{
		"key":     {1, func() { _ = owedKey(1, 2) }},
		"name":    {1, func() { _ = direntKey(1, name) }},
		"content": {1, func() { _ = keyContent(tableContent, id) }},
		"id":      {0, func() { _ = ContentIDFromBytes(id.Bytes()) }},
		"digest":  {0, func() { _ = hashPair(headKey, value) }},
	} {
		if got := testing.AllocsPerRun(100, c.do); got > c.allocs {
			t.Errorf("%s: %v allocations, at most %v", what, got, c.allocs)
		}
	}
}
