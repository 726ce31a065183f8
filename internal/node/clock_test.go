package node

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/credentials"
	"github.com/rdmcfs/rdmcfs/internal/format"
)

const day = 24 * time.Hour

// clocked is a cluster of whole nodes without mounts in this process, each with a clock that can be wrong.
type clocked struct {
	t     *testing.T
	dir   string
	nodes map[string]*clockedNode
}

type clockedNode struct {
	dir    string
	ahead  atomic.Int64
	knows  format.Range // of the next start; the zero value is format.Known
	admin  *admin.Client
	cancel context.CancelFunc
	done   sync.WaitGroup
	err    error
}

// freePort is an address that nobody listens at, and that no connection of another test takes meanwhile: those have
// another address.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.77.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func (c *clocked) add(name string, make func(dir, listen string) error) *clockedNode {
	c.t.Helper()
	n := &clockedNode{dir: filepath.Join(c.dir, name)}
	c.nodes[name] = n
	if err := make(n.dir, freePort(c.t)); err != nil {
		c.t.Fatal(err)
	}
	n.admin = admin.NewClient(admin.SocketPath(n.dir))
	c.start(name)
	return n
}

// join makes a node of a token that another node gives.
func (c *clocked) join(name, from string) *clockedNode {
	c.t.Helper()
	token, err := c.nodes[from].admin.Token(c.t.Context(), admin.TokenRequest{TTL: time.Hour})
	if err != nil {
		c.t.Fatalf("token of %s: %v", from, err)
	}
	if by := time.Until(token.Expires) - time.Hour; by.Abs() > 5*time.Minute {
		c.t.Errorf("%s gives a token that ends %v later than it should", from, by)
	}
	return c.add(name, func(dir, listen string) error {
		_, err := Join(c.t.Context(), JoinConfig{DataDir: dir, Seed: token.Listen, Token: token.Token, Listen: listen,
			Name: name})
		return err
	})
}

func (c *clocked) start(name string) {
	n := c.nodes[name]
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel = cancel
	n.done.Go(func() {
		n.err = Run(ctx, Config{DataDir: n.dir, Version: "test", Host: Host{Formats: n.knows, Wall: func() time.Time {
			return time.Now().Add(time.Duration(n.ahead.Load()))
		}}})
	})
}

func (c *clocked) stop(name string) {
	n := c.nodes[name]
	n.cancel()
	n.done.Wait()
	if n.err != nil {
		c.t.Errorf("%s ended: %v", name, n.err)
	}
}

// until waits for a node's status to be as wanted.
func (c *clocked) until(name, what string, ok func(admin.Status) bool) admin.Status {
	c.t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	late := time.After(2 * time.Minute)
	for {
		st, err := c.nodes[name].admin.Status(c.t.Context())
		if err == nil && ok(st) {
			return st
		}
		select {
		case <-late:
			c.t.Fatalf("%s: not %s: %v\n%+v", name, what, err, st)
		case <-tick.C:
		}
	}
}

func serving(st admin.Status) bool { return st.State == "serving" && st.Leader != 0 }

// names waits until a node's status names the clock of another, and no other clock.
func (c *clocked) names(at, wrong string, by time.Duration) {
	c.t.Helper()
	st := c.until(at, "naming the clock of "+wrong, func(st admin.Status) bool {
		for _, n := range st.Nodes {
			if (n.ClockAhead != 0) != (n.Name == wrong) || n.Name == wrong && (n.ClockAhead-by).Abs() > time.Minute {
				return false
			}
		}
		return true
	})
	if text := strings.Join(st.Warnings, "\n"); strings.Contains(text, "the clock of "+wrong+" is ") != (wrong != "") {
		c.t.Errorf("%s warns: %s", at, text)
	}
}

// The clock of the leader is 40 days ahead while it leads, then for a start; then two years behind. Members that
// start meanwhile are let in, tokens work and end when they should, certificates last as they should, each node names
// that clock and no other; and once it is right nothing is left.
func TestWrongClockLeavesTheClusterWhole(t *testing.T) {
	t.Parallel() // it waits more than it works
	c := &clocked{t: t, dir: t.TempDir(), nodes: map[string]*clockedNode{}}
	t.Cleanup(func() {
		for name := range c.nodes {
			c.stop(name)
		}
	})
	first := c.add("n1", func(dir, listen string) error {
		_, err := Init(InitConfig{DataDir: dir, Listen: listen, Name: "n1"})
		return err
	})
	c.until("n1", "serving", serving)
	c.join("n2", "n1")
	c.until("n2", "serving", serving)
	c.join("n3", "n1")
	c.until("n1", "one of three voters", func(st admin.Status) bool { return len(st.Voters) == 3 && serving(st) })

	for i, by := range []time.Duration{40 * day, -730 * day} {
		first.ahead.Store(int64(by))
		for _, name := range []string{"n2", "n1"} {
			c.stop(name)
			c.start(name)
			c.until(name, "serving", serving)
		}
		for _, name := range []string{"n1", "n2", "n3"} {
			c.names(name, "n1", by)
		}
		name := fmt.Sprint("n", 4+i)
		c.join(name, "n1")
		c.until(name, "serving", serving)
		id, err := dataDir(c.nodes[name].dir).tls().LoadIdentity(time.Now)
		if err != nil {
			t.Fatal(err)
		}
		if left := time.Until(id.Expires()) - credentials.LeafValidity; left.Abs() > time.Hour {
			t.Errorf("the certificate of %s lasts %v too long", name, left)
		}
		first.ahead.Store(0)
		c.names("n2", "", 0)
		token, err := first.admin.Token(t.Context(), admin.TokenRequest{TTL: time.Hour})
		if err != nil || (time.Until(token.Expires)-time.Hour).Abs() > 5*time.Minute {
			t.Errorf("afterwards a token ends at %v: %v", token.Expires, err)
		}
	}
}

