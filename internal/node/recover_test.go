package node

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/format"
	"github.com/rdmcfs/rdmcfs/meta"
)

// remainingNode is a data directory whose node was one of three voters; the other two do not answer.
func remainingNode(t *testing.T) *stopped {
	t.Helper()
	dir := t.TempDir()
	cfg := InitConfig{DataDir: dir, Listen: "127.0.0.1:0", Advertise: "127.0.0.1:7400", Name: "n1"}
	if _, err := Init(cfg); err != nil {
		t.Fatal(err)
	}
	s, err := openStopped(dir, Host{})
	if err != nil {
		t.Fatal(err)
	}
	db, err := s.openState()
	if err != nil {
		t.Fatal(err)
	}
	do := func(op meta.Op) {
		res, _, err := db.Apply(db.Index()+1, int64(db.Index()+1), meta.EncodeEntry(meta.Entry{
			Generation: firstGeneration, Op: op}))
		if err != nil || res.Errno != 0 {
			t.Fatalf("%T: %+v, %v", op, res, err)
		}
	}
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := nobody.Addr().(*net.TCPAddr).Port
	if err := nobody.Close(); err != nil {
		t.Fatal(err)
	}
	for id := meta.NodeID(1); id <= 3; id++ {
		join := &meta.Join{Name: fmt.Sprintf("n%d", id), Addr: fmt.Sprintf("127.0.0.%d:%d", id, port)}
		if id > 1 {
			join.TokenHash = [32]byte{byte(id)}
			do(&meta.AddToken{Hash: join.TokenHash, Expires: 1 << 62})
		}
		do(join)
		store := [16]byte{byte(id)}
		if id == 1 {
			store = s.id.store()
		}
		do(&meta.Boot{Node: id, Store: store, Nonce: uint64(id)})
	}
	do(&meta.SetVoters{Voters: []meta.NodeID{1, 2, 3}})
	if _, err := db.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Close(), s.claims.Close()); err != nil {
		t.Fatal(err)
	}
	return s
}

// startError is what a start of the daemon says that is to fail.
func startError(t *testing.T, s *stopped) error {
	t.Helper()
	n := &node{cfg: Config{DataDir: string(s.dir)}, dir: s.dir, log: slog.New(slog.DiscardHandler)}
	id, err := s.dir.load(format.Known)
	if err != nil {
		t.Fatal(err)
	}
	n.id = id
	err = n.openState()
	if err == nil {
		return n.db.Close()
	}
	return err
}

// A recovery that was cut short after any of its steps is run again, and ends as if it had not been.
func TestRecoveryThatIsCutShort(t *testing.T) {
	for cut, when := range []string{"not at all", "after the state", "after the log"} {
		s := remainingNode(t)
		before, err := Remaining(string(s.dir), Host{})
		if err != nil || before.Generation != 1 || before.Index == 0 || !before.Signs || len(before.Nodes) != 3 {
			t.Fatalf("%s: %+v, %v", when, before, err)
		}
		if cut > 0 {
			db, err := s.openState()
			if err != nil {
				t.Fatal(err)
			}
			if err := s.begin(db); err != nil {
				t.Fatalf("%s: %v", when, err)
			}
			if cut == 2 {
				s.id.Generation = db.Generation()
				if err := s.dir.remakeLog(Host{}, s.id, s.alone(db)); err != nil {
					t.Fatalf("%s: %v", when, err)
				}
			}
			if err := db.Close(); err != nil {
				t.Fatalf("%s: %v", when, err)
			}
			if err := startError(t, s); !errors.Is(err, ErrHalfRecovered) {
				t.Errorf("%s: the daemon starts: %v", when, err)
			}
			if _, err := Remaining(string(s.dir), Host{}); !errors.Is(err, ErrHalfRecovered) {
				t.Errorf("%s: %v", when, err)
			}
		}
		generation, err := Recover(t.Context(), RecoverConfig{DataDir: string(s.dir)})
		if err != nil || generation < 2 {
			t.Fatalf("%s: generation %d, %v", when, generation, err)
		}
		after, err := Remaining(string(s.dir), Host{})
		if err != nil || after.Generation != generation || after.Index != before.Index+1 || after.Nodes[0].Voter != true ||
			after.Nodes[1].Voter || after.Nodes[2].Voter {
			t.Errorf("%s: %+v, %v", when, after, err)
		}
		if err := startError(t, s); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
}

// A recovery that would split the cluster, or that makes no sense, is refused, and changes nothing.
func TestRecoveryIsRefused(t *testing.T) {
	s := remainingNode(t)
	refused := func(want string, cfg RecoverConfig) {
		t.Helper()
		cfg.DataDir = string(s.dir)
		_, err := Recover(t.Context(), cfg)
		var said *admin.Error
		if !errors.As(err, &said) || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", cfg, err, want)
		}
		if left, err := Remaining(string(s.dir), Host{}); err != nil || left.Generation != 1 {
			t.Errorf("%+v changed something: %+v, %v", cfg, left, err)
		}
	}
	refused("knows no node 9", RecoverConfig{Lead: "9", Generation: 2})
	refused("generation 1 already", RecoverConfig{Lead: "n2", Generation: 1})
	refused("knows no node n9", RecoverConfig{Lead: "n9", Generation: 2})
	refused("this node itself", RecoverConfig{Lead: "n1", Generation: 2})
	db, err := s.openState()
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := db.Apply(db.Index()+1, 99, meta.EncodeEntry(meta.Entry{Generation: 1,
		Op: &meta.SetVoters{Voters: []meta.NodeID{1}}})); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	refused("1 of the 1 voters are not lost (this node)", RecoverConfig{})
	if generation, err := Recover(t.Context(), RecoverConfig{DataDir: string(s.dir), Force: true}); err != nil ||
		generation < 2 {
		t.Errorf("forced: %d, %v", generation, err)
	}
}

