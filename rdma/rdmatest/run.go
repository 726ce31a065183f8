package rdmatest

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// Pair is what a provider gives to one test.
type Pair struct {
	// Devices are two or more that can reach each other. The suite closes them.
	Devices []rdma.Device
	// Kill ends a device as the death of its process would. Default: its Close.
	Kill func(device int)
	// Patience bounds every wait of the suite, and so the provider's times for a missing receive and
	// for a dead peer. Default 10 s.
	Patience time.Duration
	// Allocates says that the provider allocates per request; the allocation tests are left out.
	Allocates bool
}

// Maker makes the devices of one test. Clean-up beyond closing them goes by t.Cleanup.
type Maker func(t testing.TB) Pair

// check is one test of the suite.
type check struct {
	name string
	run  func(t *testing.T, p *Pair)
}

// Run runs the whole suite, one subtest per promise.
func Run(t *testing.T, maker Maker) {
	groups := [][]check{connectChecks, messageChecks, oneSidedChecks, refusalChecks, flowChecks, endChecks, costChecks}
	for _, g := range groups {
		for _, c := range g {
			t.Run(c.name, func(t *testing.T) { runOne(t, maker, c) })
		}
	}
}

func runOne(t *testing.T, maker Maker, c check) {
	before := goleak.IgnoreCurrent()
	p := open(t, maker)
	defer func() { // also after t.Skip and t.Fatal
		for _, d := range p.Devices {
			if err := d.Close(); err != nil {
				t.Errorf("close device: %v", err)
			}
		}
		if err := goleak.Find(before); err != nil && !t.Failed() {
			t.Errorf("goroutines left: %v", err)
		}
	}()
	c.run(t, p)
}

func open(t testing.TB, maker Maker) *Pair {
	t.Helper()
	p := maker(t)
	if len(p.Devices) < 2 {
		t.Fatal("rdmatest: need two devices")
	}
	if p.Patience == 0 {
		p.Patience = 10 * time.Second
	}
	if p.Kill == nil {
		p.Kill = func(i int) { _ = p.Devices[i].Close() }
	}
	return &p
}
