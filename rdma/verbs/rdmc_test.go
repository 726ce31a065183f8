//go:build linux && (amd64 || arm64) && !nordma

package verbs

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
)

// image is a message in memory, as source and sink.
type image struct {
	mu      sync.Mutex
	data    []byte
	block   int
	reached func(i uint64) // called for each block that is read; may be nil
}

const (
	imageBytes = 32<<20 - 77
	imageBlock = 256 << 10
)

func (m *image) at(i uint64) []byte {
	from := int(i) * m.block
	return m.data[from:min(from+m.block, len(m.data))]
}

func (m *image) ReadBlock(i uint64, buf []byte) error {
	if m.reached != nil {
		m.reached(i)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	copy(buf, m.at(i))
	return nil
}

func (m *image) WriteBlock(i uint64, buf []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	copy(m.at(i), buf)
	return nil
}

// member is a node of the test: a device of its own, and an engine on it.
type member struct {
	dev    *device
	engine *rdmc.Engine
	image  *image
}

func newMembers(t *testing.T, n int) []*member {
	t.Helper()
	var all []*member
	for i := range n {
		cfg := quick
		cfg.GID = []string{"10.77.0.1", "10.77.0.2"}[i%2]
		m := &member{dev: testDevice(t, cfg), image: &image{data: make([]byte, imageBytes), block: imageBlock}}
		var err error
		if m.engine, err = rdmc.NewEngine(rdmc.EngineConfig{Device: m.dev}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := m.engine.Close(); err != nil {
				t.Error(err)
			}
		})
		all = append(all, m)
	}
	rand.NewChaCha8([32]byte{4}).Read(all[0].image.data)
	return all
}

// group joins the members, the first is the root.
func group(t *testing.T, members []*member, epoch uint32) []*rdmc.Group {
	t.Helper()
	cfg := rdmc.GroupConfig{Number: 1, Epoch: epoch, BlockSize: imageBlock, SilenceTimeout: 10 * time.Second}
	for i := range members {
		cfg.Members = append(cfg.Members, fmt.Sprint("member", i))
	}
	groups := make([]*rdmc.Group, len(members))
	addresses := make([]map[int][]byte, len(members))
	for rank, m := range members {
		cfg.Rank = rank
		var err error
		if groups[rank], err = m.engine.NewGroup(cfg); err != nil {
			t.Fatal(err)
		}
		addresses[rank] = make(map[int][]byte)
	}
	for rank, g := range groups {
		for peer, address := range g.Addresses() {
			addresses[peer][rank] = address
		}
	}
	each(t, groups, func(rank int, g *rdmc.Group) error { return g.Connect(t.Context(), addresses[rank]) })
	return groups
}

func each(t *testing.T, groups []*rdmc.Group, do func(rank int, g *rdmc.Group) error) {
	t.Helper()
	var wg sync.WaitGroup
	for rank, g := range groups {
		wg.Go(func() {
			if err := do(rank, g); err != nil {
				t.Errorf("rank %d: %v", rank, err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// send begins a multicast of what any member misses.
func send(t *testing.T, groups []*rdmc.Group, members []*member, have []*rdmc.Bitmap) []*rdmc.Transfer {
	t.Helper()
	out := rdmc.Outgoing{Size: imageBytes, Source: members[0].image}
	for _, h := range have[1:] {
		if h == nil {
			continue
		}
		missing := rdmc.BitmapOf(h.Blocks(), out.Blocks)
		for block := range h.Blocks() {
			if !h.Has(block) {
				missing.Set(block)
			}
		}
		out.Partial, out.Blocks = true, missing.Present()
	}
	root, err := groups[0].Send(out)
	if err != nil {
		t.Fatal(err)
	}
	transfers := []*rdmc.Transfer{root}
	for rank, g := range groups[1:] {
		r, err := g.Receive(root.Announcement(), rdmc.Receiver{Sink: members[rank+1].image, Have: have[rank+1]})
		if err != nil {
			t.Fatal(err)
		}
		transfers = append(transfers, r)
	}
	return transfers
}

func finish(t *testing.T, groups []*rdmc.Group, members []*member, transfers []*rdmc.Transfer) {
	t.Helper()
	each(t, groups, func(rank int, _ *rdmc.Group) error { return transfers[rank].Wait(t.Context()) })
	for rank, m := range members {
		if !bytes.Equal(m.image.data, members[0].image.data) {
			t.Errorf("member %d has other bytes", rank)
		}
	}
	each(t, groups, func(_ int, g *rdmc.Group) error { return g.Close(t.Context()) })
}

func TestMulticast(t *testing.T) {
	deviceName(t)
	members := newMembers(t, 4)
	groups := group(t, members, 1)
	began := time.Now()
	finish(t, groups, members, send(t, groups, members, make([]*rdmc.Bitmap, 4)))
	t.Logf("%d bytes to 3 members in %v", imageBytes, time.Since(began))
}

// TestMulticastMemberDies: a member dies in mid-transfer without a word. The others hear of it, form a group without it
// and move what is missing.
func TestMulticastMemberDies(t *testing.T) {
	deviceName(t)
	for victim := 1; victim < 4; victim++ {
		t.Run(fmt.Sprint("member", victim), func(t *testing.T) {
			members := newMembers(t, 4)
			groups := group(t, members, 1)
			struck := make(chan struct{})
			var once sync.Once
			members[0].image.reached = func(i uint64) {
				if i >= imageBytes/imageBlock/3 {
					once.Do(func() { close(struck) })
				}
			}
			transfers := send(t, groups, members, make([]*rdmc.Bitmap, 4))
			<-struck
			members[victim].dev.bell.muted.Store(true) // its pairs vanish as those of a killed process
			members[victim].dev.failAll()
			var rest []*member
			var have []*rdmc.Bitmap
			for rank, tr := range transfers {
				if rank == victim {
					continue
				}
				if err := tr.Wait(t.Context()); err == nil {
					t.Errorf("rank %d: the transfer ended well without member %d", rank, victim)
				} else if failure := (*rdmc.GroupError)(nil); !errors.As(err, &failure) ||
					!slices.Equal(failure.Suspects, []int{victim}) {
					t.Errorf("rank %d: %v, want suspect %d", rank, err, victim)
				}
				rest, have = append(rest, members[rank]), append(have, tr.Have())
			}
			for _, g := range groups {
				g.Abort()
			}
			again := group(t, rest, 2)
			finish(t, again, rest, send(t, again, rest, have))
		})
	}
}
