package rdmc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/mem"
	"github.com/rdmcfs/rdmcfs/rdma/tcp"
)

func TestMain(m *testing.M) {
	if address := os.Getenv(echoVariable); address != "" {
		if err := echo(address); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// fabrics are the providers that group tests run on: each makes n devices that reach each other.
var fabrics = map[string]func(t testing.TB, n int) []rdma.Device{
	"tcp": tcpDevices,
	"mem": func(t testing.TB, n int) []rdma.Device {
		devices, _ := memDevices(t, n, mem.Config{Seed: 1, DelayMax: 100 * time.Microsecond})
		return devices
	},
}

func memDevices(t testing.TB, n int, cfg mem.Config) ([]rdma.Device, *mem.Fabric) {
	t.Helper()
	f := mem.NewFabric(cfg)
	var all []rdma.Device
	for i := range n {
		d := f.Device(fmt.Sprint(i))
		t.Cleanup(func() { d.Close() })
		all = append(all, d)
	}
	return all, f
}

func tcpDevices(t testing.TB, n int) []rdma.Device {
	t.Helper()
	var all []rdma.Device
	for range n {
		d, err := tcp.New(tcp.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		if _, err := d.Listen("127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		all = append(all, d)
	}
	return all
}

// eachFabric runs a test on all providers.
func eachFabric(t *testing.T, run func(t *testing.T, devices func(n int) []rdma.Device)) {
	for name, make := range fabrics {
		t.Run(name, func(t *testing.T) {
			run(t, func(n int) []rdma.Device { return make(t, n) })
		})
	}
}

// cluster is a number of engines, each on a device of its own, and their ends of one group.
type cluster struct {
	t       testing.TB
	engines []*Engine
	groups  []*Group
}

func newCluster(t testing.TB, devices []rdma.Device) *cluster {
	t.Helper()
	c := &cluster{t: t}
	for _, d := range devices {
		e, err := NewEngine(EngineConfig{Device: d})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
		c.engines = append(c.engines, e)
	}
	return c
}

// starved is the SilenceTimeout of groups whose tests are not about silence: a busy machine leaves a thread without a
// processor for seconds.
const starved = 20 * time.Second

// group makes and connects a group over the engines with the given indexes.
func (c *cluster) group(cfg GroupConfig, engines ...int) []*Group {
	c.t.Helper()
	cfg.Members = nil
	orDefault(&cfg.SilenceTimeout, starved)
	for _, i := range engines {
		cfg.Members = append(cfg.Members, fmt.Sprint("node", i))
	}
	var groups []*Group
	for rank, i := range engines {
		cfg.Rank = rank
		g, err := c.engines[i].NewGroup(cfg)
		if err != nil {
			c.t.Fatal(err)
		}
		groups = append(groups, g)
	}
	connect(c.t, groups)
	return groups
}

func (c *cluster) all(cfg GroupConfig) []*Group {
	c.t.Helper()
	var engines []int
	for i := range c.engines {
		engines = append(engines, i)
	}
	c.groups = c.group(cfg, engines...)
	return c.groups
}

func connect(t testing.TB, groups []*Group) {
	t.Helper()
	remote := make([]map[int][]byte, len(groups))
	for rank := range groups {
		remote[rank] = make(map[int][]byte)
	}
	for rank, g := range groups {
		for peer, address := range g.Addresses() {
			remote[peer][rank] = address
		}
	}
	parallel(t, groups, func(g *Group) error { return g.Connect(testContext(t), remote[g.cfg.Rank]) })
}

func parallel(t testing.TB, groups []*Group, f func(g *Group) error) {
	t.Helper()
	var wg sync.WaitGroup
	for _, g := range groups {
		wg.Go(func() {
			if err := f(g); err != nil {
				t.Errorf("rank %d: %v", g.cfg.Rank, err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// memory is a message in memory: a Source, and a Sink that counts.
type memory struct {
	block int
	mu    sync.Mutex
	data  []byte
	wrote map[uint64]int
	fail  func(i uint64) error // called for each block; may block
}

func newMemory(size, block int) *memory {
	return &memory{block: block, data: make([]byte, size), wrote: make(map[uint64]int)}
}

// randomMemory is a message of random bytes.
func randomMemory(seed uint64, size, block int) *memory {
	m := newMemory(size, block)
	rng := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	rng.Read(m.data)
	return m
}

func (m *memory) at(i uint64) []byte {
	from := int(i) * m.block
	return m.data[from:min(from+m.block, len(m.data))]
}

func (m *memory) ReadBlock(i uint64, buf []byte) error {
	if m.fail != nil {
		if err := m.fail(i); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.at(i)) != len(buf) {
		return fmt.Errorf("block %d of %d bytes, want %d", i, len(buf), len(m.at(i)))
	}
	copy(buf, m.at(i))
	return nil
}

func (m *memory) WriteBlock(i uint64, buf []byte) error {
	if m.fail != nil {
		if err := m.fail(i); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.at(i)) != len(buf) {
		return fmt.Errorf("block %d of %d bytes, want %d", i, len(buf), len(m.at(i)))
	}
	copy(m.at(i), buf)
	m.wrote[i]++
	return nil
}

// multicast sends a message to all members of a group and returns the transfers by rank and the members' memories.
func multicast(t testing.TB, groups []*Group, src *memory) ([]*Transfer, []*memory) {
	t.Helper()
	root, err := groups[0].Send(Outgoing{Size: uint64(len(src.data)), Source: src})
	if err != nil {
		t.Fatal(err)
	}
	transfers, sinks := []*Transfer{root}, []*memory{src}
	for _, g := range groups[1:] {
		m := newMemory(len(src.data), src.block)
		r, err := g.Receive(root.Announcement(), Receiver{Sink: m})
		if err != nil {
			t.Fatal(err)
		}
		transfers, sinks = append(transfers, r), append(sinks, m)
	}
	return transfers, sinks
}

// verify waits for a message and compares the bytes.
func verify(t testing.TB, transfers []*Transfer, sinks []*memory) {
	t.Helper()
	for rank, tr := range transfers {
		if err := tr.Wait(testContext(t)); err != nil {
			t.Fatalf("rank %d: %v", rank, err)
		}
		if !bytes.Equal(sinks[rank].data, sinks[0].data) {
			t.Fatalf("rank %d has other bytes", rank)
		}
		for i, n := range sinks[rank].wrote {
			if n != 1 {
				t.Fatalf("rank %d: block %d was stored %d times", rank, i, n)
			}
		}
		if tr.Have().Count() != tr.Have().Blocks() {
			t.Fatalf("rank %d: have %d of %d", rank, tr.Have().Count(), tr.Have().Blocks())
		}
	}
}

// lacking is the set of blocks that some of the members, all of one message, lack.
func lacking(blocks uint64, haves []*Bitmap) Ranges {
	missing := NewBitmap(blocks)
	for _, have := range haves {
		for b := range blocks {
			if !have.Has(b) {
				missing.Set(b)
			}
		}
	}
	return missing.Present()
}

func closeAll(t testing.TB, groups []*Group) {
	t.Helper()
	parallel(t, groups, func(g *Group) error { return g.Close(testContext(t)) })
}

var errTest = errors.New("made by the test")
