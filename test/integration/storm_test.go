package integration

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

var (
	stormTime   = flag.Duration("storm", 0, "how long the faults of each storm go on; 0 = 45 s, or 10 min with -long")
	stormSeed   = flag.Uint64("storm.seed", 1, "what the faults of a storm, and what its writers do, are drawn from")
	stormOnly   = flag.String("storm.only", "", "strike with these kinds of faults only: a regular expression")
	stormWrites = flag.Bool("storm.writes", false, "print each change that a storm's writers make")
)

const (
	stormRate    = "100mbit"
	stormPerSec  = 100e6 / 8
	stormWriters = 4
	stormDisks   = 2 // nodes with a file system of their own, which can stand still
)

// storm is a cluster that faults strike while programs write.
type storm struct {
	t       *testing.T
	c       *cluster.Cluster
	seed    uint64
	sizeMax int64
	shared  *shared
	writers []*writer
	over    chan struct{}
	began   time.Time
	figures []string

	mu      sync.Mutex
	open    chan struct{}     // closed while writers may begin a change
	busy    map[*writer]bool  // that make one
	members map[int]bool      // that writers may use
	struck  map[int]time.Time // when the last fault of a node ended; in the future: it lasts
	last    time.Time         // when the last fault of any node was healed; in the future: it is not
}

// G1 to G6: nodes of a cluster on shaped links are killed, stopped, cut off one way or both, have a disk that hangs,
// are started again, join and leave, while four programs write. In the end every change that was acknowledged is on
// every node, byte for byte, and nothing else differs between nodes. A change that failed is there or not, but the same
// everywhere.
func TestStorm(t *testing.T) {
	runStorm(t, false)
}

// The same, and one node's directory is put back to an older copy, and state databases rot.
func TestStormOfDamage(t *testing.T) {
	if !*long && *stormTime == 0 {
		t.Skip("with -long or -storm only")
	}
	runStorm(t, true)
}

func runStorm(t *testing.T, damage bool) {
	lasts := *stormTime
	if lasts == 0 {
		lasts = size(45*time.Second, 10*time.Minute)
	}
	nodes, spares := size(5, 7), size(1, 2)
	if lasts >= 3*time.Minute {
		nodes, spares = 7, 2
	}
	s := startStorm(t, nodes, spares, lasts)
	plan := newPlanner(*stormSeed, nodes, spares, stormDisks, damage)
	t.Logf("seed %d: go test ./test/integration -run '%s$' -v -storm %v -storm.seed %d", *stormSeed, t.Name(), lasts,
		*stormSeed)
	only := regexp.MustCompile(*stormOnly)
	for i := 0; time.Since(s.began) < lasts || damage && i < 11; i++ {
		k := plan.next()
		for !only.MatchString(k.kind) {
			k = plan.next()
		}
		s.strike(k)
	}
	s.end()
	s.verify()
	s.fsck()
	s.endNodes()
}

func startStorm(t *testing.T, nodes, spares int, lasts time.Duration) *storm {
	t.Helper()
	c := start(t, cluster.Options{Nodes: nodes + spares, Rate: stormRate, Manual: true, Patience: 3})
	s := &storm{t: t, c: c, seed: *stormSeed, sizeMax: size[int64](16<<20, 64<<20), over: make(chan struct{}),
		began:  time.Now(),
		shared: &shared{attempts: map[string][]attempt{}}, open: make(chan struct{}), busy: map[*writer]bool{},
		members: map[int]bool{},
		struck:  map[int]time.Time{}}
	if lasts >= 3*time.Minute {
		s.sizeMax = 64 << 20
	}
	t.Cleanup(s.release)
	for i, n := range c.Nodes {
		if i < stormDisks {
			ownDisk(t, n, diskBytes+int64(lasts.Seconds())*stormWriters*writerPerSec*2)
		}
		if i >= nodes {
			continue
		}
		if i == 0 {
			n.Init()
		} else {
			n.Join()
		}
		n.Start()
		s.members[i] = true
	}
	c.AwaitUp(c.Nodes[:nodes]...)
	first := c.Nodes[0]
	must(t, os.Mkdir(first.Path("probe"), 0o755))
	must(t, os.Mkdir(first.Path("shared"), 0o755))
	for i := range stormWriters {
		must(t, os.Mkdir(first.Path(fmt.Sprintf("w%d", i+1)), 0o755))
	}
	first.MustCLI("policy", first.Path("w3"), "--copies", "3")
	c.AwaitAgreement(time.Minute)
	close(s.open)
	s.began = time.Now()
	s.startWriters(nodes)
	return s
}

