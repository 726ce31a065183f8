package integration

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// lockStorm has programs of all nodes take locks of two files while nodes fail, and notes what each of them was
// answered. They have one clock.
type lockStorm struct {
	t     *testing.T
	c     *cluster.Cluster
	began time.Time
	over  atomic.Bool

	mu    sync.Mutex
	holds []lockHold
	ops   []porcupine.Operation
	open  []int    // of ops, those of which it is not known yet by when they came about
	lines []string // that were appended under a lock, and synced before it was given back
	lost  int
	ghost int
}

// lockHold is the time for which a program certainly had a lock: from the answer that it has it to the moment at which
// it began to ask for it once more and was granted it. An open file whose lock was lost is not granted any.
type lockHold struct {
	client    int
	file      string
	exclusive bool
	from, to  time.Duration
}

var lockKinds = map[string]func(f *os.File, how int) error{
	"flock": func(f *os.File, how int) error { return unix.Flock(int(f.Fd()), how) },
	"record": func(f *os.File, how int) error {
		lk := unix.Flock_t{Type: unix.F_WRLCK}
		switch how &^ unix.LOCK_NB {
		case unix.LOCK_SH:
			lk.Type = unix.F_RDLCK
		case unix.LOCK_UN:
			lk.Type = unix.F_UNLCK
		}
		if how&unix.LOCK_NB != 0 {
			return unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lk)
		}
		return unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLKW, &lk)
	},
}

// Locks between nodes, while leaders and others are killed, stand still or are cut off: no two programs hold a lock at
// the same time, the history is one of a lock, and what was appended under it and synced is there.
func TestClusterLocksInAStorm(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 5, MountArgs: []string{"-o", "locks=cluster"}})
	for kind := range lockKinds {
		must(t, os.WriteFile(c.Nodes[0].Path(kind), nil, 0o666))
	}
	s := &lockStorm{t: t, c: c, began: time.Now()}
	var clients sync.WaitGroup
	for i := range 2 * len(c.Nodes) {
		clients.Go(func() { s.run(i, c.Nodes[i%len(c.Nodes)]) })
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	s.strike(rand.New(rand.NewPCG(seed, 0)), size(30*time.Second, 10*time.Minute))
	s.over.Store(true)
	clients.Wait()
	s.calm()
	t.Logf("%d locks held, %d appends, %d locks lost, %d requests failed", len(s.holds), len(s.lines), s.lost, s.ghost)
	s.checkHolds()
	s.checkHistory()
	s.checkLines()
}

// strike lets one node after the other fail, the leader among them.
func (s *lockStorm) strike(r *rand.Rand, d time.Duration) {
	for time.Since(s.began) < d {
		n := s.c.Nodes[r.IntN(len(s.c.Nodes))]
		if r.IntN(3) == 0 {
			n = leaderOf(s.t, s.c)
		}
		var end func()
		kind := []string{"stop", "cut", "kill"}[r.IntN(3)]
		long := time.Duration(1000+r.IntN(7000)) * time.Millisecond
		switch kind {
		case "stop":
			end = n.StandStill(time.Minute)
		case "cut":
			s.c.Net().Cut(n.Index, true)
			end = func() { s.c.Net().Cut(n.Index, false) }
		case "kill":
			n.Kill()
			end = n.Launch
		}
		s.t.Logf("%5.1f s: %s %s for %v", time.Since(s.began).Seconds(), kind, n.Name(), long)
		<-time.After(long)
		end()
		s.c.AwaitUp(s.c.Nodes...)
		s.calm()
		<-time.After(time.Duration(r.IntN(1500)) * time.Millisecond)
	}
}

