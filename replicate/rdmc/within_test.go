package rdmc

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// ender makes the user's code of a group end the group, and its engine, from within.
type ender struct {
	t      *testing.T
	group  func() *Group
	engine *Engine
	once   sync.Once
	done   chan struct{}
}

func (e *ender) end() {
	e.once.Do(func() {
		if err := e.group().Close(context.Background()); !errors.Is(err, ErrWithin) {
			e.t.Errorf("Close from within: %v", err)
		}
		if err := e.engine.Close(); !errors.Is(err, ErrWithin) {
			e.t.Errorf("Close of the engine from within: %v", err)
		}
		e.group().Abort()
		close(e.done)
	})
}

// ReadBlock and WriteBlock are a Source and a Sink.
func (e *ender) ReadBlock(uint64, []byte) error  { e.end(); return nil }
func (e *ender) WriteBlock(uint64, []byte) error { e.end(); return nil }

// TestDSN_4_1_CallbacksEndTheirGroup: each kind of the user's code closes and aborts its group, and closes its engine.
// That is refused, or done without waiting, and all is over when the engines have been closed.
func TestDSN_4_1_CallbacksEndTheirGroup(t *testing.T) {
	const members = 3
	configure := map[string]func(cfg *GroupConfig, e *ender){
		"Incoming": func(cfg *GroupConfig, e *ender) {
			cfg.Incoming = func(uint64) (Sink, error) { e.end(); return discard{}, nil }
		},
		"Stored":    func(cfg *GroupConfig, e *ender) { cfg.Stored = func(*Transfer) { e.end() } },
		"Completed": func(cfg *GroupConfig, e *ender) { cfg.Completed = func(*Transfer) { e.end() } },
		"Small":     func(cfg *GroupConfig, e *ender) { cfg.Small = func(uint64, []byte) { e.end() } },
		"OnFailure": func(cfg *GroupConfig, e *ender) {
			cfg.OnFailure = func(error) { e.end() }
			cfg.Completed = func(*Transfer) { e.group().Fail(nil, errTest) }
		},
		"Sink": func(cfg *GroupConfig, e *ender) {
			cfg.Incoming = func(uint64) (Sink, error) { return e, nil }
		},
		"Source": func(*GroupConfig, *ender) {},
	}
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		for name, set := range configure {
			t.Run(name, func(t *testing.T) { endFromWithin(t, newCluster(t, devices(members)), name, set) })
		}
	})
}

func endFromWithin(t *testing.T, c *cluster, name string, set func(*GroupConfig, *ender)) {
	var groups []*Group
	var enders []*ender
	for rank, engine := range c.engines {
		e := &ender{t: t, group: func() *Group { return groups[rank] }, engine: engine, done: make(chan struct{})}
		cfg := GroupConfig{Number: 1, Members: make([]string, len(c.engines)), Rank: rank, BlockSize: 1000, Unannounced: true,
			SmallBytes:     100,
			SilenceTimeout: starved, Incoming: func(uint64) (Sink, error) { return discard{}, nil }}
		set(&cfg, e)
		g, err := engine.NewGroup(cfg)
		if err != nil {
			t.Fatal(err)
		}
		groups, enders = append(groups, g), append(enders, e)
	}
	connect(t, groups)
	var source Source = discard{}
	if name == "Source" {
		source = enders[0]
	}
	sendSmall(t, groups[0], []byte{1})
	if _, err := groups[0].Send(Outgoing{Size: 5500, Source: source}); err != nil && !errors.Is(err, ErrFailed) {
		t.Fatal(err)
	}
	awaitAny(t, enders)
	for rank, engine := range c.engines {
		if err := engine.Close(); err != nil {
			t.Errorf("engine of rank %d: %v", rank, err)
		}
		select {
		case <-groups[rank].ended:
		default:
			t.Errorf("rank %d: the engine is closed, and its group in use", rank)
		}
	}
}

// awaitAny waits until one of them has ended its group.
func awaitAny(t *testing.T, enders []*ender) {
	t.Helper()
	late := time.After(starved)
	select {
	case <-enders[0].done:
	case <-enders[1].done:
	case <-enders[2].done:
	case <-late:
		t.Fatal("no group was ended")
	}
}

// TestCallbackClosesItsGroup: with a ctx that ends, also the last callback closes its group well.
func TestCallbackClosesItsGroup(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		c := newCluster(t, devices(2))
		var groups []*Group
		ends := make(chan error, 2)
		for rank, engine := range c.engines {
			g, err := engine.NewGroup(GroupConfig{Number: 1, Members: make([]string, 2), Rank: rank, BlockSize: 1000,
				Unannounced:    true,
				SilenceTimeout: starved, Incoming: func(uint64) (Sink, error) { return discard{}, nil },
				Completed: func(*Transfer) { ends <- groups[rank].Close(testContext(t)) }})
			if err != nil {
				t.Fatal(err)
			}
			groups = append(groups, g)
		}
		connect(t, groups)
		if _, err := groups[0].Send(Outgoing{Size: 5500, Source: discard{}}); err != nil {
			t.Fatal(err)
		}
		for range groups {
			if err := <-ends; err != nil {
				t.Error(err)
			}
		}
		for _, g := range groups {
			<-g.ended
		}
	})
}

// TestWithin finds the goroutine that runs the user's code, however deep, and not a goroutine that was begun by it.
func TestWithin(t *testing.T) {
	var deep func(levels int) bool
	deep = func(levels int) bool {
		if levels == 0 {
			return within()
		}
		return deep(levels-1) && levels > 0
	}
	for _, levels := range []int{0, 1, 60, 61, 62, 63, 64, 65, 500} {
		if deep(levels) {
			t.Errorf("%d calls deep: taken for a callback", levels)
		}
		other := make(chan bool)
		userCode(func() {
			if !deep(levels) {
				t.Errorf("%d calls deep in a callback: not found", levels)
			}
			go func() { other <- within() }()
			if <-other {
				t.Error("a goroutine of a callback is taken for it")
			}
		})
	}
}