// A node that was made to follow a generation that never existed can be made to follow another one. Its state is gone
// by then.
func TestFollowAgain(t *testing.T) {
	s := remainingNode(t)
	f := &peerAddresses{self: s.id.Node, dir: s.dir, members: &members{}}
	f.members.current.Store(&book{nodes: map[meta.NodeID]meta.Node{
		2: {ID: 2, Addr: "127.0.0.1:1", Store: [16]byte{2}, State: meta.NodeUp}}})
	f.keep() // as the daemon does
	for _, c := range []RecoverConfig{
		{Lead: "n2", Generation: 7}, {Lead: "2", Generation: 3}, {Lead: "2", Generation: 3},
	} {
		c.DataDir = string(s.dir)
		if generation, err := Recover(t.Context(), c); err != nil || generation != c.Generation {
			t.Fatalf("%+v: %d, %v", c, generation, err)
		}
	}
	_, err := Recover(t.Context(), RecoverConfig{DataDir: string(s.dir)})
	if !errors.Is(err, meta.ErrDamaged) {
		t.Errorf("a generation begins with no state: %v", err)
	}
	_, err = Recover(t.Context(), RecoverConfig{DataDir: string(s.dir), Lead: "2", Generation: 1})
	if err == nil || !strings.Contains(err.Error(), "generation 1 already") {
		t.Errorf("it goes back to where it has promised: %v", err)
	}
}

// A node was to follow another one, and the power failed. It does not start, and it can follow in the end, whatever was
// removed.
func TestFollowThatIsCutShort(t *testing.T) {
	for _, removed := range []string{"", "state", "state/CURRENT", "state/state-1", "state/state-1/SYNCED", "raft"} {
		s := remainingNode(t)
		f := &peerAddresses{self: s.id.Node, dir: s.dir, members: &members{}}
		f.members.current.Store(&book{nodes: map[meta.NodeID]meta.Node{
			2: {ID: 2, Addr: "127.0.0.1:1", Store: [16]byte{2}, State: meta.NodeUp}}})
		f.keep()
		s.id.Left, s.id.Recovering = []uint32{1}, true
		if err := s.dir.save(s.id); err != nil {
			t.Fatal(err)
		}
		if removed != "" {
			if err := os.RemoveAll(s.dir.path(removed)); err != nil {
				t.Fatal(err)
			}
		}
		_, shown := Remaining(string(s.dir), Host{})
		_, begun := Recover(t.Context(), RecoverConfig{DataDir: string(s.dir)})
		for what, err := range map[string]error{"starts": startError(t, s), "shows": shown, "begins": begun} {
			if !errors.Is(err, ErrHalfRecovered) {
				t.Errorf("without %q it %s: %v", removed, what, err)
			}
		}
		generation, err := Recover(t.Context(), RecoverConfig{DataDir: string(s.dir), Lead: "2", Generation: 3})
		if err != nil || generation != 3 {
			t.Errorf("without %q: %d, %v", removed, generation, err)
		}
		if err := startError(t, s); err != nil {
			t.Errorf("without %q: %v", removed, err)
		}
	}
}
