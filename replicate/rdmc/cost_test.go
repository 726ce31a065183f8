package rdmc

import (
	"runtime"
	"testing"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// discard is a message without memory of its own.
type discard struct{}

func (discard) ReadBlock(uint64, []byte) error  { return nil }
func (discard) WriteBlock(uint64, []byte) error { return nil }

// runOne sends one message of so many blocks to all members and waits for its end.
func runOne(t testing.TB, groups []*Group, blocks, blockSize int) {
	t.Helper()
	root, err := groups[0].Send(Outgoing{Size: uint64(blocks) * uint64(blockSize), Source: discard{}})
	if err != nil {
		t.Fatal(err)
	}
	transfers := []*Transfer{root}
	for _, g := range groups[1:] {
		r, err := g.Receive(root.Announcement(), Receiver{Sink: discard{}})
		if err != nil {
			t.Fatal(err)
		}
		transfers = append(transfers, r)
	}
	for _, tr := range transfers {
		if err := tr.Wait(testContext(t)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDSN_4_6_NoAllocationPerBlock counts what a long message allocates beyond a short one.
func TestDSN_4_6_NoAllocationPerBlock(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		allocations(t, devices(4))
	})
}

func allocations(t *testing.T, devices []rdma.Device) {
	c := newCluster(t, devices)
	groups := c.all(GroupConfig{Number: 1, BlockSize: 4096})
	runOne(t, groups, 200, 4096) // fill pools and scratch
	mallocs := func(blocks int) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		runOne(t, groups, blocks, 4096)
		runtime.ReadMemStats(&after)
		return after.Mallocs - before.Mallocs
	}
	const short, long = 100, 4100
	a, b := mallocs(short), mallocs(long)
	perBlock := (float64(b) - float64(a)) / ((long - short) * 3)
	t.Logf("%d allocations for %d blocks, %d for %d: %.3f per block and receiver", a, short, b, long, perBlock)
	if perBlock > 0.1 {
		t.Errorf("%.3f allocations per block and receiver", perBlock)
	}
}

func BenchmarkMulticast(b *testing.B) {
	for name, devices := range fabrics {
		b.Run(name, func(b *testing.B) {
			const blockSize, blocks = 256 << 10, 256
			c := newCluster(b, devices(b, 4))
			groups := c.all(GroupConfig{Number: 1, BlockSize: blockSize})
			b.SetBytes(blockSize * blocks)
			for b.Loop() {
				runOne(b, groups, blocks, blockSize)
			}
		})
	}
}
