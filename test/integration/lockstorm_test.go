package integration

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// lockStorm is what programs of all nodes were answered that took locks of two files while nodes failed.
type lockStorm struct {
	t       *testing.T
	c       *cluster.Cluster
	began   time.Time
	strikes []strikeTime
	lockNotes
}

// strikeTime is when a node was away, until all were up again.
type strikeTime struct{ from, to time.Duration }

// lockNotes is what the programs noted. All have one clock.
type lockNotes struct {
	Holds  []lockHold
	Acts   []lockAct
	Lines  []string // that were appended under a lock, and synced before it was given back
	Lost   int
	Failed int
}

// lockHold is the time for which a program certainly had a lock: from the answer that it has it to the moment at which
// it began to ask for it once more and was granted it. An open file whose lock was lost is not granted any.
type lockHold struct {
	Client    int
	File      string
	Exclusive bool
	From, To  time.Duration
}

// lockAct is a request for a lock, or its end. A Return below 0 says that it comes about at any later time, until all
// nodes are up.
type lockAct struct {
	File         string
	Client       int
	Exclusive    bool
	What         int
	Granted      bool
	Call, Return time.Duration
}

// What programs do with a lock. Of a request that failed it is not known whether the lock was held for some time.
const (
	lockAsk = iota
	lockGive
	lockMayHave
	lockMayGive
)

// Locks between nodes, while leaders and others are killed, stand still or are cut off: no two programs hold a lock at
// the same time, the history is one of a lock, and what was appended under it and synced is there.
func TestClusterLocksInAStorm(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 5, MountArgs: []string{"-o", "locks=cluster"}})
	for kind := range lockKinds {
		must(t, os.WriteFile(c.Nodes[0].Path(kind), nil, 0o666))
	}
	s := &lockStorm{t: t, c: c, began: time.Now()}
	end := s.startClients()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	s.strike(rand.New(rand.NewPCG(seed, 0)), size(30*time.Second, 10*time.Minute))
	end()
	t.Logf("%d locks held, %d appends, %d locks lost, %d requests failed", len(s.Holds), len(s.Lines), s.Lost, s.Failed)
	if len(s.Lines) == 0 {
		t.Error("nothing was appended")
	}
	s.checkHolds()
	s.checkHistory()
	s.checkLines()
}

// startClients starts the programs in a process of their own: one that starts others, as the test does to cut a node
// off, closes what it has open on that node in each of them, and would wait for that.
func (s *lockStorm) startClients() (end func()) {
	cmd := exec.Command("/proc/self/exe")
	dirs := make([]string, len(s.c.Nodes))
	for i, n := range s.c.Nodes {
		dirs[i] = n.Path()
	}
	cmd.Env = append(os.Environ(), lockClientsEnv+"="+strings.Join(dirs, ":"),
		fmt.Sprintf("%s=%d", lockBeganEnv, s.began.UnixNano()))
	in, err := cmd.StdinPipe()
	must(s.t, err)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	must(s.t, cmd.Start())
	s.t.Cleanup(func() { _ = cmd.Process.Kill() })
	return func() {
		s.t.Helper()
		in.Close()
		if err := errors.Join(cmd.Wait(), json.Unmarshal(out.Bytes(), &s.lockNotes)); err != nil {
			s.t.Fatalf("programs that lock: %v: %s", err, errs.String())
		}
	}
}

const (
	lockClientsEnv = "RDMCFS_TEST_LOCK_DIRS"
	lockBeganEnv   = "RDMCFS_TEST_LOCK_BEGAN"
)

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
		from := time.Since(s.began)
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
		s.t.Logf("%5.1f s: %s %s for %v", from.Seconds(), kind, n.Name(), long)
		<-time.After(long)
		end()
		s.c.AwaitUp(s.c.Nodes...)
		s.strikes = append(s.strikes, strikeTime{from, time.Since(s.began) + lockSettled})
		<-time.After(time.Duration(1000+r.IntN(1500)) * time.Millisecond)
	}
}