func (s *storm) startWriters(nodes int) {
	var running sync.WaitGroup
	for i := range stormWriters {
		w := &writer{s: s, id: i + 1, rand: rand.New(rand.NewPCG(s.seed, uint64(i+1))), home: s.c.Nodes[(i+1)%nodes]}
		s.writers = append(s.writers, w)
		running.Go(w.run)
	}
	done := make(chan struct{})
	go func() {
		running.Wait()
		close(done)
	}()
	s.t.Cleanup(func() { // the nodes are dead by then
		s.endWriters()
		<-done
	})
}

// endWriters makes them begin nothing new.
func (s *storm) endWriters() {
	if !s.isOver() {
		close(s.over)
	}
}

func (s *storm) isOver() bool {
	select {
	case <-s.over:
		return true
	default:
		return false
	}
}

// enter waits until writers may begin a change; false when the storm is over.
func (s *storm) enter(w *writer) bool {
	for {
		s.mu.Lock()
		open := s.open
		select {
		case <-open:
			s.busy[w] = true
			s.mu.Unlock()
			return true
		default:
		}
		s.mu.Unlock()
		select {
		case <-open:
		case <-s.over:
			return false
		}
	}
}

func (s *storm) leave(w *writer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.busy, w)
}

// pause keeps writers from beginning a change. It waits for changes under way, except at the given nodes, for no longer
// than limit.
func (s *storm) pause(limit time.Duration, but ...int) {
	s.mu.Lock()
	select {
	case <-s.open:
		s.open = make(chan struct{})
	default:
	}
	s.mu.Unlock()
	for deadline := time.Now().Add(limit); time.Now().Before(deadline) && s.anyBusy(but...); {
		wait(20 * time.Millisecond)
	}
}

func (s *storm) anyBusy(but ...int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.busy {
		excused := false
		for _, i := range but {
			excused = excused || w.home.Index == i
		}
		if !excused {
			return true
		}
	}
	return false
}

func (s *storm) resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.open:
	default:
		close(s.open)
	}
}

// leaving reports whether a node is no member, or is about to leave.
func (s *storm) leaving(n *cluster.Node) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.members[n.Index]
}

func (s *storm) setMember(i int, is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.members[i] = is
}

// anyNode draws a member.
func (s *storm) anyNode(r *rand.Rand) *cluster.Node {
	all := s.all()
	return all[r.IntN(len(all))]
}

// all are the members.
func (s *storm) all() (out []*cluster.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, n := range s.c.Nodes {
		if s.members[i] {
			out = append(out, n)
		}
	}
	return out
}

// counts reports whether a close at home has to be seen at a reader: home's log has it up, and neither owed nor behind.
func (s *storm) counts(home, reader *cluster.Node) bool {
	st, err := statusOf(home)
	if err != nil || st.State != "serving" {
		return false
	}
	row := rowOf(st, reader)
	return row != nil && row.State == "up" && row.OwedCount == 0 && row.BehindReason == ""
}

// isStruck reports whether a fault of a node goes on, or ended after some time.
func (s *storm) isStruck(n *cluster.Node, since time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	until, ok := s.struck[n.Index]
	return ok && until.After(since)
}

func (s *storm) note(format string, args ...any) {
	s.t.Helper()
	if *stormWrites {
		s.t.Logf("%7.1f s: "+format, append([]any{time.Since(s.began).Seconds()}, args...)...)
	}
}

func (s *storm) say(format string, args ...any) {
	s.t.Helper()
	s.t.Logf("%7.1f s: "+format, append([]any{time.Since(s.began).Seconds()}, args...)...)
}

// failure prints a change that failed. Where no fault was under way, none may fail.
func (s *storm) failure(w *writer, what, path string, began time.Time, err error) {
	s.mu.Lock()
	any := s.last.After(began)
	s.mu.Unlock()
	where := "beside a fault"
	if s.isStruck(w.home, began) {
		where = "in a fault"
	}
	s.say("writer %d at %s: %s %s failed %s after %v: %v", w.id, w.home.Name(), what, path, where,
		time.Since(began).Round(time.Millisecond), err)
	if !any {
		s.t.Errorf("writer %d at %s: %s %s failed without a fault: %v", w.id, w.home.Name(), what, path, err)
	}
}
