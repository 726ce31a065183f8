package mixed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
)

// image is a message in memory, as source and sink. A block is read and written by one at a time.
type image []byte

const (
	imageBytes = 4<<20 - 77
	imageBlock = 64 << 10
)

func (m image) at(i uint64) []byte {
	from := int(i) * imageBlock
	return m[from:min(from+imageBlock, len(m))]
}

func (m image) ReadBlock(i uint64, buf []byte) error {
	copy(buf, m.at(i))
	return nil
}

func (m image) WriteBlock(i uint64, buf []byte) error {
	copy(m.at(i), buf)
	return nil
}

// newEngines starts an engine on each device.
func newEngines(t *testing.T, devices []*Device) []*rdmc.Engine {
	t.Helper()
	var engines []*rdmc.Engine
	for _, d := range devices {
		e, err := rdmc.NewEngine(rdmc.EngineConfig{Device: d})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
		engines = append(engines, e)
	}
	return engines
}

// formGroup makes a group of all engines and connects it, within a time.
func formGroup(t *testing.T, engines []*rdmc.Engine, epoch uint32, limit time.Duration) ([]*rdmc.Group, error) {
	t.Helper()
	cfg := rdmc.GroupConfig{Number: 1, Epoch: epoch, BlockSize: imageBlock, SilenceTimeout: 10 * time.Second}
	for i := range engines {
		cfg.Members = append(cfg.Members, fmt.Sprint("member", i))
	}
	groups, addresses := make([]*rdmc.Group, len(engines)), make([]map[int][]byte, len(engines))
	for rank, e := range engines {
		cfg.Rank = rank
		var err error
		if groups[rank], err = e.NewGroup(cfg); err != nil {
			t.Fatal(err)
		}
		addresses[rank] = make(map[int][]byte)
	}
	for rank, g := range groups {
		for peer, address := range g.Addresses() {
			addresses[peer][rank] = address
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return groups, each(groups, func(rank int, g *rdmc.Group) error { return g.Connect(ctx, addresses[rank]) })
}

func each(groups []*rdmc.Group, do func(rank int, g *rdmc.Group) error) error {
	errs := make([]error, len(groups))
	var wg sync.WaitGroup
	for rank, g := range groups {
		wg.Go(func() { errs[rank] = do(rank, g) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// multicast sends a message through a connected group, checks it at all members, and closes the group.
func multicast(t *testing.T, groups []*rdmc.Group) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 6*patience)
	defer cancel()
	sent := make(image, imageBytes)
	rand.NewChaCha8([32]byte{4}).Read(sent)
	root, err := groups[0].Send(rdmc.Outgoing{Size: imageBytes, Source: sent})
	if err != nil {
		t.Fatal(err)
	}
	images, transfers := []image{sent}, []*rdmc.Transfer{root}
	for _, g := range groups[1:] {
		m := make(image, imageBytes)
		r, err := g.Receive(root.Announcement(), rdmc.Receiver{Sink: m})
		if err != nil {
			t.Fatal(err)
		}
		images, transfers = append(images, m), append(transfers, r)
	}
	if err := each(groups, func(rank int, _ *rdmc.Group) error { return transfers[rank].Wait(ctx) }); err != nil {
		t.Fatal(err)
	}
	for rank, m := range images {
		if !bytes.Equal(m, sent) {
			t.Errorf("member %d has other bytes", rank)
		}
	}
	if err := each(groups, func(_ int, g *rdmc.Group) error { return g.Close(ctx) }); err != nil {
		t.Error(err)
	}
}

// pairsOf is how many pairs each of a device's members carries.
func pairsOf(d *Device) []int {
	var n []int
	for _, m := range d.Members() {
		n = append(n, m.Pairs)
	}
	return n
}

// carriesBoth checks that the pairs among the first devices are carried by the preferred provider, and all others by
// tcp.
func carriesBoth(t *testing.T, devices []*Device) {
	t.Helper()
	var preferred, tcp int
	for _, d := range devices {
		n := pairsOf(d)
		tcp += n[len(n)-1]
		if len(n) > 1 {
			preferred += n[0]
		}
	}
	if preferred == 0 || tcp == 0 {
		t.Errorf("%d pairs by the preferred provider, %d by tcp: want both", preferred, tcp)
	}
}

// TestMulticastInMixedCluster: two members have a fast provider, two have tcp alone; a message reaches all of them.
func TestMulticastInMixedCluster(t *testing.T) {
	a, b, _ := memTcp(t)
	all := []*Device{a, b, newMixed(t, devices(tcpDevice(t))), newMixed(t, devices(tcpDevice(t)))}
	groups, err := formGroup(t, newEngines(t, all), 1, patience)
	if err != nil {
		t.Fatal(err)
	}
	carriesBoth(t, all)
	multicast(t, groups)
}

// TestMulticastAfterFailedProvider: a provider that all have does not connect one member; the group fails and says why,
// and the next of the same members is carried by both providers.
func TestMulticastAfterFailedProvider(t *testing.T) {
	a, b, _, memB, f := faultyDevices(t)
	memB.broken.Store(true)
	all := []*Device{a, b, newMixed(t, devices(f.Device("c"), tcpDevice(t)))}
	engines := newEngines(t, all)
	for epoch := uint32(1); ; epoch++ {
		groups, err := formGroup(t, engines, epoch, 4*time.Second) // spent where not all hear of the failure
		if err == nil {
			carriesBoth(t, all)
			multicast(t, groups)
			return
		}
		if !errors.Is(err, errNoRoute) || !strings.Contains(err.Error(), "use tcp") || epoch > 3 {
			t.Fatalf("group %d: %v", epoch, err)
		}
		for _, g := range groups {
			g.Abort()
		}
	}
}
