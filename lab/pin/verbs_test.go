//go:build linux && (amd64 || arm64) && !nordma

package pin

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/verbs"
)

func init() {
	openVerbs = func(t testing.TB) (a, b rdma.Device) {
		var d [2]rdma.Device
		for i, gid := range []string{"10.77.0.1", "10.77.0.2"} {
			dev, err := verbs.Open(verbs.Config{Device: os.Getenv("RDMCFS_TEST_VERBS"), GID: gid,
				PeerTimeout: time.Second, ReceiverTimeout: 2 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			d[i] = closeLater(t, dev)
		}
		return d[0], d[1]
	}
}

// pinnedKiB is VmPin of this process: pages that the kernel keeps for devices.
func pinnedKiB(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(b), "VmPin:")
	n, err := strconv.Atoi(strings.Fields(after)[0])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestVerbsPins: a file's pages are pinned while they are registered, kept registrations go before the file is cut or
// unmapped, and their pages with them.
func TestVerbsPins(t *testing.T) {
	if openVerbs == nil || os.Getenv("RDMCFS_TEST_VERBS") == "" {
		t.Skip("needs an RDMA device: run the test binary by test/vm/run.sh")
	}
	a, b := openVerbs(t)
	p := newPair(t, a, b, 0, small)
	const size = 4 << 20
	src := random(t, size, 11)
	for name, end := range map[string]func(*File) error{
		"truncate": func(f *File) error { return f.Shrink(bound(t), 4096) },
		"munmap":   func(f *File) error { return f.Unmap(bound(t)) },
	} {
		from, dst := mapFile(t, p.dom[0], memfd(t, src), size), Bytes(pages(t, size))
		before := pinnedKiB(t)
		if sendErr, err := move(t, p.end[0], p.end[1], Cached, from, dst); sendErr != nil || err != nil {
			t.Fatal(sendErr, err)
		}
		wantSame(t, dst, src)
		if err := p.dom[1].Invalidate(dst); err != nil {
			t.Fatal(err)
		}
		if kept := pinnedKiB(t) - before; kept < size>>10 {
			t.Errorf("%s: VmPin grew by %d KiB, want at least %d", name, kept, size>>10)
		}
		if err := end(from); err != nil {
			t.Fatal(err)
		}
		if left := pinnedKiB(t); left != before {
			t.Errorf("%s: VmPin is %d KiB, was %d", name, left, before)
		}
	}
}
