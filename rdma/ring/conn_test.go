package ring

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"
)

// newConns makes two ends of a stream.
func newConns(t testing.TB, p provider, cfg Config) (a, b *Conn, l *link) {
	t.Helper()
	l = newLink(t, p, cfg)
	return NewConn(l.c[0], Addr("b")), NewConn(l.c[1], nil), l
}

// eachConn runs a test whose streams are left with bytes that nobody reads.
func eachConn(t *testing.T, test func(t *testing.T, a, b *Conn)) {
	eachConnClosing(t, 200*time.Millisecond, test)
}

func eachConnClosing(t *testing.T, timeout time.Duration, test func(t *testing.T, a, b *Conn)) {
	each(t, func(t *testing.T, p provider, cfg Config) {
		cfg.CloseTimeout = timeout
		a, b, _ := newConns(t, p, cfg)
		test(t, a, b)
	})
}

func wantTimeout(t *testing.T, what string, err error) {
	t.Helper()
	var ne net.Error
	if !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &ne) || !ne.Timeout() {
		t.Errorf("%s: %v, want a time-out", what, err)
	}
}

// TestConnBytes: a stream of random writes comes out of random reads, both ways at once.
func TestConnBytes(t *testing.T) {
	eachConn(t, func(t *testing.T, a, b *Conn) {
		const total = 1 << 20
		data := make([]byte, total)
		r := rand.New(rand.NewPCG(6, 6))
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		var wg sync.WaitGroup
		for i, c := range [][2]*Conn{{a, b}, {b, a}} {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(7, uint64(i)))
				for rest := data; len(rest) > 0; {
					n, err := c[0].Write(rest[:min(len(rest), r.IntN(10000))])
					if err != nil {
						t.Errorf("write: %v", err)
						return
					}
					rest = rest[n:]
				}
			})
			wg.Go(func() {
				r := rand.New(rand.NewPCG(8, uint64(i)))
				got, buf := make([]byte, 0, total), make([]byte, 8000)
				for len(got) < total {
					n, err := c[1].Read(buf[:1+r.IntN(len(buf)-1)])
					if err != nil {
						t.Errorf("read: %v", err)
						return
					}
					got = append(got, buf[:n]...)
				}
				if !bytes.Equal(got, data) {
					t.Error("bytes differ")
				}
			})
		}
		wg.Wait()
	})
}

// TestConnHalfReadMessage: what a short read leaves is read next, with what follows.
func TestConnHalfReadMessage(t *testing.T) {
	eachConn(t, func(t *testing.T, a, b *Conn) {
		for _, s := range []string{"hello", "", "world"} {
			if n, err := a.Write([]byte(s)); n != len(s) || err != nil {
				t.Fatalf("%d %v", n, err)
			}
		}
		var got []byte
		for range 5 {
			var two [2]byte
			n, err := b.Read(two[:])
			if err != nil || n == 0 {
				t.Fatalf("%d %v", n, err)
			}
			got = append(got, two[:n]...)
			if n, err := b.Read(nil); n != 0 || err != nil {
				t.Errorf("empty read: %d %v", n, err)
			}
		}
		rest := make([]byte, 10-len(got))
		if _, err := io.ReadFull(b, rest); err != nil || string(got)+string(rest) != "helloworld" {
			t.Errorf("%q %q %v", got, rest, err)
		}
	})
}

// TestConnPing: many small exchanges.
func TestConnPing(t *testing.T) {
	eachConn(t, func(t *testing.T, a, b *Conn) {
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := io.Copy(b, io.LimitReader(b, 8*300)); err != nil {
				t.Error(err)
			}
		})
		for i := range 300 {
			msg, got := []byte{byte(i), 1, 2, 3, 4, 5, 6, 7}, make([]byte, 8)
			if _, err := a.Write(msg); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(a, got); err != nil || !bytes.Equal(got, msg) {
				t.Fatalf("%d: %v %v", i, got, err)
			}
		}
		wg.Wait()
	})
}

func TestConnPastDeadline(t *testing.T) {
	eachConn(t, func(t *testing.T, a, b *Conn) {
		if _, err := b.Write([]byte("there")); err != nil {
			t.Fatal(err)
		}
		past := time.Unix(1, 0)
		if err := a.SetDeadline(past); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			_, err := a.Read(make([]byte, 10))
			wantTimeout(t, "read", err)
			if n, err := a.Write([]byte("x")); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("wrote %d, %v", n, err)
			}
		}
		if err := a.SetDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 5)
		if _, err := io.ReadFull(a, got); err != nil || string(got) != "there" {
			t.Errorf("after the deadline: %q %v", got, err)
		}
		if _, err := a.Write(got); err != nil {
			t.Error(err)
		}
	})
}