// run is one program.
func (s *lockStorm) run(client int, n *cluster.Node) {
	r := rand.New(rand.NewPCG(uint64(client), 1))
	for i := 0; !s.over.Load(); i++ {
		kind := []string{"flock", "record"}[r.IntN(2)]
		f, err := os.OpenFile(n.Path(kind), os.O_RDWR|os.O_APPEND, 0)
		if err != nil {
			<-time.After(50 * time.Millisecond) // the node is away
			continue
		}
		s.hold(r, client, kind, f, fmt.Sprintf("%d-%d", client, i))
		_ = f.Close()
	}
}

// hold takes a lock, appends a line if it is exclusive, and gives it back.
func (s *lockStorm) hold(r *rand.Rand, client int, kind string, f *os.File, line string) {
	how, exclusive := unix.LOCK_EX, true
	if r.IntN(4) == 0 {
		how, exclusive = unix.LOCK_SH, false
	}
	if r.IntN(2) == 0 {
		how |= unix.LOCK_NB
	}
	lock := func(how int) (from, to time.Duration, err error) {
		from = time.Since(s.began)
		for err = unix.EINTR; err == unix.EINTR; {
			err = lockKinds[kind](f, how)
		}
		return from, time.Since(s.began), err
	}
	in := lockInput{file: kind, client: client, exclusive: exclusive}
	call, answer, err := lock(how)
	switch {
	case errors.Is(err, unix.EAGAIN):
		s.note(in.to(lockAsk), call, answer, false)
		return
	case errors.Is(err, unix.ENOLCK) && answer-call < lockUnsure: // no quorum could be asked
		<-time.After(50 * time.Millisecond)
		return
	case err != nil: // it may have held the lock for some time
		s.mu.Lock()
		in.client = 10 + s.ghost%50
		s.ghost++
		s.mu.Unlock()
		s.note(in.to(lockMayHave), call, -1, false)
		s.note(in.to(lockMayGive), call, -1, false)
		return
	}
	s.note(in.to(lockAsk), call, answer, true)
	synced := false
	if exclusive {
		_, err = fmt.Fprintln(f, line)
		synced = errors.Join(err, f.Sync()) == nil
	}
	<-time.After(time.Duration(r.IntN(20)) * time.Millisecond)
	again, _, err := lock(how | unix.LOCK_NB) // no change: it says whether the lock is still there
	s.mu.Lock()
	if synced {
		s.lines = append(s.lines, kind+" "+line)
	}
	if err == nil {
		s.holds = append(s.holds, lockHold{client, kind, exclusive, answer, again})
	} else {
		s.lost++
	}
	s.mu.Unlock()
	if err != nil {
		s.note(in.to(lockGive), answer, -1, true)
		return
	}
	_, answer, _ = lock(unix.LOCK_UN)
	if answer-again > 5*time.Second {
		answer = -1 // the log takes it when there is a quorum
	}
	s.note(in.to(lockGive), again, answer, true)
}

// lockUnsure is less than what a node waits for a quorum to confirm a lock that is granted.
const lockUnsure = 20 * time.Second

// What programs do with a lock. Of a request that failed it is not known whether the lock was held for some time.
const (
	lockAsk = iota
	lockGive
	lockMayHave
	lockMayGive
)

type lockInput struct {
	file      string
	client    int
	exclusive bool
	what      int
}

func (in lockInput) to(what int) lockInput {
	in.what = what
	return in
}

// note adds what a program did. An answer below 0 says that it comes about at any time, until the nodes are up again.
func (s *lockStorm) note(in lockInput, call, answer time.Duration, granted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if answer < 0 {
		s.open = append(s.open, len(s.ops))
	}
	s.ops = append(s.ops, porcupine.Operation{
		ClientId: in.client, Input: in, Call: int64(call), Output: granted, Return: int64(answer),
	})
}

// calm says that all nodes are up, so that what was not done before is done a little later.
func (s *lockStorm) calm() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range s.open {
		s.ops[i].Return = int64(time.Since(s.began) + 2*time.Second)
	}
	s.open = nil
}

