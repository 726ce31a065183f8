package integration

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/exitcode"
	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// harm damages a file of the content store in one of several ways, and says how.
func harm(t *testing.T, r *rand.Rand, path string) string {
	t.Helper()
	st, err := os.Stat(path)
	if err != nil {
		return "gone"
	}
	switch how := r.IntN(5); {
	case how == 0:
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		return "removed"
	case how == 1 && st.Size() > 1:
		if err := os.Truncate(path, r.Int64N(st.Size())); err != nil {
			t.Fatal(err)
		}
		return "cut"
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	off := r.Int64N(st.Size())
	var b [1]byte
	if _, err := f.ReadAt(b[:], off); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte{b[0] ^ byte(1<<r.IntN(8))}, off); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("flipped at %d", off)
}

// Files of many sizes, in directories with all and with two copies, and their kept versions, are damaged on one node
// after the other while programs of that node open and read them. A scrub finds and mends it all.
func TestScrubWhileFilesAreRead(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	c := start(t, cluster.Options{Nodes: 3})
	want := map[string][]byte{}
	for _, d := range []string{"all", "two"} {
		run(t, "mkdir", c.Nodes[0].Path(d))
	}
	c.Nodes[0].MustCLI("policy", c.Nodes[0].Path("all"), "--retain", "2")
	c.Nodes[0].MustCLI("policy", c.Nodes[0].Path("two"), "--copies", "2", "--retain", "1")
	for _, d := range []string{"all", "two"} {
		for _, bytes := range []int64{0, 1, 4096, 4097, 1<<20 - 1, 1 << 20, 1<<20 + 1, size[int64](20<<20, 64<<20)} {
			name := fmt.Sprintf("%s/f%d", d, bytes)
			for range 2 {
				src := filepath.Join(c.Dir, "src")
				cluster.Random(t, src, bytes, r.Uint64())
				run(t, "cp", src, c.Nodes[0].Path(name))
				if want[name], _ = os.ReadFile(src); int64(len(want[name])) != bytes {
					t.Fatal("source")
				}
			}
		}
	}
	c.AwaitNothingOwed(60 * time.Second)
	for round := range size(3, 12) {
		victim := c.Nodes[round%3]
		over := make(chan struct{})
		var readers sync.WaitGroup
		for range 2 {
			readers.Go(func() { readAll(victim, want, over) })
		}
		held := filepath.Join(victim.Data, "content", "held")
		files := filesUnder(t, held, "")
		harmed := map[string]bool{}
		for range 6 {
			path := files[r.IntN(len(files))]
			id := strings.SplitN(filepath.Base(path), ".", 2)[0]
			if harmed[id] {
				continue
			}
			harmed[id] = true
			t.Logf("round %d, %s: %s %s", round, victim.Name(), filepath.Base(path), harm(t, r, path))
		}
		began := time.Now()
		first := scrubNode(t, victim, exitcode.OK)
		t.Logf("round %d: %d harmed; %d contents, %d damaged, %d mended in %v", round, len(harmed), first.Contents,
			first.Damaged, first.Mended, time.Since(began))
		if first.Damaged > len(harmed) || first.Mended != first.Damaged {
			t.Errorf("round %d: %+v", round, first)
		}
		if again := scrubNode(t, victim, exitcode.OK); again.Damaged != 0 {
			t.Errorf("round %d: damaged afterwards: %+v", round, again)
		}
		close(over)
		readers.Wait()
		wantFiles(t, victim, want)
	}
	for _, n := range c.Nodes {
		wantFiles(t, n, want)
	}
}

// readAll reads all files until it is told to end. It may read what was damaged while it had the file open.
func readAll(n *cluster.Node, files map[string][]byte, over <-chan struct{}) {
	for {
		for name := range files {
			select {
			case <-over:
				return
			default:
				_, _ = os.ReadFile(n.Path(name)) // what it reads is looked at afterwards
			}
		}
	}
}

// wantFiles reads all files on a node, which must be right.
func wantFiles(t *testing.T, n *cluster.Node, want map[string][]byte) {
	t.Helper()
	for name, p := range want {
		got, err := os.ReadFile(n.Path(name))
		if err != nil || !bytes.Equal(got, p) {
			t.Errorf("%s: %s: %d bytes of %d, %v", n.Name(), name, len(got), len(p), err)
		}
	}
}