// TestConnDeadlineMovesUnderWaiters: calls that wait obey a deadline set, moved or removed meanwhile, and time-outs
// do no harm.
func TestConnDeadlineMovesUnderWaiters(t *testing.T) {
	eachConn(t, func(t *testing.T, a, b *Conn) {
		failed := make(chan error, 1)
		read := func() {
			_, err := a.Read(make([]byte, 1))
			failed <- err
		}
		for _, set := range []func() error{
			func() error { return a.SetReadDeadline(time.Now().Add(20 * time.Millisecond)) },
			func() error {
				return errors.Join(a.SetReadDeadline(time.Now().Add(time.Hour)), a.SetReadDeadline(time.Now()))
			},
			func() error {
				return errors.Join(a.SetReadDeadline(time.Now().Add(time.Millisecond)),
					a.SetReadDeadline(time.Now().Add(30*time.Millisecond)))
			},
		} {
			if err := a.SetReadDeadline(time.Time{}); err != nil {
				t.Fatal(err)
			}
			go read()
			await(t, "a reader that waits", func() bool {
				return a.c.check(func(c *Channel) bool { return c.readers.waiting == 1 })
			})
			if err := set(); err != nil {
				t.Fatal(err)
			}
			wantTimeout(t, "read", <-failed)
		}
		if err := a.SetReadDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		go read()
		if _, err := b.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if err := <-failed; err != nil {
			t.Errorf("read after time-outs: %v", err)
		}
	})
}

// TestConnWriteDeadline: a write that waits for a peer that does not read returns how much went, and the stream
// continues where it was.
func TestConnWriteDeadline(t *testing.T) {
	eachConn(t, func(t *testing.T, a, b *Conn) {
		data := make([]byte, 1<<20)
		r := rand.New(rand.NewPCG(2, 2))
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		var n int
		failed := make(chan error, 1)
		go func() {
			var err error
			n, err = a.Write(data)
			failed <- err
		}()
		await(t, "a writer that waits", func() bool {
			return a.c.check(func(c *Channel) bool { return c.writers.waiting == 1 })
		})
		if err := a.SetWriteDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		wantTimeout(t, "write", <-failed)
		if n <= 0 || n >= len(data) {
			t.Fatalf("wrote %d", n)
		}
		if err := a.SetWriteDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := a.Write(data[n:]); err != nil {
				t.Error(err)
			}
		})
		got := make([]byte, len(data))
		if _, err := io.ReadFull(b, got); err != nil || !bytes.Equal(got, data) {
			t.Errorf("bytes differ, or %v", err)
		}
		wg.Wait()
	})
}

