package pin

import (
	"context"
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// memfd is a file in memory with bytes.
func memfd(t testing.TB, content []byte) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "memfd:test")
	t.Cleanup(func() { _ = f.Close() })
	if _, err := f.Write(content); err != nil {
		t.Fatal(err)
	}
	return f
}

func mapFile(t testing.TB, d *Domain, f *os.File, size int) *File {
	t.Helper()
	m, err := NewFile(d, f, int64(size))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Unmap(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return m
}

// paused is memory of a receiver that stops when a fragment is to be registered for the n-th time.
type paused struct {
	Bytes
	n       int
	reached chan struct{}
	goOn    chan struct{}
}

// halting makes a Memory of it.
type halting struct{ *paused }

func (h halting) Bytes() []byte {
	if h.n--; h.n == 0 {
		close(h.reached)
		<-h.goOn
	}
	return h.paused.Bytes
}

// TestFilesAsMemory: staged files at both ends, all strategies, a file larger than the budget by the pipelines.
func TestFilesAsMemory(t *testing.T) {
	each(t, func(t *testing.T, a, b rdma.Device) {
		const size = 3<<20 + 77
		p := newPair(t, a, b, 0, small)
		src := random(t, size, 8)
		from := mapFile(t, p.dom[0], memfd(t, src), size)
		for _, s := range Strategies() {
			f := memfd(t, make([]byte, size))
			to := mapFile(t, p.dom[1], f, size)
			if sendErr, err := move(t, p.end[0], p.end[1], s, from, to); sendErr != nil || err != nil {
				t.Fatalf("%v: %v, %v", s, sendErr, err)
			}
			got := make([]byte, size)
			if _, err := f.ReadAt(got, 0); err != nil {
				t.Fatal(err)
			}
			wantSame(t, got, src)
		}
	})
}

// sendAndCut sends a file, has it cut when the receiver is at its third fragment, and answers the sender's error.
func sendAndCut(t *testing.T, p *pair, s Strategy, from *File, size int, cut func() error) error {
	t.Helper()
	l, r := p.link(small)
	halt := &paused{Bytes: pages(t, size), n: 5, reached: make(chan struct{}), goOn: make(chan struct{})}
	if !s.piped() {
		halt.n = 2
	}
	ctx := bound(t)
	sent, received, cutErr := make(chan error, 1), make(chan error, 1), make(chan error, 1)
	go func() { sent <- l.Send(ctx, s, from) }()
	go func() {
		_, err := r.Receive(ctx, into(halting{halt}))
		received <- err
	}()
	<-halt.reached
	go func() {
		cutErr <- cut()
		close(halt.goOn)
	}()
	err := <-sent
	if e := <-cutErr; e != nil {
		t.Errorf("cut: %v", e)
	}
	if e := <-received; (e == nil) != (err == nil) {
		t.Errorf("receiver: %v, sender: %v", e, err)
	}
	return err
}

// TestCutFileBreaksOnlyItsSession: a size-reducing SETATTR in mid-send. With notice (Shrink) or without (another
// process's truncate), the session of that file fails and says why, others go on, and nothing stays registered.
func TestCutFileBreaksOnlyItsSession(t *testing.T) {
	each(t, func(t *testing.T, a, b rdma.Device) {
		const size = 2 << 20
		p := newPair(t, a, b, 0, small)
		src := random(t, size, 9)
		for _, s := range []Strategy{OnDemand, Cached, Pipeline, CachedPipeline} {
			for _, told := range []bool{true, false} {
				f := memfd(t, src)
				from := mapFile(t, p.dom[0], f, size)
				err := sendAndCut(t, p, s, from, size, func() error {
					if told {
						return from.Shrink(bound(t), size/8)
					}
					return f.Truncate(size / 8)
				})
				// pages that are pinned already are sent by a real device
				if !errors.Is(err, ErrStale) && (told || s.piped() || err != nil) {
					t.Errorf("%v, told %v: %v", s, told, err)
				}
				if told {
					if err := p.end[0].d.Drain(bound(t), from.mem); err != nil {
						t.Error(err)
					}
				}
				dst := Bytes(pages(t, size))
				if sendErr, err := move(t, p.end[0], p.end[1], s, src, dst); sendErr != nil || err != nil {
					t.Fatalf("%v: another session: %v, %v", s, sendErr, err)
				}
				wantSame(t, dst, src)
				if err := p.dom[1].Invalidate(dst); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

// TestCutFileIsOfNoUse: nothing is sent from a mapping after its file was cut, and cutting does not wait for the idle.
func TestCutFileIsOfNoUse(t *testing.T) {
	each(t, func(t *testing.T, a, b rdma.Device) {
		p := newPair(t, a, b, 0, small)
		src := random(t, 1<<20, 10)
		from, dst := mapFile(t, p.dom[0], memfd(t, src), 1<<20), Bytes(pages(t, 1<<20))
		if sendErr, err := move(t, p.end[0], p.end[1], Cached, from, dst); sendErr != nil || err != nil {
			t.Fatal(sendErr, err)
		}
		if err := from.Shrink(bound(t), 4096); err != nil {
			t.Fatal(err)
		}
		if st := p.dom[0].Stats(); st.Entries != 1 || st.Invalidations == 0 {
			t.Errorf("left registered: %+v", st)
		}
		if err := p.end[0].Send(bound(t), Cached, from); !errors.Is(err, ErrStale) {
			t.Errorf("sent from a file that was cut: %v", err)
		}
		if sendErr, err := move(t, p.end[0], p.end[1], Pipeline, src, dst); sendErr != nil || err != nil {
			t.Errorf("the link after that: %v, %v", sendErr, err)
		}
	})
}
