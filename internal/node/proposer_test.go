package node

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/meta"
)

// scriptedLog answers publishes as a script says, and tells of the other proposals.
type scriptedLog struct {
	answers chan error // of publishes; nil is a refusal by apply
	others  chan meta.Op
}

// Propose implements raftLog.
func (l *scriptedLog) Propose(_ context.Context, data []byte, _ consensus.ProposeOptions) (consensus.Proposed, error) {
	e, err := meta.DecodeEntry(data)
	if err != nil {
		return consensus.Proposed{}, err
	}
	if _, ok := e.Op.(*meta.Publish); !ok {
		l.others <- e.Op
		return consensus.Proposed{Result: meta.Result{}}, nil
	}
	if err := <-l.answers; err != nil {
		return consensus.Proposed{}, err
	}
	return consensus.Proposed{Result: meta.Result{Errno: syscall.EIO}}, nil
}

// TestRefusalAfterUnknownEndsTheSession: the writer was told that the outcome is unknown, then apply refused the publish. The
// session must end in the log, or the members keep their votes until the writer starts again.
func TestRefusalAfterUnknownEndsTheSession(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	log := &scriptedLog{answers: make(chan error, 2), others: make(chan meta.Op, 1)}
	p := newProposer(ctx, log, 1, 1)
	defer p.work.Wait()
	defer cancel()
	p.beginIncarnation(1)
	log.answers <- consensus.ErrUnknown
	session := meta.ContentID{Node: 1, Incarnation: 1, Seq: 5}
	if _, err := p.propose(ctx, &meta.Publish{Ino: 9, Session: session}); err == nil {
		t.Fatal("the outcome was unknown")
	}
	log.answers <- nil
	select {
	case op := <-log.others:
		if a, ok := op.(*meta.Abort); !ok || a.Session != session {
			t.Fatalf("proposed %+v", op)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the session was not ended")
	}
}