// TestConnClose: what was written is read, then io.EOF; calls that wait or come later end with net.ErrClosed.
func TestConnClose(t *testing.T) {
	eachConnClosing(t, patience, func(t *testing.T, a, b *Conn) {
		waiting := make(chan error, 1)
		go func() {
			_, err := a.Read(make([]byte, 1))
			waiting <- err
		}()
		if _, err := a.Write([]byte("last words")); err != nil {
			t.Fatal(err)
		}
		await(t, "a reader that waits", func() bool {
			return a.c.check(func(c *Channel) bool { return c.readers.waiting == 1 })
		})
		for range 2 {
			if err := a.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		}
		if err := <-waiting; !errors.Is(err, net.ErrClosed) {
			t.Errorf("read while closing: %v", err)
		}
		if got, err := io.ReadAll(b); err != nil || string(got) != "last words" {
			t.Errorf("%q %v", got, err)
		}
		_, err := b.Write([]byte("x"))
		if !errors.Is(err, syscall.EPIPE) {
			t.Errorf("write to a closed peer: %v", err)
		}
		_, readErr := a.Read(make([]byte, 1))
		_, writeErr := a.Write([]byte("x"))
		never := time.Time{}
		for _, err := range []error{readErr, writeErr, a.SetDeadline(never), a.SetReadDeadline(never),
			a.SetWriteDeadline(never)} {
			var op *net.OpError
			if !errors.Is(err, net.ErrClosed) || !errors.As(err, &op) {
				t.Errorf("call on a closed stream: %v", err)
			}
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestConnCloseIsBounded: nobody reads.
func TestConnCloseIsBounded(t *testing.T) {
	eachConn(t, func(t *testing.T, a, b *Conn) {
		_ = a.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
		_, err := a.Write(make([]byte, 1<<20))
		wantTimeout(t, "write", err)
		began := time.Now()
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > patience/3 {
			t.Errorf("close took %v", took)
		}
	})
}

// TestConnManyCallers: the bytes of one Write stay together, even if others write at the same time; reads and deadlines
// race with them.
func TestConnManyCallers(t *testing.T) {
	eachConn(t, func(t *testing.T, a, b *Conn) {
		const writers, rounds, size = 4, 60, 5000
		var wg, side sync.WaitGroup
		for i := range writers {
			wg.Go(func() {
				for range rounds {
					if _, err := a.Write(bytes.Repeat([]byte{byte(i)}, size)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		ctx, cancel := context.WithCancel(context.Background())
		side.Go(func() {
			for ctx.Err() == nil {
				_ = a.SetDeadline(time.Now().Add(time.Hour))
				_ = b.LocalAddr().String() + b.RemoteAddr().Network()
				<-time.After(time.Millisecond)
			}
		})
		var got [writers]int
		block := make([]byte, size)
		for range writers * rounds {
			if _, err := io.ReadFull(b, block); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(block, bytes.Repeat(block[:1], size)) {
				t.Fatal("a write was torn")
			}
			got[block[0]]++
		}
		cancel()
		wg.Wait()
		side.Wait()
		if got != [writers]int{rounds, rounds, rounds, rounds} {
			t.Errorf("blocks of the writers: %v", got)
		}
	})
}

func TestConnAddresses(t *testing.T) {
	a, b, _ := newConns(t, providers()[0], Config{})
	if a.RemoteAddr().String() != "b" || a.LocalAddr().Network() != "ring" || b.RemoteAddr().String() != "mem:b" ||
		a.Channel() == nil {
		t.Errorf("%v %v %v", a.LocalAddr(), a.RemoteAddr(), b.RemoteAddr())
	}
}

// TestConnPeerDies: what came before is read, then reads and writes report the loss.
func TestConnPeerDies(t *testing.T) {
	each(t, func(t *testing.T, p provider, cfg Config) {
		cfg.Keepalive = 20 * time.Millisecond
		a, b, l := newConns(t, p, cfg)
		if _, err := b.Write([]byte("bye")); err != nil {
			t.Fatal(err)
		}
		await(t, "bytes that arrive", func() bool {
			return a.c.check(func(c *Channel) bool { return c.inbox.n > 0 }) || pollOnce(a.c)
		})
		l.killB()
		got, err := io.ReadAll(a)
		if string(got) != "bye" || !errors.Is(err, ErrBroken) {
			t.Errorf("%q %v", got, err)
		}
		if _, err := a.Write([]byte("x")); !errors.Is(err, ErrBroken) {
			t.Errorf("write: %v", err)
		}
	})
}

// pollOnce polls as a caller that waits would; it is false.
func pollOnce(c *Channel) bool {
	c.e.poll.Lock()
	defer c.e.poll.Unlock()
	c.e.progressLocked(true)
	return false
}

// TestConnCarriesALongStream: digests agree over many messages through rings that come and go.
func TestConnCarriesALongStream(t *testing.T) {
	eachConnClosing(t, patience, func(t *testing.T, a, b *Conn) {
		in, out := sha256.New(), sha256.New()
		var wg sync.WaitGroup
		wg.Go(func() {
			r := rand.New(rand.NewPCG(3, 3))
			for i := range 600 {
				p := make([]byte, r.IntN(700))
				for j := range p {
					p[j] = byte(r.Uint32())
				}
				in.Write(p)
				if _, err := a.Write(p); err != nil {
					t.Error(err)
				}
				if i%100 == 99 {
					<-time.After(4 * time.Millisecond) // longer than callers poll
				}
			}
			_ = a.Close()
		})
		if _, err := io.Copy(out, b); err != nil {
			t.Error(err)
		}
		wg.Wait()
		if !bytes.Equal(in.Sum(nil), out.Sum(nil)) {
			t.Error("digests differ")
		}
	})
}