// checkHolds compares all times at which a lock was certainly held.
func (s *lockStorm) checkHolds() {
	slices.SortFunc(s.holds, func(a, b lockHold) int { return int(a.from - b.from) })
	for i, a := range s.holds {
		for _, b := range s.holds[i+1:] {
			if b.from < a.to && a.file == b.file && (a.exclusive || b.exclusive) {
				s.t.Errorf("two hold %s: %+v and %+v", a.file, a, b)
			}
		}
	}
}

// lockState is who has a lock: a client's number and 1, or shared, a bit for each.
type lockState struct {
	exclusive int
	shared    uint64
}

// step is what a lock answers.
func (now lockState) step(in lockInput, granted bool) (bool, lockState) {
	bit := uint64(1) << in.client
	free := now.exclusive == 0 && (!in.exclusive || now.shared == 0)
	has := now.exclusive == in.client+1 || now.shared&bit != 0
	next := now
	switch {
	case in.what == lockGive || in.what == lockMayGive && has:
		if in.exclusive {
			next.exclusive = 0
		} else {
			next.shared &^= bit
		}
		return has, next
	case in.what == lockMayGive, in.what == lockMayHave && !free:
		return true, now
	case in.what == lockAsk && !granted:
		return !free, now
	case in.exclusive:
		next.exclusive = in.client + 1
	default:
		next.shared |= bit
	}
	return free, next
}

// checkHistory compares what programs were answered with a lock.
func (s *lockStorm) checkHistory() {
	model := porcupine.Model{
		Init: func() any { return lockState{} },
		Step: func(state, input, output any) (bool, any) {
			return state.(lockState).step(input.(lockInput), output.(bool))
		},
	}
	for kind := range lockKinds {
		ops := slices.DeleteFunc(slices.Clone(s.ops), func(op porcupine.Operation) bool {
			return op.Input.(lockInput).file != kind
		})
		got, info := porcupine.CheckOperationsVerbose(model, ops, time.Minute)
		if got == porcupine.Unknown { // many requests failed; checkHolds has compared all that is certain
			s.t.Logf("%s: %d answers take too long to compare", kind, len(ops))
		}
		if got != porcupine.Illegal {
			continue
		}
		s.t.Errorf("%s: %d answers are not those of a lock: %s", kind, len(ops), got)
		s.explain(ops, info)
	}
}

// explain prints what happened about the first answer that a lock does not give.
func (s *lockStorm) explain(ops []porcupine.Operation, info porcupine.LinearizationInfo) {
	fits := map[porcupine.Operation]bool{}
	for _, part := range info.PartialLinearizationsOperations() {
		for _, list := range part {
			for _, op := range list {
				fits[op] = true
			}
		}
	}
	slices.SortFunc(ops, func(a, b porcupine.Operation) int { return int(a.Return - b.Return) })
	first := slices.IndexFunc(ops, func(op porcupine.Operation) bool { return !fits[op] })
	if first < 0 {
		return
	}
	for i := max(0, first-30); i < min(len(ops), first+10); i++ {
		op, mark := ops[i], ""
		if i == first {
			mark = "  <- first that does not fit"
		}
		s.t.Logf("%12v to %12v: %+v %v%s", time.Duration(op.Call), time.Duration(op.Return), op.Input, op.Output, mark)
	}
}

// checkLines looks for each line on each node.
func (s *lockStorm) checkLines() {
	for _, n := range s.c.Nodes {
		for kind := range lockKinds {
			got, err := os.ReadFile(n.Path(kind))
			must(s.t, err)
			have := map[string]int{}
			for line := range bytes.Lines(got) {
				have[kind+" "+string(bytes.TrimSpace(line))]++
			}
			for _, line := range s.lines {
				if len(line) > len(kind) && line[:len(kind)] == kind && have[line] != 1 {
					s.t.Errorf("%s has the line %q %d times", n.Name(), line, have[line])
				}
			}
		}
	}
}
