package node

import (
	"testing"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
)

// What was published and replaced before the log was asked for it is no error: else its bytes would be listed as unpublished.
func TestRestoredAndReplaced(t *testing.T) {
	out := replicate.Outcome{Result: meta.Result{Index: 9, Ino: 7, Version: 3}}
	for size, state := range map[int64]meta.ContentState{0: meta.ContentCurrent, 5: meta.ContentRetired} {
		c := unlisted(out, replicate.Push{Size: size, Attr: meta.AttrPatch{Mtime: 11}})
		if c.State != state || c.Ino != 7 || c.Version != 3 || c.Published != 9 || c.Size != size || c.Mtime != 11 {
			t.Errorf("%d bytes: %+v", size, c)
		}
	}
}
