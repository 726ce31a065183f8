package replicate

import (
	"errors"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/content"
)

// TestReadOfAClosedCopyEnds: a worker of a group that has failed may have been about to read a block when its session
// was given up. It must not wait for a check that never comes: the group could not end.
func TestReadOfAClosedCopyEnds(t *testing.T) {
	store, err := content.Open(t.TempDir(), content.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	recv, err := store.Begin(content.ID{1}, content.Shape{Size: 2 << 20})
	if err != nil {
		t.Fatal(err)
	}
	block := make([]byte, content.BlockBytes)
	if err := recv.WriteBlock(0, block, nil); err != nil {
		t.Fatal(err)
	}
	c := newLocalCopy(store, recv)
	if err := c.close(false); err != nil {
		t.Fatal(err)
	}
	read := make(chan error, 1)
	go func() { read <- c.readBlock(0, block) }()
	select {
	case err := <-read:
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%v, want %v", err, ErrClosed)
		}
	case <-time.After(5 * time.Second):
		t.Error("it waits")
		close(c.settled)
	}
}
