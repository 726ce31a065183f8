package rendezvous

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

const testBlock = 4 << 10

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// takes is a group whose members take messages into memory.
func takes() rdmc.GroupConfig {
	return rdmc.GroupConfig{BlockSize: testBlock, Incoming: func(size uint64) (rdmc.Sink, error) {
		return rdmc.Buffer{BlockSize: testBlock, Data: make([]byte, size)}, nil
	}}
}

// meet has n members meet in this process.
func meet(t *testing.T, n int, adapt func(*Config)) ([]*Meeting, []error) {
	t.Helper()
	listener, ctx := listen(t), testContext(t)
	meetings, errs := make([]*Meeting, n), make([]error, n)
	var all sync.WaitGroup
	for rank := range n {
		cfg := Config{Rank: rank, Room: listener.Addr().String(), Members: n, Group: takes()}
		if rank > 0 { // the others get them from the root
			cfg.Members, cfg.Group.BlockSize = 0, 0
		} else {
			cfg.Listener = listener
		}
		adapt(&cfg)
		all.Go(func() { meetings[rank], errs[rank] = Meet(ctx, cfg) })
	}
	all.Wait()
	t.Cleanup(func() {
		for _, m := range meetings {
			if m != nil {
				if err := m.Close(); err != nil {
					t.Error(err)
				}
			}
		}
	})
	return meetings, errs
}

