package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
	"golang.org/x/sys/unix"
)

const (
	fiFreeze = 0xc0045877 // ioctls of linux/fs.h
	fiThaw   = 0xc0045878

	stormHealMax   = 5 * time.Minute
	stormStandMax  = 90 * time.Second // of healing without any progress
	stormForever   = 1000 * time.Hour
	stormPatience  = 20 * time.Second // for changes under way when a fault ends
	stormStopMax   = 40 * time.Second // a stopped process goes on, whatever holds up the storm
	stormFrozenFor = 400 * time.Millisecond
	stormThawedFor = 100 * time.Millisecond
	stormForget    = 10 * time.Second // after its fault a node may be named as behind by what began before
)

// strike makes a fault come and go, and prints how it healed.
func (s *storm) strike(k strike) {
	wait(k.after)
	s.say("%v, for %v%s", k, k.lasts, s.roles(k))
	switch k.kind {
	case strikeJoin:
		s.join(k)
	case strikeEvict:
		s.evict(k)
	case strikeCopy, strikePutBack, strikeRot:
		s.rest(k)
	default:
		nodes := []int{k.node}
		if k.and >= 0 {
			nodes = append(nodes, k.and)
		}
		s.mark(true, nodes...)
		end := s.beginBoth(k)
		wait(k.lasts)
		if k.calm {
			s.pause(stormPatience, nodes...)
		}
		end()
		s.heal(k, nodes...)
	}
	s.resume()
}

// roles says what the nodes are that are struck.
func (s *storm) roles(k strike) (text string) {
	st, err := statusOf(s.seer(k.node, k.and))
	if err != nil {
		return ""
	}
	for _, i := range []int{k.node, k.and} {
		if i < 0 {
			continue
		}
		switch row := rowOf(st, s.c.Nodes[i]); {
		case row != nil && row.ID == st.Leader:
			text += ", the leader"
		case row != nil && row.Voter:
			text += ", a voter"
		case row != nil:
			text += ", an observer"
		}
	}
	return text
}

// mark notes that nodes are struck, or no longer.
func (s *storm) mark(on bool, nodes ...int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	until := time.Now()
	if on {
		until = until.Add(stormForever)
	}
	for _, i := range nodes {
		s.struck[i] = until
	}
	s.last = until
}

// beginBoth strikes the one or two nodes of a strike. A process is stopped last and goes on first: no program can be
// started beside one that stands still (Node.StandStill).
func (s *storm) beginBoth(k strike) (end func()) {
	if k.and < 0 {
		return s.begin(k.kind, s.c.Nodes[k.node])
	}
	if k.kind == strikeStop {
		k.kind, k.node, k.andKind, k.and = k.andKind, k.and, k.kind, k.node
	}
	endFirst := s.begin(k.kind, s.c.Nodes[k.node])
	endSecond := s.begin(k.andKind, s.c.Nodes[k.and])
	return func() {
		endSecond()
		endFirst()
	}
}

// begin strikes a node, and returns what ends that.
func (s *storm) begin(kind string, n *cluster.Node) (end func()) {
	net := s.c.Net()
	switch kind {
	case strikeKill:
		n.Kill()
		return n.Launch
	case strikeRestart:
		n.Stop()
		return n.Launch
	case strikeStop:
		return n.StandStill(stormStopMax)
	case strikeCut:
		net.Cut(n.Index, true)
		return func() { net.Cut(n.Index, false) }
	case strikeMute:
		net.Drop(n.Index, "output", true)
		return func() { net.Drop(n.Index, "output", false) }
	case strikeDeaf:
		net.Drop(n.Index, "input", true)
		return func() { net.Drop(n.Index, "input", false) }
	case strikeDisk:
		return s.slowDisk(n)
	}
	s.t.Fatalf("no such fault: %s", kind)
	return nil
}

// slowDisk has a node's file system stand still for most of the time.
func (s *storm) slowDisk(n *cluster.Node) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if err := freeze(n.Data, fiFreeze); err != nil {
				s.t.Errorf("freeze %s: %v", n.Data, err)
				return
			}
			wait(stormFrozenFor)
			if err := freeze(n.Data, fiThaw); err != nil {
				s.t.Errorf("thaw %s: %v", n.Data, err)
			}
			wait(stormThawedFor)
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

func freeze(dir string, request int) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.IoctlSetInt(int(f.Fd()), uint(request), 0)
}

// release ends what a failed storm has left, so that the nodes can be ended.
func (s *storm) release() {
	for i, n := range s.c.Nodes {
		n.Signal(syscall.SIGCONT)
		if i < stormDisks {
			freeze(n.Data, fiThaw)
		}
	}
}

// join makes an empty machine a member.
func (s *storm) join(k strike) {
	n := s.c.Nodes[k.node]
	s.mark(true, k.node)
	n.JoinAt(s.seer(k.node))
	if k.calm {
		s.pause(stormPatience)
	}
	n.Launch()
	s.setMember(k.node, true)
	s.heal(k, k.node)
}

