package rendezvous_test

import (
	"bytes"
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rdmcfs/rdmcfs/rdma/tcp"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc/rendezvous"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type bytesMessage struct {
	data []byte
	mu   sync.Mutex
}

const block = 1 << 10

func (m *bytesMessage) ReadBlock(i uint64, buf []byte) error {
	copy(buf, m.data[i*block:])
	return nil
}

func (m *bytesMessage) WriteBlock(i uint64, buf []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	copy(m.data[i*block:], buf)
	return nil
}

func TestRoomCarriesAGroup(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	const n = 4
	want := bytes.Repeat([]byte("block after block "), 1000)
	var wg sync.WaitGroup
	for rank := range n {
		wg.Go(func() {
			if err := member(ctx, t, listener, rank, n, want); err != nil {
				t.Errorf("rank %d: %v", rank, err)
			}
		})
	}
	wg.Wait()
}

func member(ctx context.Context, t *testing.T, listener net.Listener, rank, n int, want []byte) error {
	device, err := tcp.New(tcp.Config{})
	if err != nil {
		return err
	}
	defer device.Close()
	if _, err := device.Listen("127.0.0.1:0"); err != nil {
		return err
	}
	engine, err := rdmc.NewEngine(rdmc.EngineConfig{Device: device})
	if err != nil {
		return err
	}
	defer engine.Close()
	group, err := engine.NewGroup(rdmc.GroupConfig{Members: make([]string, n), Rank: rank, BlockSize: block})
	if err != nil {
		return err
	}
	var room *rendezvous.Room
	if rank == 0 {
		room, err = rendezvous.Host(ctx, listener, n)
	} else {
		room, err = rendezvous.Join(ctx, listener.Addr().String(), rank)
	}
	if err != nil {
		return err
	}
	defer room.Close()
	if err := room.Connect(ctx, group); err != nil {
		return err
	}
	if rank == 0 {
		transfer, err := group.Send(rdmc.Outgoing{Size: uint64(len(want)), Source: &bytesMessage{data: want}})
		if err != nil {
			return err
		}
		if err := room.Announce(ctx, transfer.Announcement()); err != nil {
			return err
		}
		return group.Close(ctx)
	}
	a, err := room.Next(ctx)
	if err != nil {
		return err
	}
	got := &bytesMessage{data: make([]byte, a.Size)}
	transfer, err := group.Receive(a, rdmc.Receiver{Sink: got})
	if err != nil {
		return err
	}
	if err := transfer.Wait(ctx); err != nil {
		return err
	}
	if !bytes.Equal(got.data, want) {
		t.Errorf("rank %d got other bytes", rank)
	}
	return group.Close(ctx)
}

func TestHostGivesUp(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := rendezvous.Host(ctx, listener, 2); err == nil {
		t.Fatal("a room without members was full")
	}
}
