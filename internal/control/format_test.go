package control

import (
	"crypto/tls"
	"errors"
	"net"
	"sync/atomic"
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/format"
)

func end(used, oldest, newest uint64) func() format.End {
	return func() format.End {
		return format.End{Used: used, Known: format.Range{Oldest: oldest, Newest: newest}}
	}
}

// Two nodes talk if the programs of both know the later one of the formats that they use, whatever else they know.
func TestProgramsThatKnowOneFormatTalk(t *testing.T) {
	f := newFabricated(t)
	for name, c := range map[string]struct {
		caller, called func() format.End
		want           error
	}{
		"one release":                       {end(1, 1, 1), end(1, 1, 1), ErrNoHandler},
		"neighbours":                        {end(1, 1, 1), end(1, 1, 2), ErrNoHandler},
		"neighbours, turned":                {end(1, 1, 2), end(1, 1, 1), ErrNoHandler},
		"the caller has not applied all":    {end(1, 1, 2), end(2, 2, 3), ErrNoHandler},
		"the called one has not":            {end(2, 2, 3), end(1, 1, 2), ErrNoHandler},
		"the caller knows nothing yet":      {end(0, 1, 2), end(2, 1, 2), ErrNoHandler},
		"the caller says nothing":           {func() format.End { return format.End{} }, end(1, 1, 2), ErrNoHandler},
		"the caller says nothing, too late": {func() format.End { return format.End{} }, end(2, 1, 2), format.ErrUnknown},
		"the caller is too old":             {end(1, 1, 1), end(2, 1, 2), format.ErrUnknown},
		"a newcomer is too old":             {end(0, 1, 1), end(2, 1, 2), format.ErrUnknown},
		"the caller is too new":             {end(0, 2, 3), end(1, 1, 2), format.ErrUnknown},
		"the called one is too old":         {end(2, 1, 2), end(1, 1, 1), format.ErrPeer},
		"the called one is too new":         {end(1, 1, 2), end(0, 2, 3), format.ErrPeer},
	} {
		port := listen(t, PortConfig{Identity: f.node(1), Server: NewServer(quiet()), Format: c.called})
		peers := peersTo(t, f.node(2), port.Addr().String(), func(cfg *PeersConfig) { cfg.Format = c.caller })
		_, err := peers.Call(bounded(t), 1, kindTest, nil)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if errors.Is(err, format.ErrUnknown) == errors.Is(err, format.ErrPeer) && !errors.Is(err, ErrNoHandler) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A machine whose program is too old is refused before its token is used, and what it knows is for the log to keep.
func TestJoinOfAnOldProgram(t *testing.T) {
	f := found(t)
	f.mu.Lock()
	f.end = end(2, 1, 2)()
	f.mu.Unlock()
	cfg := f.wish(f.token(""), "node2")
	cfg.Version = "v7"
	if _, err := Join(bounded(t), cfg); !errors.Is(err, format.ErrUnknown) || len(f.asked) > 0 {
		t.Errorf("of an old program: %v, the log is asked for %+v", err, f.asked)
	}
	cfg.Formats = format.Range{Oldest: 1, Newest: 2}
	if _, err := Join(bounded(t), cfg); err != nil {
		t.Errorf("of a new program, with the same token: %v", err)
	}
	if len(f.asked) != 1 || f.asked[0].Formats != cfg.Formats || f.asked[0].Version != "v7" {
		t.Errorf("the log is asked for %+v", f.asked)
	}
}

// Each end looks for itself: the other may not, or the format may be raised while they greet each other.
func TestEachEndLooksAtTheFormat(t *testing.T) {
	f := newFabricated(t)
	old := end(0, 1, 1)()
	port := listen(t, PortConfig{Identity: f.node(1), Server: NewServer(quiet()), Format: end(2, 1, 2)})
	conn := tls.Client(dialPort(t, port), f.node(2).ClientConfig(1, ProtocolPeer))
	if err := conn.HandshakeContext(bounded(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(appendHello(nil, saying(0, old))); err != nil {
		t.Fatal(err)
	}
	if _, err := readGreeting(conn); !errors.Is(err, format.ErrUnknown) {
		t.Errorf("a caller that does not look: %v", err)
	}
	var asked atomic.Int32
	raised := func() format.End {
		return format.End{Used: uint64(asked.Add(1)), Known: format.Range{Oldest: 1, Newest: 2}}
	}
	port = listen(t, PortConfig{Identity: f.node(1), Server: NewServer(quiet()), Format: raised})
	_, err := dialTLS(bounded(t), (&net.Dialer{}).DialContext, port.Addr().String(),
		f.node(2).ClientConfig(1, ProtocolPeer), saying(0, old))
	if !errors.Is(err, format.ErrUnknown) || asked.Load() != 2 {
		t.Errorf("the format is raised meanwhile: %v, asked %d times", err, asked.Load())
	}
}
