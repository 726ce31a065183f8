package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmcfs/rdmcfs/fs"
	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
)

// scriptedLog answers publishes as a script says, and passes on the other proposals.
type scriptedLog struct {
	answers chan error // of publishes; nil is a refusal by apply
	others  chan meta.Op
	full    bool // the next of the others finds the exactly-once window full
}

// Propose implements raftLog.
func (l *scriptedLog) Propose(_ context.Context, data []byte, _ consensus.ProposeOptions) (consensus.Proposed, error) {
	e, err := meta.DecodeEntry(data)
	if err != nil {
		return consensus.Proposed{}, err
	}
	if _, ok := e.Op.(*meta.Publish); !ok {
		var res meta.Result
		if l.full {
			l.full, res.Errno = false, syscall.EAGAIN
		}
		l.others <- e.Op
		return consensus.Proposed{Result: res}, nil
	}
	if err := <-l.answers; err != nil {
		return consensus.Proposed{}, err
	}
	return consensus.Proposed{Result: meta.Result{Errno: syscall.EIO}}, nil
}

// TestRefusalAfterUnknownEndsTheSession: the writer was answered that the outcome is unknown, then apply refused the
// publish. The session must end in the log, or the members keep their votes until the writer starts again. A log whose
// window for this node is full is asked again.
func TestRefusalAfterUnknownEndsTheSession(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	log := &scriptedLog{answers: make(chan error, 2), others: make(chan meta.Op, 1), full: true}
	p := newProposer(ctx, log, 1, 1)
	defer p.work.Wait()
	defer cancel()
	p.beginIncarnation(1)
	log.answers <- consensus.ErrUnknown
	session := meta.ContentID{Node: 1, Incarnation: 1, Seq: 5}
	_, err := p.propose(ctx, &meta.Publish{Ino: 9, Session: session})
	var unknown *fs.UnknownError
	if !errors.As(err, &unknown) || !errors.Is(err, replicate.ErrUnknown) {
		t.Fatalf("the outcome was unknown: %v", err)
	}
	log.answers <- nil
	if res, ok := <-unknown.Outcome; !ok || res.Errno != syscall.EIO {
		t.Fatalf("the outcome in the end: %v %v", res.Errno, ok)
	}
	for range 2 {
		select {
		case op := <-log.others:
			if a, ok := op.(*meta.Abort); !ok || a.Session != session {
				t.Fatalf("proposed %+v", op)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("the session was not ended")
		}
	}
}

// TestUnknownIsResolvedWhenTheLogAnswers: a proposal whose outcome is unknown is made again as soon as the log answers
// another one, which was on its way before, however long the log was silent.
func TestUnknownIsResolvedWhenTheLogAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		log := &scriptedLog{answers: make(chan error, 20), others: make(chan meta.Op)}
		p := newProposer(ctx, log, 1, 1)
		defer p.work.Wait()
		defer cancel()
		p.beginIncarnation(1)
		answered := make(chan error, 1)
		go func() {
			_, err := p.propose(ctx, &meta.Create{Parent: meta.RootIno, Name: "d", Kind: meta.KindDir})
			answered <- err
		}()
		synctest.Wait() // it is in the log's hands
		for range cap(log.answers) {
			log.answers <- consensus.ErrUnknown
		}
		if _, err := p.propose(ctx, &meta.Publish{Ino: 9}); !errors.Is(err, replicate.ErrUnknown) {
			t.Fatalf("answered %v", err)
		}
		<-time.After(5 * unknownRetry / 2)
		synctest.Wait()
		if len(log.answers) == 0 || len(p.unresolved()) != 1 {
			t.Fatalf("%d answers are left, %d proposals unresolved", len(log.answers), len(p.unresolved()))
		}
		for len(log.answers) > 0 {
			<-log.answers
		}
		log.answers <- nil
		<-log.others
		if err := <-answered; err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // no time passes
		if n := len(p.unresolved()); n != 0 {
			t.Errorf("%d proposals are unresolved", n)
		}
		<-log.others // the end of the session
	})
}

