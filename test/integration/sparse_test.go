package integration

import (
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// A file of 15 TiB that is nothing but hole costs what its bytes cost: to change, to close, to map on another node, and
// to copy. Whoever walked its blocks would be at it for minutes.
func TestHugeSparseFile(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3})
	const size = 15 << 40
	path := c.Nodes[0].Path("image")
	run(t, "truncate", "-s", fmt.Sprint(size), path)
	at := []int64{1 << 40, 7<<40 + 12345, size - 3}
	for _, off := range at { // each is a version of its own
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte("far"), off); err != nil {
			t.Error(err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	run(t, "cp", c.Nodes[1].Path("image"), c.Nodes[1].Path("copy"))
	c.AwaitNothingOwed(time.Minute)
	for _, name := range []string{"image", "copy"} {
		wantFar(t, c.Nodes[2].Path(name), size, at)
	}
}

// wantFar holds that a file has the three bytes at each offset, and next to no other data.
func wantFar(t *testing.T, path string, size int64, at []int64) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || st.Size() != size {
		t.Fatalf("%s: %v, %v", path, st, err)
	}
	mapped := int64(0)
	for off := int64(0); off < size; {
		data, err := f.Seek(off, unix.SEEK_DATA)
		if err != nil {
			break // no more
		}
		hole, err := f.Seek(data, unix.SEEK_HOLE)
		if err != nil || hole <= data {
			t.Fatalf("%s: a hole at %d behind data at %d: %v", path, hole, data, err)
		}
		mapped, off = mapped+hole-data, hole
	}
	if mapped == 0 || mapped > 8<<20 {
		t.Errorf("%s: %d bytes are mapped as data", path, mapped)
	}
	for _, off := range at {
		got := make([]byte, 3)
		if _, err := f.ReadAt(got, off); err != nil || string(got) != "far" {
			t.Errorf("%s at %d: %q, %v", path, off, got, err)
		}
	}
}
