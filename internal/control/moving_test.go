package control

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// slowly gives the other end of a connection whose bytes are read at 4 KiB a second, up to a number of them.
func slowly(t *testing.T, bytes int) (conn net.Conn, read chan int) {
	near, far := net.Pipe()
	t.Cleanup(func() { near.Close(); far.Close() })
	read = make(chan int, 1)
	go func() {
		got := 0
		for got < bytes {
			n, err := io.ReadFull(far, make([]byte, min(4<<10, bytes-got)))
			if got += n; err != nil {
				break
			}
			<-time.After(time.Second)
		}
		read <- got
	}()
	return near, read
}

// TestSlowLinkEndsNoFrame: a frame of 1 MiB takes 256 s, much longer than a write or the rest of a frame may stand
// still.
func TestSlowLinkEndsNoFrame(t *testing.T) {
	const size = 1 << 20
	t.Run("written", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			near, read := slowly(t, headerBytes+size)
			done := make(chan struct{})
			out := newOutbox(near, writeTimeout, done)
			ended := make(chan error, 1)
			go func() { ended <- out.run() }()
			if err := out.put(t.Context(), header{kind: frameCall, id: 1}, make([]byte, size)); err != nil {
				t.Fatal(err)
			}
			if got := <-read; got != headerBytes+size {
				t.Errorf("%d bytes came over", got)
			}
			close(done)
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	})
	t.Run("read", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			near, far := net.Pipe()
			defer near.Close()
			var writer sync.WaitGroup
			defer writer.Wait()
			writer.Go(func() {
				defer far.Close()
				frame := append(appendHeader(nil, header{kind: frameCall, id: 1, length: size}), make([]byte, size)...)
				for ; len(frame) > 0; frame = frame[min(4<<10, len(frame)):] {
					far.Write(frame[:min(4<<10, len(frame))])
					<-time.After(time.Second)
				}
			})
			in := newInbox(near, frameTimeout)
			h, err := in.header()
			if err != nil {
				t.Fatal(err)
			}
			if b, err := in.payload(h); err != nil || len(b) != size {
				t.Errorf("%d bytes, %v", len(b), err)
			}
		})
	})
}

// TestCallThatMovesSaysSo: while bytes of the request go, and not any more when they are all across and no answer
// comes.
func TestCallThatMovesSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 256 << 10
		near, _ := slowly(t, headerBytes+size)
		c := newClient(near)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		began := time.Now()
		var last time.Time
		var left []int64
		_, err := c.callMoving(ctx, kindTest, make([]byte, size), func(n int64) { last, left = time.Now(), append(left, n) })
		if err == nil {
			t.Fatal("a call without an answer succeeded")
		}
		if took := last.Sub(began); took < 50*time.Second || took > 80*time.Second {
			t.Errorf("the last of it moved after %v, want about 64 s", took)
		}
		for i := range left {
			if i > 0 && left[i] >= left[i-1] {
				t.Fatalf("bytes left do not fall: %v", left)
			}
		}
		if len(left) < 5 || left[len(left)-1] != 0 {
			t.Errorf("bytes left: %v", left)
		}
		c.close()
	})
}

// TestLongCallsDoNotHoldShortOnes: they have a connection of their own.
func TestLongCallsDoNotHoldShortOnes(t *testing.T) {
	peers, port := pair(t, func(s *Server) { s.HandleCall(kindTest, echo) })
	for range 3 {
		if _, err := peers.Call(bounded(t), 1, kindTest, nil); err != nil {
			t.Fatal(err)
		}
		if got, err := peers.CallMoving(bounded(t), 1, kindTest, make([]byte, 1<<20), func(int64) {}); err != nil ||
			len(got) != 1<<20 {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
	}
	port.mu.Lock()
	conns := len(port.peers[2])
	port.mu.Unlock()
	if conns != 2 {
		t.Errorf("%d connections, want one for short calls and one for long ones", conns)
	}
}