// TestUnknownIsResolvedSoonAfterALongSilence: the outcome is known within the time of one attempt after the log answers
// again, however long it was silent, also if nothing else is proposed.
func TestUnknownIsResolvedSoonAfterALongSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		log := &silentLog{until: time.Now().Add(310 * time.Second)}
		p := newProposer(ctx, log, 1, 1)
		defer p.work.Wait()
		defer cancel()
		p.beginIncarnation(1)
		unlink := &meta.Unlink{Parent: meta.RootIno, Name: "f"}
		if _, err := p.propose(ctx, unlink); !errors.Is(err, replicate.ErrUnknown) {
			t.Fatalf("answered %v", err)
		}
		if got := p.unresolved(); len(got) != 1 || got[0].What != "removal of f" {
			t.Errorf("unresolved: %+v", got)
		}
		<-time.After(time.Until(log.until) + unknownRetry)
		synctest.Wait()
		if got := p.unresolved(); len(got) != 0 {
			t.Errorf("still unresolved: %+v", got)
		}
	})
}

// silentLog answers from some time on: first that the outcome is unknown, then that there is no quorum.
type silentLog struct {
	until time.Time
	asked bool
}

// Propose implements raftLog.
func (l *silentLog) Propose(context.Context, []byte, consensus.ProposeOptions) (consensus.Proposed, error) {
	switch {
	case !l.asked:
		l.asked = true
		return consensus.Proposed{}, consensus.ErrUnknown
	case time.Now().Before(l.until):
		return consensus.Proposed{}, consensus.ErrNoQuorum
	}
	return consensus.Proposed{Result: meta.Result{}}, nil
}

// snapshotLog is a log whose state this node once takes from a snapshot while a proposal is under way. The snapshot
// includes the proposal, so its result is not known here. Meanwhile the node was declared down and has begun again.
type snapshotLog struct {
	t     *testing.T
	db    *meta.DB
	index uint64
	begin func(incarnation uint32)
	skip  bool

	incarnation uint32
}

func (l *snapshotLog) boot() {
	l.incarnation = l.apply(&meta.Boot{Node: 1, Store: [16]byte{1}}).Incarnation
	l.begin(l.incarnation)
}

func (l *snapshotLog) apply(op meta.Op) meta.Result {
	return l.take(meta.EncodeEntry(meta.Entry{Generation: meta.FirstGeneration, Op: op}))
}

func (l *snapshotLog) take(data []byte) meta.Result {
	l.index++
	res, _, err := l.db.Apply(l.index, int64(l.index), data)
	if err != nil {
		l.t.Fatal(err)
	}
	return res
}

// Propose implements raftLog.
func (l *snapshotLog) Propose(_ context.Context, data []byte, _ consensus.ProposeOptions) (consensus.Proposed, error) {
	res := l.take(data)
	if !l.skip {
		return consensus.Proposed{Index: l.index, Result: res}, nil
	}
	l.skip = false
	l.apply(&meta.Down{Node: 1, Incarnation: l.incarnation})
	l.boot()
	return consensus.Proposed{Index: l.index, Result: l.take(data), Skipped: true}, nil
}

// TestWhatASnapshotMayHoldIsNotMadeTwice: the log refuses a repeated proposal because its incarnation is over, which
// does not say that it was never applied.
func TestWhatASnapshotMayHoldIsNotMadeTwice(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	db := meta.OpenMemory()
	defer db.Close()
	log := &snapshotLog{t: t, db: db}
	p := newProposer(ctx, log, 1, meta.FirstGeneration)
	defer p.work.Wait()
	defer cancel()
	log.begin = p.beginIncarnation
	log.apply(&meta.Join{Name: "n1", Addr: "n1:1"})
	log.boot()
	mkdir := func(name string) (meta.Result, error) {
		return p.propose(ctx, &meta.Create{Parent: meta.RootIno, Name: name, Kind: meta.KindDir})
	}
	log.skip = true
	if res, err := mkdir("d"); !errors.Is(err, replicate.ErrUnknown) {
		t.Errorf("errno %v, %v: the directory was made, by this proposal", res.Errno, err)
	}
	if res, err := mkdir("e"); err != nil || res.Errno != 0 {
		t.Errorf("errno %v, %v", res.Errno, err)
	}
	log.skip = true
	res, err := p.propose(ctx, &meta.Create{Parent: meta.RootIno, Name: "f", Kind: meta.KindFile})
	if err != nil || res.Errno != 0 {
		t.Errorf("a reservation, which ends with its incarnation: errno %v, %v", res.Errno, err)
	}
}

// slowFirst applies the first proposal after the others, when it is let go.
type slowFirst struct {
	snapshotLog
	letGo chan struct{} // nil when the first one has come
}