// Nobody is named when two clocks differ and no third shows which is right.
func TestClockWarnings(t *testing.T) {
	st := admin.Status{Nodes: []admin.Node{{ID: 1, Name: "a"}, {ID: 2, Name: "b", ClockAhead: -10 * day}}}
	got := clockWarnings(st, consensus.ClockStatus{Sure: true, First: 2 << 32, Last: 1 << 32, Apart: 10 * day})
	if len(got) != 1 || !strings.Contains(got[0], "the clock of b is 240h0m0s behind") {
		t.Errorf("%q", got)
	}
	st.Nodes[1].ClockAhead = 0
	got = clockWarnings(st, consensus.ClockStatus{First: 2 << 32, Last: 1 << 32, Apart: 10 * day})
	if len(got) != 1 || !strings.Contains(got[0], "the clock of b is 240h0m0s behind that of a") {
		t.Errorf("%q", got)
	}
	if got = clockWarnings(st, consensus.ClockStatus{First: 2 << 32, Last: 1 << 32, Apart: time.Second}); len(got) > 0 {
		t.Errorf("%q", got)
	}
}

// The only node of a cluster starts with a clock that is ten days ahead, and later with a right one. Tokens end when
// they should all the time, status says that the clock is not believed yet, and nothing is left of it.
func TestLoneNodeWithAWrongClock(t *testing.T) {
	c := &clocked{t: t, dir: t.TempDir(), nodes: map[string]*clockedNode{}}
	t.Cleanup(func() { c.stop("n1") })
	n := c.add("n1", func(dir, listen string) error {
		_, err := Init(InitConfig{DataDir: dir, Listen: listen, Name: "n1"})
		return err
	})
	c.until("n1", "serving", serving)
	for _, ahead := range []time.Duration{0, 10 * day, 0} {
		c.stop("n1")
		n.ahead.Store(int64(ahead))
		c.start("n1")
		st := c.until("n1", "serving", func(st admin.Status) bool {
			text := strings.Join(st.Warnings, "\n")
			return serving(st) && strings.Contains(text, "no other clock and no time service confirms it") == (ahead != 0)
		})
		token, err := n.admin.Token(t.Context(), admin.TokenRequest{TTL: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		if by := time.Until(token.Expires) - time.Hour; by.Abs() > 5*time.Minute {
			t.Errorf("clock ahead by %v: a token ends %v late; %v", ahead, by, st.Warnings)
		}
	}
}

// The clocks of both nodes are wrong by more than a year, while they run and for a start, and then right again.
// Whatever their certificates say then, both are let in by themselves, and a node that was off all the while is, too.
func TestTwoNodesWhoseClocksWereWrong(t *testing.T) {
	t.Parallel() // it waits more than it works
	for _, by := range []time.Duration{400 * day, -400 * day} {
		t.Run(by.String(), func(t *testing.T) {
			t.Parallel()
			c := &clocked{t: t, dir: t.TempDir(), nodes: map[string]*clockedNode{}}
			t.Cleanup(func() {
				for name := range c.nodes {
					c.stop(name)
				}
			})
			c.add("n1", func(dir, listen string) error {
				_, err := Init(InitConfig{DataDir: dir, Listen: listen, Name: "n1"})
				return err
			})
			c.until("n1", "serving", serving)
			c.join("n2", "n1")
			c.until("n2", "serving", serving)
			for _, ahead := range []time.Duration{by, 0} {
				for _, n := range c.nodes {
					n.ahead.Store(int64(ahead)) // while they run
				}
				for _, again := range [][]string{{"n2"}, {"n1"}, {"n1", "n2"}} {
					for _, name := range again {
						c.stop(name)
					}
					for _, name := range again {
						c.start(name)
					}
					began := time.Now()
					for _, name := range []string{"n1", "n2"} {
						c.until(name, "serving", func(st admin.Status) bool {
							up := 0
							for _, n := range st.Nodes {
								if n.State == "up" && n.Connected {
									up++
								}
							}
							return serving(st) && up == 2
						})
					}
					for _, name := range []string{"n1", "n2"} {
						id, err := dataDir(c.nodes[name].dir).tls().LoadIdentity(time.Now)
						if err != nil {
							t.Fatal(err)
						}
						t.Logf("clocks %v, %v started again: up after %v, certificate of %s ends in %v", ahead, again, time.Since(began),
							name, time.Until(id.Expires()))
					}
				}
			}
		})
	}
}