// evict makes a node leave, and empties its directory.
func (s *storm) evict(k strike) {
	n, at := s.c.Nodes[k.node], s.seer(k.node)
	s.setMember(k.node, false)
	s.mark(true, k.node)
	s.pause(stormHealMax)
	began := time.Now()
	s.mayFail(at, "drain", n.Name())
	s.evicted(at, n)
	s.say("%v took %.1f s", k, time.Since(began).Seconds())
	select {
	case <-n.Exited():
	case <-time.After(time.Minute):
		s.t.Errorf("%s was evicted and runs", n.Name())
		n.Kill()
	}
	s.empty(n)
	s.heal(k)
}

// mayFail runs a command that is refused while a node has unpublished files.
func (s *storm) mayFail(at *cluster.Node, args ...string) bool {
	out, errs, err := at.CLI(args...)
	if err != nil {
		s.say("%s: rdmcfs %s: %v: %s%s", at.Name(), strings.Join(args, " "), err, out, errs)
	}
	return err == nil
}

// evicted evicts a node as an operator does: what failed changes left unpublished there is dropped first.
func (s *storm) evicted(at, n *cluster.Node) {
	for range 10 {
		if st, err := statusOf(n); err == nil {
			for _, u := range st.Unpublished {
				s.mayFail(n, "restore", "--content", u.ID, "--drop")
			}
		}
		if s.mayFail(at, "evict", n.Name()) {
			return
		}
		wait(3 * time.Second)
	}
	s.t.Fatalf("%s can't be evicted", n.Name())
}

// empty removes what is in a node's directory.
func (s *storm) empty(n *cluster.Node) {
	entries, err := os.ReadDir(n.Data)
	must(s.t, err)
	for _, e := range entries {
		if e.Name() != "lost+found" {
			must(s.t, os.RemoveAll(filepath.Join(n.Data, e.Name())))
		}
	}
}

// rest stops a node in order, does something to its directory, and starts it.
func (s *storm) rest(k strike) {
	n := s.c.Nodes[k.node]
	s.mark(true, k.node)
	n.Stop()
	old := n.Data + ".old"
	switch k.kind {
	case strikeCopy:
		run(s.t, "cp", "-a", n.Data, old)
	case strikePutBack:
		s.empty(n)
		run(s.t, "cp", "-a", old+"/.", n.Data)
	case strikeRot:
		for _, table := range filesUnder(s.t, filepath.Join(n.Data, "state"), ".sst") {
			flip(s.t, table, 1)
		}
	}
	wait(k.lasts)
	if k.calm {
		s.pause(stormPatience, k.node)
	}
	n.Launch()
	s.heal(k, k.node)
}

// seer is a member that is not among the given ones.
func (s *storm) seer(but ...int) *cluster.Node {
	for _, n := range s.all() {
		ok := n.Running()
		for _, i := range but {
			ok = ok && n.Index != i
		}
		if ok {
			return n
		}
	}
	s.t.Fatal("no other member")
	return nil
}

// rowOf is what a status says of a node, nil if it is no member.
func rowOf(st admin.Status, n *cluster.Node) *admin.Node {
	for i := range st.Nodes {
		if row := &st.Nodes[i]; row.Name == n.Name() && row.State != "evicted" {
			return row
		}
	}
	return nil
}

// mending is how far the end of a fault is.
type mending struct {
	up   time.Duration // until all see the nodes up, and they serve
	owed int64         // the most that was owed to one of the nodes that are waited for
	what string        // what lacks
	was  []string      // what lacked at which time
}

// heal waits until the members see each other up, nothing is owed, and all have applied what was committed; without a
// pause of the writers, until that is so of the nodes that were struck. It prints how long that took.
func (s *storm) heal(k strike, nodes ...int) {
	how, links := s.beside(k, nodes)
	began, received := time.Now(), s.received(links...)
	target := s.committed()
	m := mending{was: []string{fmt.Sprintf("%.1f s after its end: the first look begins", time.Since(began).Seconds())}}
	last, since := "", began
	for !s.healed(&m, began, target, k.calm, nodes...) {
		if m.what != last {
			last, since = m.what, time.Now()
			m.was = append(m.was, fmt.Sprintf("%.1f s after its end: %s", time.Since(began).Seconds(), last))
		}
		if time.Since(since) > stormStandMax || time.Since(began) > stormHealMax {
			s.figure(k, &m, "not healed", time.Since(began), 0)
			s.t.Fatalf("%v: not healed after %v: %s", k, time.Since(began), m.what)
		}
		if s.rejoined(nodes...) {
			s.say("%s has a log that is too short: it was evicted, and joins with an empty directory", s.c.Nodes[k.node].Name())
		}
		wait(50 * time.Millisecond)
	}
	s.mark(false, nodes...)
	most := int64(0)
	for i, now := range s.received(links...) {
		most = max(most, now-received[i])
	}
	s.figure(k, &m, how, time.Since(began), most)
}