// Propose implements raftLog.
func (l *slowFirst) Propose(_ context.Context, data []byte, _ consensus.ProposeOptions) (consensus.Proposed, error) {
	if wait := l.letGo; wait != nil {
		l.letGo = nil
		<-wait
	}
	res := l.take(data)
	return consensus.Proposed{Index: l.index, Result: res}, nil
}

// Apply remembers the results of a limited number of proposals of a node. It refuses a proposal that is too far ahead
// of the oldest one without an answer, which can happen when one among many waits long. Such a refusal decides nothing.
// The bytes may come once more, after a change of leader, and be applied then.
func TestNothingIsProposedThatApplyCannotRemember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		db := meta.OpenMemory()
		defer db.Close()
		letGo := make(chan struct{})
		log := &slowFirst{snapshotLog: snapshotLog{t: t, db: db}, letGo: letGo}
		p := newProposer(ctx, log, 1, meta.FirstGeneration)
		defer p.work.Wait()
		defer cancel()
		log.begin = p.beginIncarnation
		log.apply(&meta.Join{Name: "n1", Addr: "n1:1"})
		log.boot()
		mkdir := func(name string) {
			res, err := p.propose(ctx, &meta.Create{Parent: meta.RootIno, Name: name, Kind: meta.KindDir})
			if err != nil || res.Errno != 0 {
				t.Errorf("%s: errno %v, %v", name, res.Errno, err)
			}
		}
		go mkdir("first")
		synctest.Wait()
		done := 0
		go func() {
			for ; done < 5000; done++ {
				mkdir(fmt.Sprint("d", done))
			}
		}()
		synctest.Wait()
		if done != 4095 {
			t.Errorf("%d proposals were made beside one without an answer", done)
		}
		close(letGo)
		synctest.Wait()
		if done != 5000 {
			t.Errorf("%d proposals were made after that", done)
		}
	})
}

// What was to be proposed under an incarnation that has ended meanwhile is not: its sequence would be one of the next.
func TestNothingIsProposedUnderAnEndedIncarnation(t *testing.T) {
	p := newProposer(t.Context(), nil, 1, 1)
	p.beginIncarnation(1)
	old := p.lease()
	p.beginIncarnation(2)
	p.beginIncarnation(1) // heard too late
	if data, _, _ := p.admit(old, &meta.Expire{}); data != nil {
		t.Error("proposed under the incarnation that has ended")
	}
	data, seq, _ := p.admit(p.lease(), &meta.Expire{})
	if e, err := meta.DecodeEntry(data); err != nil || seq != 1 || e.Incarnation != 2 || e.Seq != 1 {
		t.Errorf("the first proposal of incarnation 2: %+v %v", e, err)
	}
}

// orderLog answers the first try of each unlink with an error of its choice, and takes everything else in the order of
// arrival.
type orderLog struct {
	mu     sync.Mutex
	refuse []error // of the next proposals, one after the other
	taken  []meta.Op
}

