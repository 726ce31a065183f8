package replicate

import (
	"bytes"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/mem"
	"github.com/rdmcfs/rdmcfs/rdma/tcp"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
)

// onFabric makes a cluster whose groups are groups of rdmc over a provider.
func onFabric(t testing.TB, fabric string, n int) (*cluster, []*rdmc.Engine) {
	c, engines, _ := onFabricWithin(t, fabric, n, 0)
	return c, engines
}

// onFabricWithin is onFabric with a budget of registered memory at each node.
func onFabricWithin(t testing.TB, fabric string, n int, budget int64) (*cluster, []*rdmc.Engine, []*allocating) {
	t.Helper()
	c := newCluster(t, n, 1)
	engines, devices := c.useFabric(fabric, budget)
	return c, engines, devices
}

// useFabric gives all nodes groups of rdmc over a provider.
func (c *cluster) useFabric(fabric string, budget int64) ([]*rdmc.Engine, []*allocating) {
	t := c.t
	t.Helper()
	var engines []*rdmc.Engine
	var devices []*allocating
	f := mem.NewFabric(mem.Config{Seed: 1})
	for _, node := range c.all() {
		var d rdma.Device
		if fabric == "mem" {
			d = f.Device(fmt.Sprint(node.id))
		} else {
			td, err := tcp.New(tcp.Config{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := td.Listen("127.0.0.1:0"); err != nil {
				t.Fatal(err)
			}
			d = td
		}
		counted := &allocating{Device: d, memory: rdmc.NewMemory(budget)}
		devices = append(devices, counted)
		engine, err := rdmc.NewEngine(rdmc.EngineConfig{Device: counted, Memory: counted.memory})
		if err != nil {
			t.Fatal(err)
		}
		node.stop()
		node.groups = Multicast(engine)
		node.tuning.Silent, node.tuning.Stalled, node.tuning.Stuck = 0, 0, 0 // as in real use: the machine may be busy
		node.start()
		t.Cleanup(func() {
			node.stop()
			if err := engine.Close(); err != nil {
				t.Error(err)
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
		engines = append(engines, engine)
	}
	c.settled()
	return engines, devices
}

// allocating is a device that counts the bytes of all regions that it ever made.
type allocating struct {
	rdma.Device
	memory *rdmc.Memory
	bytes  atomic.Int64
}

func (d *allocating) AllocRegion(size int, access rdma.Access) (rdma.Region, error) {
	d.bytes.Add(int64(size))
	return d.Device.AllocRegion(size, access)
}

// TestFileLargerThanTheRegisteredBudget: a file goes to all through a window of registered memory, which moves over it.
func TestFileLargerThanTheRegisteredBudget(t *testing.T) {
	eachFabric(t, func(t *testing.T, fabric string) {
		const budget = 2 << 20
		c, _, devices := onFabricWithin(t, fabric, 4, budget)
		const size = 37<<20 + 123
		ino := c.create(1, "large")
		b := randomBytes(7, size)
		out, err := c.node(1).publish(ino, meta.ContentID{}, b)
		if err != nil {
			t.Fatal(err)
		}
		if len(out.Result.Owed) > 0 {
			t.Errorf("owed %v", out.Result.Owed)
		}
		for _, n := range c.all() {
			n.wantBytes(out.Content, b)
		}
		for i, d := range devices {
			if n := d.bytes.Load(); n == 0 || n > budget {
				t.Errorf("node %d: regions of %d bytes were made, budget %d", i+1, n, budget)
			}
			if peak := d.memory.Peak(); peak < d.bytes.Load() || peak > budget {
				t.Errorf("node %d: reserved %d bytes for regions of %d", i+1, peak, d.bytes.Load())
			}
		}
	})
}

// eachFabric runs a test over memory, in virtual time, and over TCP.
func eachFabric(t *testing.T, run func(t *testing.T, fabric string)) {
	t.Run("mem", func(t *testing.T) { synctest.Test(t, func(t *testing.T) { run(t, "mem") }) })
	t.Run("tcp", func(t *testing.T) { run(t, "tcp") })
}

func TestLargeFilesOverRDMC(t *testing.T) {
	eachFabric(t, func(t *testing.T, fabric string) {
		c, _ := onFabric(t, fabric, 4)
		for _, size := range []int{1<<20 + 1, 3 << 20, 37<<20 + 123} {
			ino := c.create(1, fmt.Sprint(size))
			b := randomBytes(uint64(size), size)
			began := time.Now()
			out, err := c.node(1).publish(ino, meta.ContentID{}, b)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d bytes to 3 others: %v, owed %v", size, time.Since(began), out.Result.Owed)
			if len(out.Result.Owed) > 0 {
				t.Errorf("owed %v", out.Result.Owed)
			}
			for _, n := range c.all() {
				n.wantBytes(out.Content, b)
			}
		}
	})
}

func TestManyFilesShareGroupsOverRDMC(t *testing.T) {
	c, _ := onFabric(t, "tcp", 3)
	b := randomBytes(1, 2<<20)
	errs := make(chan error)
	const files = 12
	for i := range files {
		node := c.node(meta.NodeID(1 + i%3))
		ino := c.create(node.id, fmt.Sprint(i))
		go func() {
			out, err := node.publish(ino, meta.ContentID{}, b)
			if err == nil && len(out.Result.Owed) > 0 {
				err = fmt.Errorf("owed %v", out.Result.Owed)
			}
			errs <- err
		}()
	}
	for range files {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

func TestDeltaOverRDMC(t *testing.T) {
	c, _ := onFabric(t, "tcp", 3)
	ino := c.create(1, "f")
	b := randomBytes(5, 8<<20)
	base, err := c.node(1).publish(ino, meta.ContentID{}, b)
	if err != nil {
		t.Fatal(err)
	}
	copy(b[5<<20:], "changed")
	out, err := c.node(1).rep.Publish(t.Context(), Push{
		Ino: ino, Base: base.Content, Size: int64(len(b)), Source: bytes.NewReader(b),
		Data: []Extent{{0, int64(len(b))}}, Dirty: []Extent{{5 << 20, 7}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range c.all() {
		n.wantBytes(out.Content, b)
	}
}

func TestEngineDiesInMidTransfer(t *testing.T) {
	eachFabric(t, func(t *testing.T, fabric string) {
		c, engines := onFabric(t, fabric, 4)
		ino := c.create(1, "f")
		b := randomBytes(1, 48<<20)
		src := &interrupted{ReaderAt: bytes.NewReader(b), at: 12, do: func() {
			c.node(3).cut()
			_ = engines[2].Close()
		}}
		began := time.Now()
		out, err := c.node(1).rep.Publish(t.Context(), Push{Ino: ino, Size: int64(len(b)), Source: src,
			Data: []Extent{{0, int64(len(b))}}})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("took %v, owed %v, epochs %d", time.Since(began), out.Result.Owed, c.node(1).rep.Counters().Epochs)
		if len(out.Result.Owed) != 1 || out.Result.Owed[0] != 3 {
			t.Fatalf("owed %v, want node 3", out.Result.Owed)
		}
		c.node(2).wantBytes(out.Content, b)
		c.node(4).wantBytes(out.Content, b)
	})
}

// interrupted is a source that has something happen before one of its reads goes on.
type interrupted struct {
	io.ReaderAt
	reads atomic.Int64
	at    int64
	do    func()
}

func (s *interrupted) ReadAt(p []byte, off int64) (int, error) {
	if s.reads.Add(1) == s.at {
		s.do()
	}
	return s.ReaderAt.ReadAt(p, off)
}