func randomBytes(seed byte, size int) []byte {
	b := make([]byte, size)
	rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

// TestFileReachesAll: four members meet, and one sends a file, then a message in memory.
func TestFileReachesAll(t *testing.T) {
	const n = 4
	name := func(rank int) string { return filepath.Join(t.TempDir(), fmt.Sprint(rank)) }
	files := make([]*os.File, n)
	for rank := range files {
		f, err := os.Create(name(rank))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files[rank] = f
	}
	want := randomBytes(3, 50*testBlock+7)
	if _, err := files[0].Write(want); err != nil {
		t.Fatal(err)
	}
	meetings, errs := meet(t, n, func(cfg *Config) {
		cfg.Group.Incoming = func(size uint64) (rdmc.Sink, error) { return NewBlocks(files[cfg.Rank], testBlock), nil }
		if cfg.Rank == 0 {
			cfg.Group.Algorithm, cfg.Group.Number = schedule.Chain, 17
		}
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	transfer, err := meetings[0].SendFile(files[0])
	if err == nil {
		err = transfer.Wait(testContext(t))
	}
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for rank, m := range meetings {
		all.Go(func() {
			if err := m.Group.Close(testContext(t)); err != nil || m.BlockSize != testBlock {
				t.Errorf("rank %d: %v, blocks of %d", rank, err, m.BlockSize)
			}
		})
	}
	all.Wait()
	for rank, f := range files {
		if got, err := os.ReadFile(f.Name()); err != nil || !bytes.Equal(got, want) {
			t.Errorf("rank %d has %d bytes, %v", rank, len(got), err)
		}
	}
}

// TestFailureIsToldToAll: a member leaves in mid-message. All others hear that the group has failed, and of whom.
func TestFailureIsToldToAll(t *testing.T) {
	const n = 4
	begun := make(chan struct{})
	var once sync.Once
	meetings, errs := meet(t, n, func(cfg *Config) {
		cfg.Group.Incoming = func(size uint64) (rdmc.Sink, error) {
			once.Do(func() { close(begun) })
			return rdmc.Buffer{BlockSize: testBlock, Data: make([]byte, size)}, nil
		}
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	gate := make(chan struct{})
	transfer, err := meetings[0].Group.Send(rdmc.Outgoing{Size: 64 * testBlock, Source: gated{gate}})
	if err != nil {
		t.Fatal(err)
	}
	<-begun
	meetings[2].Group.Abort()
	close(gate)
	var failure *rdmc.GroupError
	if err := transfer.Wait(testContext(t)); !errors.As(err, &failure) || len(failure.Suspects) != 1 ||
		failure.Suspects[0] != 2 {
		t.Errorf("the root: %v", err)
	}
	for _, rank := range []int{1, 3} {
		if err := meetings[rank].Group.Close(testContext(t)); !errors.As(err, &failure) {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// gated gives its first block at once and the others when the gate is open.
type gated struct{ gate chan struct{} }

func (g gated) ReadBlock(i uint64, buf []byte) error {
	if i > 0 {
		<-g.gate
	}
	return nil
}

// TestMemberLeavesTheMeeting: a member comes and vanishes before the addresses are exchanged. All others are notified.
func TestMemberLeavesTheMeeting(t *testing.T) {
	listener := listen(t)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			return
		}
		defer conn.Close()
		if _, err := exchange(conn, frame{kind: kindHello, rank: 2}, kindWelcome); err == nil {
			expect(conn, kindAllHere)
		}
	}()
	ctx, member := testContext(t), make(chan error, 1)
	go func() {
		_, err := Meet(ctx, Config{Rank: 1, Room: listener.Addr().String(), Group: takes()})
		member <- err
	}()
	if _, err := Meet(ctx, Config{Members: 3, Listener: listener}); err == nil ||
		!strings.Contains(err.Error(), "rank 2") {
		t.Errorf("the root: %v", err)
	}
	if err := <-member; !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "rank 2") {
		t.Errorf("a member: %v", err)
	}
	<-gone
}

func TestMeetingsAreChecked(t *testing.T) {
	for _, cfg := range []Config{
		{Rank: -1, Members: 3},
		{Members: 1},
		{Members: 3, Group: rdmc.GroupConfig{BlockSize: -4}},
		{Members: 3, Listen: "0.0.0.0:0"},
		{Members: 3, Listen: "[::]:7401"},
		{Rank: 1, Listen: ":7401", Group: takes()},
		{Rank: 1},
	} {
		if _, err := Meet(t.Context(), cfg); !errors.Is(err, rdmc.ErrInvalid) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

// TestTheRoomIsGuarded sends rubbish, and a rank that is too large, before the others come, and then a member too many.
func TestTheRoomIsGuarded(t *testing.T) {
	meetings, errs := meet(t, 3, func(*Config) {})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	room := meetings[0].door.listener.Addr().String()
	if _, err := Meet(testContext(t), Config{Rank: 1, Room: room, Group: takes()}); !errors.Is(err, ErrRefused) ||
		!strings.Contains(err.Error(), "has begun") {
		t.Errorf("a late member: %v", err)
	}

	listener := listen(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	root := make(chan error, 1)
	go func() {
		_, err := Meet(ctx, Config{Members: 3, Listener: listener})
		root <- err
	}()
	for _, rubbish := range []string{"GET / HTTP/1.0\r\n\r\n", "\x0d\x00\x00\x00\x01............", "\xff\xff\xff\x7f"} {
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		conn.Write([]byte(rubbish))
		conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		if f, err := receive(conn, maxFrame); err != nil || f.kind != kindRefused {
			t.Errorf("%q: %+v, %v", rubbish, f, err)
		}
		conn.Close()
	}
	if _, err := Meet(ctx, Config{Rank: 3, Room: listener.Addr().String(), Group: takes()}); !errors.Is(err, ErrRefused) ||
		!strings.Contains(err.Error(), "give 1 to 2") {
		t.Errorf("rank 3 of 3: %v", err)
	}
	member := make(chan error, 1)
	go func() {
		_, err := Meet(ctx, Config{Rank: 1, Room: listener.Addr().String(), Group: takes()})
		member <- err
	}()
	cancel()
	if err := <-root; err == nil || !strings.Contains(err.Error(), "did not come") {
		t.Errorf("the root: %v", err)
	}
	if err := <-member; err == nil {
		t.Error("a member met nobody, and did not say so")
	}
	if _, err := Meet(ctx, Config{Rank: 1, Room: listener.Addr().String(), Group: takes()}); err == nil ||
		!strings.Contains(err.Error(), "does not answer") {
		t.Errorf("without a root: %v", err)
	}
}

// endingFile gives io.EOF with the last bytes.
type endingFile struct{ *bytes.Reader }

func (f endingFile) ReadAt(b []byte, off int64) (int, error) {
	n, err := f.Reader.ReadAt(b, off)
	if err == nil && off+int64(n) == f.Size() {
		err = io.EOF
	}
	return n, err
}

func (endingFile) WriteAt([]byte, int64) (int, error) { return 0, nil }

func TestBlocksToTheEnd(t *testing.T) {
	want := randomBytes(17, 10)
	blocks, got := NewBlocks(endingFile{bytes.NewReader(want)}, 8), make([]byte, 2)
	if err := blocks.ReadBlock(1, got); err != nil || !bytes.Equal(got, want[8:]) {
		t.Errorf("%x, %v", got, err)
	}
	if err := blocks.ReadBlock(1, make([]byte, 3)); err != io.EOF {
		t.Errorf("behind the end: %v", err)
	}
}