// Propose implements raftLog.
func (l *orderLog) Propose(_ context.Context, data []byte, _ consensus.ProposeOptions) (consensus.Proposed, error) {
	e, err := meta.DecodeEntry(data)
	if err != nil {
		return consensus.Proposed{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.refuse) > 0 {
		err, l.refuse = l.refuse[0], l.refuse[1:]
		if err != nil {
			return consensus.Proposed{}, err
		}
	}
	l.taken = append(l.taken, e.Op)
	return consensus.Proposed{Result: meta.Result{}}, nil
}

// TestUnknownIsNotOvertaken: a program whose unlink failed with an unknown outcome makes the file again. The log
// takes the unlink first, or the new file would be removed by it although its close was answered with 0.
func TestUnknownIsNotOvertaken(t *testing.T) {
	unlink := &meta.Unlink{Parent: meta.RootIno, Name: "f"}
	create := &meta.Create{Parent: meta.RootIno, Name: "f", Kind: meta.KindFile}
	for _, c := range []struct {
		name    string
		patient bool
		refuse  []error       // after the unlink's first try
		wait    time.Duration // at most, for the create's answer
		want    error
		order   int // operations that the log has taken at the end
	}{
		{"the log answers", false, nil, time.Second, nil, 2},
		{"the log answers after a while", false, []error{consensus.ErrUnknown, consensus.ErrUnknown}, time.Second, nil, 2},
		{"no quorum", false, repeat(consensus.ErrNoQuorum, 40), time.Second, consensus.ErrNoQuorum, 0},
		{"no quorum for a while, a patient caller", true, repeat(consensus.ErrNoQuorum, 40), 15 * time.Second, nil, 2},
		{"no answer", false, repeat(consensus.ErrUnknown, 400), orderWait, consensus.ErrNoQuorum, 0},
		{"no answer, a patient caller", true, repeat(consensus.ErrUnknown, 400), orderWaitPatient, consensus.ErrNoQuorum, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				log := &orderLog{refuse: append([]error{consensus.ErrUnknown}, c.refuse...)}
				p := newProposer(ctx, log, 1, 1)
				defer p.work.Wait()
				defer cancel()
				p.beginIncarnation(1)
				if _, err := p.propose(ctx, unlink); !errors.Is(err, replicate.ErrUnknown) {
					t.Fatalf("the unlink: %v", err)
				}
				began := time.Now()
				_, _, err := p.proposeVisible(ctx, create, consensus.ProposeOptions{Patient: c.patient})
				if !errors.Is(err, c.want) || errors.Is(err, consensus.ErrUnknown) {
					t.Errorf("the create: %v, want %v", err, c.want)
				}
				if took := time.Since(began); took > c.wait {
					t.Errorf("the create took %v, want %v", took, c.wait)
				}
				log.mu.Lock()
				defer log.mu.Unlock()
				if len(log.taken) != c.order {
					t.Fatalf("the log took %d operations, want %d", len(log.taken), c.order)
				}
				if c.order > 0 {
					if _, ok := log.taken[0].(*meta.Unlink); !ok {
						t.Errorf("the log took %T first", log.taken[0])
					}
				}
			})
		})
	}
}

// TestNextIncarnationWaitsForNothing: what an ended incarnation proposed is not applied after the boot of the next one.
func TestNextIncarnationWaitsForNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		log := &orderLog{refuse: repeat(consensus.ErrUnknown, 20)}
		p := newProposer(ctx, log, 1, 1)
		defer p.work.Wait()
		defer cancel()
		p.beginIncarnation(1)
		if _, err := p.propose(ctx, &meta.Unlink{Parent: meta.RootIno, Name: "f"}); !errors.Is(err, replicate.ErrUnknown) {
			t.Fatalf("the unlink: %v", err)
		}
		done := make(chan error)
		go func() {
			_, err := p.propose(ctx, &meta.Create{Parent: meta.RootIno, Name: "f", Kind: meta.KindFile})
			done <- err
		}()
		<-time.After(time.Second)
		log.mu.Lock()
		log.refuse = nil
		log.mu.Unlock()
		began := time.Now()
		p.beginIncarnation(2)
		if err := <-done; err != nil || time.Since(began) > 0 {
			t.Errorf("answered %v after %v", err, time.Since(began))
		}
	})
}

// fencedLog refuses each proposal, since its incarnation has ended, and lets the next one begin.
type fencedLog struct{ p *proposer }

// Propose implements raftLog.
func (l *fencedLog) Propose(_ context.Context, data []byte, _ consensus.ProposeOptions) (consensus.Proposed, error) {
	e, err := meta.DecodeEntry(data)
	if err != nil {
		return consensus.Proposed{}, err
	}
	l.p.beginIncarnation(e.Incarnation + 1)
	if e.Incarnation == fencedRetries {
		l.p.noteUnknown(l.p.lease(), 1) // of another call
	}
	return consensus.Proposed{Result: meta.Result{Errno: syscall.ESTALE, Fenced: true}}, nil
}

// What the log has never taken, since one incarnation ended after the other, is not answered as if it was made. The
// last one ends while the call waits for the outcome of another one.
func TestWhatWasNeverProposedWasNotMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &fencedLog{}
		p := newProposer(t.Context(), log, 1, 1)
		log.p = p
		p.beginIncarnation(1)
		time.AfterFunc(time.Second, func() { p.beginIncarnation(p.lease().Incarnation + 1) })
		res, err := p.propose(t.Context(), &meta.Unlink{Parent: meta.RootIno, Name: "f"})
		if err == nil && res.Errno == 0 {
			t.Errorf("answered as made: %+v", res)
		}
		if got := p.lease().Incarnation; got != fencedRetries+2 {
			t.Errorf("ended under incarnation %d", got)
		}
	})
}

func repeat(err error, times int) []error {
	out := make([]error, times)
	for i := range out {
		out[i] = err
	}
	return out
}
