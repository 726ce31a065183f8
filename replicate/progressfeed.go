package replicate

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/session"
)

// Ending is how a transfer ended.
type Ending string

// Endings of a transfer. A transfer that runs has none.
const (
	EndPublished Ending = "published" // the log took the version
	EndDelivered Ending = "delivered" // catch-up: at least one node has got the content
	EndRepeated  Ending = "repeated"  // another session follows
	EndUnknown   Ending = "unknown"   // the log's answer has not come
	EndFailed    Ending = "failed"
)

// ending returns how the last session of a push ended.
func ending(out Outcome, err error) (Ending, string) {
	var again errAgain
	switch {
	case err == nil:
		return EndPublished, publishedHow(out)
	case errors.As(err, &again):
		return EndFailed, err.Error() // to be repeated, and no session followed
	case errors.Is(err, ErrUnknown):
		return EndUnknown, err.Error()
	}
	return EndFailed, err.Error()
}

// publishedHow says what is special about a version that was published; "" if nothing is.
func publishedHow(out Outcome) string {
	var texts []string
	switch {
	case out.Result.Orphan:
		texts = append(texts, "its file was gone: kept as a version without a file")
	case out.Result.Conflict:
		texts = append(texts, "another version had come in between: that one is kept")
	}
	if out.Unseen != nil {
		texts = append(texts, fmt.Sprintf("no leader said which nodes show it (%v): a close or fsync that waited for that "+
			"has got an error", out.Unseen))
	}
	return strings.Join(texts, "; ")
}

// feedMax bounds the ends that wait for one follower.
const feedMax = 4096

// TransferFeed gives one follower the last state of each transfer that ends, once.
type TransferFeed struct {
	owner  *transfers
	wake   chan struct{}
	ended  []TransferStatus // guarded by owner.mu, as is missed
	missed int
}

// FollowTransfers begins a feed. The caller closes it.
func (r *Replicator) FollowTransfers() *TransferFeed { return r.transfers.follow() }

func (t *transfers) follow() *TransferFeed {
	f := &TransferFeed{owner: t, wake: make(chan struct{}, 1)}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.feeds = append(t.feeds, f)
	return f
}

// Ready gets a value when a transfer has ended since the last Take.
func (f *TransferFeed) Ready() <-chan struct{} { return f.wake }

// Take returns the transfers that ended since the last Take, in the order in which they ended; how many more ended than
// could be kept; and the transfers that are running. A transfer that was returned as ended is not listed as running,
// then or later.
func (f *TransferFeed) Take() (ended []TransferStatus, missed int, running []TransferStatus) {
	f.owner.mu.Lock()
	defer f.owner.mu.Unlock()
	ended, missed = f.ended, f.missed
	f.ended, f.missed = nil, 0
	return ended, missed, f.owner.listLocked()
}

// Close ends the feed.
func (f *TransferFeed) Close() {
	f.owner.mu.Lock()
	defer f.owner.mu.Unlock()
	f.owner.feeds = slices.DeleteFunc(f.owner.feeds, func(o *TransferFeed) bool { return o == f })
}

// tellLocked hands the last state of a transfer to all followers. mu is held.
func (t *transfers) tellLocked(st TransferStatus) {
	for _, f := range t.feeds {
		if len(f.ended) >= feedMax {
			f.missed++
			continue
		}
		own := st
		own.Members = slices.Clone(st.Members)
		f.ended = append(f.ended, own)
		select {
		case f.wake <- struct{}{}:
		default:
		}
	}
}

// counted takes the votes of a session and the members that missed it: the last word on each member but self. A nil
// transfer, as in the simulator, shows nothing.
func (t *transfer) counted(self meta.NodeID, votes []meta.NodeID, missed []meta.Missed) {
	if t == nil {
		return
	}
	t.owner.mu.Lock()
	defer t.owner.mu.Unlock()
	for _, n := range votes {
		if n != self {
			m := t.memberLocked(n)
			m.State, m.Bytes, m.Reason, m.Text = session.MemberVoted.String(), t.st.Stream, 0, ""
		}
	}
	for _, x := range missed {
		if x.Node != self {
			m := t.memberLocked(x.Node)
			if m.State != session.MemberOut.String() || m.Text == "" {
				m.Text = x.Reason.String()
			}
			m.State, m.Reason = session.MemberOut.String(), x.Reason
		}
	}
}

// later shows the members that a policy leaves to catch-up: nobody has asked them yet.
func (t *transfer) later(nodes []meta.NodeID) {
	if t == nil {
		return
	}
	t.owner.mu.Lock()
	defer t.owner.mu.Unlock()
	for _, n := range nodes {
		m := t.memberLocked(n)
		m.State, m.Reason, m.Text = session.MemberAsked.String(), 0, "gets the file afterwards: --ack local"
	}
}

// behind notes the members that had not shown the version when the barrier's time was over. Other nodes than members
// may be among the nodes: they do not get the file.
func (t *transfer) behind(nodes []meta.NodeID) {
	t.owner.mu.Lock()
	defer t.owner.mu.Unlock()
	for i, m := range t.st.Members {
		t.st.Members[i].Behind = slices.Contains(nodes, m.Node)
	}
}

// rides shows the members of a push whose bytes ride in the log: a member that shows the entry has the bytes. An empty
// file is one of these.
func (t *transfer) rides(members, behind []meta.NodeID) {
	var have []meta.NodeID
	for _, n := range members {
		if !slices.Contains(behind, n) {
			have = append(have, n)
		}
	}
	t.counted(0, have, nil)
	t.owner.mu.Lock()
	defer t.owner.mu.Unlock()
	for _, n := range members {
		t.memberLocked(n)
	}
}

// memberLocked finds a member, or adds it. owner.mu is held; the pointer is good until then.
func (t *transfer) memberLocked(n meta.NodeID) *MemberStatus {
	for i := range t.st.Members {
		if t.st.Members[i].Node == n {
			return &t.st.Members[i]
		}
	}
	t.st.Members = append(t.st.Members, MemberStatus{Node: n, State: session.MemberAsked.String()})
	return &t.st.Members[len(t.st.Members)-1]
}

// lateShow says which published version a node had not shown when its barrier's time was over.
type lateShow struct {
	index uint64
	path  string
	at    time.Time
}

// leftBehind remembers which nodes had not shown an index in time.
func (t *transfers) leftBehind(nodes []meta.NodeID, late lateShow) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, n := range nodes {
		t.late[n] = late
	}
}

// whyBehind says which close stopped waiting for a node; "" if the node has shown that version since, or if there was
// no such close.
func (t *transfers) whyBehind(node meta.NodeID, shown uint64) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	late, ok := t.late[node]
	if !ok || shown >= late.index {
		return ""
	}
	return "has not shown " + late.path + ", which was published here at " + late.at.Format(time.TimeOnly)
}

// WhyBehind says which version of this node another node lacks that has shown the log up to an index, after a close
// waited for it as long as it may; "" if there is none.
func (r *Replicator) WhyBehind(node meta.NodeID, shown uint64) string {
	return r.transfers.whyBehind(node, shown)
}
