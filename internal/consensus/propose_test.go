package consensus

import "testing"

// TestResultAfterASnapshotSaysSo: a proposal was under way when the state was replaced by a snapshot, which may hold it. What a
// repetition of it is answered with is not the result of the first time.
func TestResultAfterASnapshotSaysSo(t *testing.T) {
	n := newNode(Config{Identity: Identity{ID: 1}})
	defer n.cancel(ErrClosed)
	n.state.leader = 1
	for _, restored := range []bool{false, true} {
		w, err := n.addWaiter([]byte("command"), ProposeOptions{})
		if err != nil {
			t.Fatal(err)
		}
		n.dispatch(w)
		if restored {
			n.showRestored(10)
		}
		n.showApplied([]Entry{{Index: 11}}, []Proposal{w.p}, []any{nil})
		if out := <-w.done; out.err != nil || out.Skipped != restored {
			t.Errorf("restored %v: skipped %v, %v", restored, out.Skipped, out.err)
		}
	}
}
