package content

import (
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/blockset"
	"github.com/rdmcfs/rdmcfs/test/codertest"
)

// goldenFormats has what lies in the files of a store.
func goldenFormats(t testing.TB) map[string][]byte {
	shape := func(s Shape) []byte {
		b, err := s.AppendBinary([]byte("before"))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	var h header
	codertest.Fill(&h)
	var r row
	codertest.Fill(&r)
	head := stageHead{origin: Origin{Ino: 1 << 41, Parent: 2, Node: 3, Incarnation: 4, Name: "name"},
		created: time.Unix(5, 6), base: testID(7), baseSize: 8}
	tag := head
	tag.origin.Over = ID{3: 9, 7: 10, 14: 1, 15: 2}
	tag.base, tag.baseSize = ID{}, 0
	return map[string][]byte{
		"header":      h.append([]byte("before")),
		"row":         r.append(nil, new(place).set(testID(1), 2)),
		"leaf":        appendLeaf(nil, &r.leaf, testID(1), 2),
		"stage-head":  appendRecord(nil, recordHead, head.append(nil)),
		"stage-own":   ownRecord(4096, 8192),
		"stage-size":  sizeRecord(1 << 40),
		"stage-over":  overRecord(testID(3)),
		"stage-text":  appendRecord([]byte("before"), recordReason, []byte("reason")),
		"stage-tag":   appendTag(nil, &tag),
		"shape-empty": shape(Shape{}),
		"shape-plain": shape(Shape{Size: 300 * BlockBytes,
			Holes: blockset.Ranges{{First: 1, Count: 2}, {First: 200, Count: 3}}}),
		"shape-delta": shape(Shape{Size: 9000, Base: testID(1), BaseSize: 100,
			Extents: []Extent{{Off: 4, Len: 10}, {Off: 4096, Len: 4096, Zero: true}}}),
	}
}

// The stores of running nodes have these bytes, and shapes travel in announcements.
func TestGoldenBytes(t *testing.T) { codertest.Golden(t, goldenFormats(t)) }
