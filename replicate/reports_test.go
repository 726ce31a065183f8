package replicate

import (
	"context"
	"log/slog"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
)

// answering is a log that gives one answer after the other, and notes the reports that were proposed.
type answering struct {
	noLog
	answers []func() (meta.Result, error)
	asked   [][]meta.ContentID
}

func (l *answering) Propose(_ context.Context, op meta.Op) (meta.Result, error) {
	l.asked = append(l.asked, op.(*meta.Held).Contents)
	if len(l.asked) > len(l.answers) {
		return meta.Result{}, nil
	}
	return l.answers[len(l.asked)-1]()
}

// The log does not answer, then refuses, as it does when the incarnation has ended meanwhile.
func TestReportIsRepeatedUntilTheLogHasTakenIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &answering{answers: []func() (meta.Result, error){
			func() (meta.Result, error) { return meta.Result{}, ErrUnknown },
			func() (meta.Result, error) { return meta.Result{Errno: syscall.ESTALE}, nil },
			func() (meta.Result, error) { return meta.Result{Errno: syscall.EAGAIN}, nil },
		}}
		r := newHeldReports(Config{
			Self: func() meta.Lease { return meta.Lease{Node: 1, Incarnation: 1} }, Log: log, Clock: SystemClock(),
			Logger: slog.New(slog.DiscardHandler),
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go r.run(ctx)
		id := meta.ContentID{Node: 2, Incarnation: 1, Seq: 7}
		r.add(id)
		<-time.After(time.Minute)
		synctest.Wait()
		if len(log.asked) != 4 || slices.ContainsFunc(log.asked, func(ids []meta.ContentID) bool {
			return !slices.Equal(ids, []meta.ContentID{id})
		}) {
			t.Errorf("reported %v, want the same four times", log.asked)
		}
		if r.waiting(id) {
			t.Error("taken by the log, and still to be reported")
		}
	})
}
