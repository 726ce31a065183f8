package replicate

import (
	"maps"
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/blockset"
	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/session"
)

// A group counts what a member had among the blocks that it has stored. Progress leaves that out: it would count twice.
func TestWhatAMemberHadIsNoProgress(t *testing.T) {
	const groupBlock = content.BlockBytes / 4
	layout, err := content.NewLayout(content.Shape{Size: 4*content.BlockBytes + 1}) // 17 blocks of the group
	if err != nil {
		t.Fatal(err)
	}
	r := rootRun{layout: layout, groupBlock: groupBlock}
	have := []*blockset.Bitmap{
		blockset.BitmapOf(5, blockset.Ranges{{First: 0, Count: 2}}),
		blockset.BitmapOf(5, blockset.Ranges{{First: 1, Count: 1}, {First: 4, Count: 1}}),
		blockset.NewBitmap(5),
	}
	for _, tc := range []struct {
		members []meta.NodeID
		have    []*blockset.Bitmap
		want    map[meta.NodeID]uint64
	}{
		{[]meta.NodeID{2, 3, 4}, have, map[meta.NodeID]uint64{2: 8, 3: 5, 4: 0}},
		{[]meta.NodeID{2, 3}, have[:2], map[meta.NodeID]uint64{2: 4, 3: 1}}, // both have block 1
		{[]meta.NodeID{2}, have[:1], map[meta.NodeID]uint64{2: 0}},
	} {
		send := session.Send{Members: tc.members, Have: tc.have, Blocks: blockset.MissingIn(5, tc.have)}
		if got := r.hadBefore(send); !maps.Equal(got, tc.want) {
			t.Errorf("%v: %v, want %v", tc.members, got, tc.want)
		}
	}
}