// beside says what goes on while a fault is healed, and over whose links that comes. In a calm fault the writers pause,
// except a writer that is in the middle of a change at a node that was struck: what it sends now goes to all, and its
// end is waited for.
func (s *storm) beside(k strike, struck []int) (how string, links []int) {
	switch {
	case !k.calm:
		return "beside writers", struck
	case !s.anyBusy():
		return "calm", struck
	}
	for _, n := range s.all() {
		links = append(links, n.Index)
	}
	return "beside a writer", links
}

// figure prints how a fault healed. Beside writers, what else came over the link counts as if it was owed.
func (s *storm) figure(k strike, m *mending, how string, took time.Duration, received int64) {
	link, late := float64(m.owed)/stormPerSec, ""
	if how != "calm" {
		link = float64(max(m.owed, received)) / stormPerSec
	}
	if bound := 2 + 1.2*link; took.Seconds() > bound {
		late = " LATE"
	}
	line := fmt.Sprintf("%-34s %4.1f s, %-15s owed %6.1f MB, received %6.1f MB: up %5.1f s, healed %5.1f s, bound "+
		"%5.1f s%s",
		k, k.lasts.Seconds(), how, float64(m.owed)/1e6, float64(received)/1e6, m.up.Seconds(), took.Seconds(), 2+1.2*link,
		late)
	s.figures = append(s.figures, line)
	s.say("%s", line)
	if late != "" {
		s.say("what lacked:\n%s", strings.Join(m.was, "\n"))
	}
}

// committed is the highest index that any member knows to be committed.
func (s *storm) committed() (index uint64) {
	for _, l := range s.looks() {
		if l.err == nil {
			index = max(index, l.st.CommitIndex)
		}
	}
	return index
}

// slowLook is how long a status may take before it is said of a fault that healed late.
const slowLook = 500 * time.Millisecond

// look is what a member says.
type look struct {
	seer *cluster.Node
	st   admin.Status
	err  error
	took time.Duration
}

// looks asks all members at once: one that waits for its disk delays what the others say no further.
func (s *storm) looks() []look {
	var out []look
	for _, n := range s.all() {
		out = append(out, look{seer: n})
	}
	var asked sync.WaitGroup
	for i := range out {
		asked.Go(func() {
			began := time.Now()
			out[i].st, out[i].err = statusOf(out[i].seer)
			out[i].took = time.Since(began)
		})
	}
	asked.Wait()
	return out
}

// healed looks once.
func (s *storm) healed(m *mending, began time.Time, target uint64, calm bool, nodes ...int) bool {
	up, owed, m2, unseen := true, int64(0), "", ""
	lacks := func(format string, args ...any) { m2 = fmt.Sprintf(format, args...) }
	for _, l := range s.looks() {
		seer, st, err := l.seer, l.st, l.err
		if l.took > slowLook {
			m.was = append(m.was, fmt.Sprintf("%.1f s after its end: the status of %s has taken %.1f s",
				time.Since(began).Seconds(), seer.Name(), l.took.Seconds()))
		}
		if err != nil || st.State != "serving" || len(st.Mounts) != 1 || st.Mounts[0].State != "mounted" {
			up = false
			lacks("%s: %s %v", seer.Name(), st.State, err)
			continue
		}
		if st.AppliedIndex < target {
			lacks("%s has applied %d of %d", seer.Name(), st.AppliedIndex, target)
		}
		for _, n := range s.all() {
			row := rowOf(st, n)
			if row == nil || row.State != "up" {
				up = false
				unseen = fmt.Sprintf("%s sees %s not up; ", seer.Name(), n.Name())
				continue
			}
			struck := false
			for _, i := range nodes {
				struck = struck || i == n.Index
			}
			if !calm && !struck {
				continue
			}
			owed = max(owed, row.OwedBytes)
			if row.OwedCount > 0 {
				lacks("%s: %s is owed %d, %d bytes: %s", seer.Name(), n.Name(), row.OwedCount, row.OwedBytes, row.OwedReason)
			}
		}
	}
	m2 = unseen + m2
	m.owed, m.what = max(m.owed, owed), m2
	if up && m.up == 0 {
		m.up = time.Since(began)
	}
	return up && m2 == ""
}

// rejoined looks for members that have ended. One whose directory was put back, and that votes, ends by itself: its
// log is shorter than it promised. An operator evicts it and joins it again. Any other end is a failure.
func (s *storm) rejoined(nodes ...int) (did bool) {
	for _, n := range s.all() {
		if n.Running() {
			continue
		}
		if !strings.Contains(n.Log(), "raft log is shorter than what this node acknowledged") {
			s.t.Fatalf("%s has ended: %v\n%s", n.Name(), n.ExitErr(), n.Log())
		}
		at := s.seer(n.Index)
		s.evicted(at, n)
		s.empty(n)
		n.JoinAt(at)
		n.Launch()
		did = true
	}
	return did
}

// received is how many bytes came over the links of nodes so far.
func (s *storm) received(nodes ...int) (by []int64) {
	for _, i := range nodes {
		out, err := s.c.Nodes[i].Run("cat", "/proc/net/dev")
		must(s.t, err)
		_, rest, _ := strings.Cut(out, "eth0:")
		var bytes int64
		fmt.Sscan(rest, &bytes)
		by = append(by, bytes)
	}
	return by
}
