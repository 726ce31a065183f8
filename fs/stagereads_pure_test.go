package fs

import (
	"context"
	"errors"
	"io"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/rdmcfs/rdmcfs/replicate"
)

// TestG1CutWaitsUntilPublishesHaveRead: bytes go away when all that announced them have read them or ended, and not
// while one begins.
func TestG1CutWaitsUntilPublishesHaveRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ts stageReads
		first, second := ts.begin(), ts.begin()
		started, goOn := make(chan struct{}), make(chan struct{})
		done := make(chan error, 1)
		go func() {
			done <- ts.cut(t.Context(), func() error { close(started); <-goOn; return io.ErrShortWrite })
		}()
		synctest.Wait()
		for _, k := range []*stageRead{first, second} {
			if !closed(k.urgent) {
				t.Error("not told that it is urgent")
			}
		}
		first.readAll()
		synctest.Wait()
		if closed(started) {
			t.Fatal("cut, and one has not read its bytes")
		}
		second.end()
		synctest.Wait()
		if !closed(started) {
			t.Fatal("not cut")
		}
		third := make(chan *stageRead, 1)
		go func() { third <- ts.begin() }()
		synctest.Wait()
		if len(third) > 0 {
			t.Fatal("began in the middle of a cut")
		}
		close(goOn)
		if err := <-done; !errors.Is(err, io.ErrShortWrite) {
			t.Errorf("cut: %v", err)
		}
		p := make([]byte, 3)
		if n, err := (unlessCut{strings.NewReader("abc"), first}).ReadAt(p, 0); n != 0 || !errors.Is(err, replicate.ErrCut) {
			t.Errorf("read after the cut: %d %v", n, err)
		}
		if n, err := (unlessCut{strings.NewReader("abc"), <-third}).ReadAt(p, 0); n != 3 || err != nil {
			t.Errorf("read of what is left: %d %v", n, err)
		}
	})
}

// TestCutEndsWithItsCaller: a caller that is killed while it waits has cut nothing, and nobody was held up.
func TestCutEndsWithItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ts stageReads
		k := ts.begin()
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- ts.cut(ctx, func() error { t.Error("cut"); return nil }) }()
		synctest.Wait()
		stop()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("cut: %v", err)
		}
		if _, err := (unlessCut{strings.NewReader("abc"), k}).ReadAt(make([]byte, 3), 0); err != nil {
			t.Errorf("read: %v", err)
		}
		ts.begin().end()
		k.end()
	})
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// emptyAtFirst is a staged file that is written between a look at it and a cut.
type emptyAtFirst struct {
	Staged
	cut chan struct{}
}

func (emptyAtFirst) Stat() (StageStat, error) { return StageStat{}, nil }

func (e emptyAtFirst) Truncate(int64) error {
	close(e.cut)
	return nil
}

// An open with O_TRUNC keeps no writer away: what it found empty may have been written, and be on its way to the log,
// when it is cut.
func TestOpenCutsNothingThatIsBeingPublished(t *testing.T) {
	stage := emptyAtFirst{cut: make(chan struct{})}
	l := &live{stage: stage, users: newUsers()}
	push := l.stageReads.begin()
	opened := make(chan syscall.Errno, 1)
	go func() { opened <- new(openFiles).joined(t.Context(), &handle{live: l}, false, true) }()
	select {
	case <-stage.cut:
		t.Error("bytes are cut that are being published")
	case <-push.urgent:
		push.readAll()
		<-stage.cut
	}
	if no := <-opened; no != 0 {
		t.Error(no)
	}
}
