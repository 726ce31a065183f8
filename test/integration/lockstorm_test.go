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
	lines []string // that were appended under a lock, and synced before it was given back
	lost  int
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
	c.AwaitUp(c.Nodes...)
	clients.Wait()
	t.Logf("%d locks held, %d appends, %d locks lost", len(s.holds), len(s.lines), s.lost)
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
	call, answer, err := lock(how)
	if err != nil {
		s.note(client, kind, lockInput{exclusive: exclusive, ask: true}, call, answer, !errors.Is(err, unix.EAGAIN), false)
		return
	}
	s.note(client, kind, lockInput{exclusive: exclusive, ask: true}, call, answer, false, true)
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
		s.note(client, kind, lockInput{exclusive: exclusive}, answer, -1, false, true)
		return
	}
	call, answer, _ = lock(unix.LOCK_UN)
	if answer-call > 5*time.Second {
		answer = -1 // the log takes it when there is a quorum
	}
	s.note(client, kind, lockInput{exclusive: exclusive}, again, answer, false, true)
}

// lockInput is a request for a lock, or the end of one.
type lockInput struct {
	file           string
	client         int
	exclusive, ask bool
}

// note adds what a program did. An answer below 0 says that it may have come about at any later time; one that failed
// for another reason than that somebody has the lock says nothing.
func (s *lockStorm) note(client int, kind string, in lockInput, call, answer time.Duration, failed, granted bool) {
	if failed {
		return
	}
	in.file, in.client = kind, client
	if answer < 0 {
		answer = 1 << 60
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ops = append(s.ops, porcupine.Operation{
		ClientId: client, Input: in, Call: int64(call), Output: granted, Return: int64(answer),
	})
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

// checkHistory compares what programs were answered with a lock: holders by client, exclusive or not.
func (s *lockStorm) checkHistory() {
	type state struct {
		exclusive int // 0: nobody; else the client's number and 1
		shared    uint64
	}
	model := porcupine.Model{
		Init: func() any { return state{} },
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			by := map[string][]porcupine.Operation{}
			for _, op := range history {
				file := op.Input.(lockInput).file
				by[file] = append(by[file], op)
			}
			return slices.Collect(func(yield func([]porcupine.Operation) bool) {
				for _, list := range by {
					if !yield(list) {
						return
					}
				}
			})
		},
		Step: func(st, input, output any) (bool, any) {
			now, in := st.(state), input.(lockInput)
			bit := uint64(1) << in.client
			free := now.exclusive == 0 && (!in.exclusive || now.shared == 0)
			switch {
			case !in.ask && in.exclusive:
				if now.exclusive != in.client+1 {
					return false, now
				}
				now.exclusive = 0
				return true, now
			case !in.ask:
				if now.shared&bit == 0 {
					return false, now
				}
				now.shared &^= bit
				return true, now
			case !output.(bool):
				return !free, now
			case !free:
				return false, now
			case in.exclusive:
				now.exclusive = in.client + 1
			default:
				now.shared |= bit
			}
			return true, now
		},
	}
	switch got := porcupine.CheckOperationsTimeout(model, s.ops, time.Minute); got {
	case porcupine.Ok:
	default:
		s.t.Errorf("%d answers are not those of a lock: %s", len(s.ops), got)
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