// lockSettled is by when the nodes have done what they could not do before all were up.
const lockSettled = 2 * time.Second

// lockClients are the programs, two on each node.
type lockClients struct {
	began time.Time
	over  atomic.Bool

	mu sync.Mutex
	lockNotes
}

// runLockClients is the process of the programs. It ends with its input.
func runLockClients(dirs []string, began time.Time) error {
	s := &lockClients{began: began}
	var clients sync.WaitGroup
	for i := range 2 * len(dirs) {
		clients.Go(func() { s.run(i, dirs[i%len(dirs)]) })
	}
	_, err := io.Copy(io.Discard, os.Stdin)
	s.over.Store(true)
	clients.Wait()
	return errors.Join(err, json.NewEncoder(os.Stdout).Encode(s.lockNotes))
}

// run is one program.
func (s *lockClients) run(client int, dir string) {
	r := rand.New(rand.NewPCG(uint64(client), 1))
	for i := 0; !s.over.Load(); i++ {
		kind := []string{"flock", "record"}[r.IntN(2)]
		f, err := os.OpenFile(filepath.Join(dir, kind), os.O_RDWR|os.O_APPEND, 0)
		if err != nil {
			<-time.After(50 * time.Millisecond) // the node is away
			continue
		}
		for range 1 + r.IntN(3) {
			s.hold(r, client, kind, f, fmt.Sprintf("%d-%d-%d", client, i, r.Uint32()))
		}
		_ = f.Close()
	}
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

// lock asks for a lock, or gives it back.
func (s *lockClients) lock(kind string, f *os.File, how int) (from, to time.Duration, err error) {
	from = time.Since(s.began)
	for err = unix.EINTR; err == unix.EINTR; {
		err = lockKinds[kind](f, how)
	}
	return from, time.Since(s.began), err
}

// lockUnsure is less than what a node waits for a quorum to confirm a lock that is granted.
const lockUnsure = 20 * time.Second

// hold takes a lock, appends a line if it is exclusive, and gives it back.
func (s *lockClients) hold(r *rand.Rand, client int, kind string, f *os.File, line string) {
	how := unix.LOCK_EX
	if r.IntN(4) == 0 {
		how = unix.LOCK_SH
	}
	act := lockAct{File: kind, Client: client, Exclusive: how == unix.LOCK_EX}
	if r.IntN(2) == 0 {
		how |= unix.LOCK_NB
	}
	call, answer, err := s.lock(kind, f, how)
	switch {
	case errors.Is(err, unix.EAGAIN):
		s.note(act, lockAsk, call, answer, false)
		return
	case errors.Is(err, unix.ENOLCK) && answer-call < lockUnsure: // no quorum could be asked
		<-time.After(50 * time.Millisecond)
		return
	case err != nil: // it may have held the lock for some time
		s.mu.Lock()
		act.Client = 10 + s.Failed%50
		s.Failed++
		s.mu.Unlock()
		s.note(act, lockMayHave, call, -1, false)
		s.note(act, lockMayGive, call, -1, false)
		<-time.After(50 * time.Millisecond)
		return
	}
	s.note(act, lockAsk, call, answer, true)
	synced := false
	if act.Exclusive {
		_, err = fmt.Fprintln(f, line)
		synced = r.IntN(3) > 0 && errors.Join(err, f.Sync()) == nil // else the unlock publishes it
	}
	<-time.After(time.Duration(r.IntN(20)) * time.Millisecond)
	again, _, err := s.lock(kind, f, how|unix.LOCK_NB) // no change: it says whether the lock is still there
	s.mu.Lock()
	if synced {
		s.Lines = append(s.Lines, kind+" "+line)
	}
	if err == nil {
		s.Holds = append(s.Holds, lockHold{client, kind, act.Exclusive, answer, again})
	} else {
		s.Lost++
	}
	s.mu.Unlock()
	if err != nil {
		s.note(act, lockGive, call, -1, true)
		return
	}
	_, answer, err = s.lock(kind, f, unix.LOCK_UN)
	if err != nil || answer-again > 5*time.Second {
		answer = -1 // the log takes it when there is a quorum, or with the incarnation
	}
	s.note(act, lockGive, again, answer, true)
}

// note adds what a program did.
func (s *lockClients) note(act lockAct, what int, call, answer time.Duration, granted bool) {
	act.What, act.Call, act.Return, act.Granted = what, call, answer, granted
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Acts = append(s.Acts, act)
}

// checkHolds compares all times at which a lock was certainly held.
func (s *lockStorm) checkHolds() {
	slices.SortFunc(s.Holds, func(a, b lockHold) int { return int(a.From - b.From) })
	for i, a := range s.Holds {
		for _, b := range s.Holds[i+1:] {
			if b.From >= a.To {
				break
			}
			if a.File == b.File && (a.Exclusive || b.Exclusive) {
				s.t.Errorf("two hold %s: %+v and %+v", a.File, a, b)
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
func (now lockState) step(in lockAct) (bool, lockState) {
	bit := uint64(1) << in.Client
	free := now.exclusive == 0 && (!in.Exclusive || now.shared == 0)
	has := now.exclusive == in.Client+1 || now.shared&bit != 0
	next := now
	switch {
	case in.What == lockGive || in.What == lockMayGive && has:
		if in.Exclusive {
			next.exclusive = 0
		} else {
			next.shared &^= bit
		}
		return has, next
	case in.What == lockMayGive, in.What == lockMayHave && !free:
		return true, now
	case in.What == lockAsk && !in.Granted:
		return !free, now
	case in.Exclusive:
		next.exclusive = in.Client + 1
	default:
		next.shared |= bit
	}
	return free, next
}

// history gives what programs were answered about a file. While a node is away, a lock may be held by one of its
// requests that nobody is told of, so refusals say nothing then.
func (s *lockStorm) history(kind string) (ops []porcupine.Operation) {
	for _, act := range s.Acts {
		struck := slices.ContainsFunc(s.strikes, func(k strikeTime) bool {
			return act.Call < k.to && (act.Return < 0 || act.Return > k.from)
		})
		if act.File != kind || act.What == lockAsk && !act.Granted && struck {
			continue
		}
		if act.Return < 0 {
			act.Return = time.Since(s.began)
			for _, k := range slices.Backward(s.strikes) {
				if k.to > act.Call {
					act.Return = k.to
				}
			}
		}
		ops = append(ops, porcupine.Operation{
			ClientId: act.Client, Input: act, Output: act.Granted, Call: int64(act.Call), Return: int64(act.Return),
		})
	}
	return ops
}

// checkHistory compares what programs were answered with a lock.
func (s *lockStorm) checkHistory() {
	model := porcupine.Model{
		Init: func() any { return lockState{} },
		Step: func(state, input, _ any) (bool, any) { return state.(lockState).step(input.(lockAct)) },
	}
	for kind := range lockKinds {
		ops := s.history(kind)
		got, info := porcupine.CheckOperationsVerbose(model, ops, time.Minute)
		switch got {
		case porcupine.Unknown: // many requests failed; checkHolds has compared all that is certain
			s.t.Logf("%s: %d answers take too long to compare", kind, len(ops))
		case porcupine.Illegal:
			s.t.Errorf("%s: %d answers are not those of a lock", kind, len(ops))
			s.explain(ops, info)
		}
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
			for _, line := range s.Lines {
				if len(line) > len(kind) && line[:len(kind)] == kind && have[line] != 1 {
					s.t.Errorf("%s has the line %q %d times", n.Name(), line, have[line])
				}
			}
		}
	}
}
