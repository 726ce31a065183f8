package node

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/internal/control"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/credentials"
	"github.com/rdmcfs/rdmcfs/internal/format"
	"github.com/rdmcfs/rdmcfs/meta"
)

// When most voters are lost for good, nobody can change anything any more. One of the remaining nodes then begins a new
// generation of the cluster with what it has, and the others follow it. All of that is done to data directories whose
// daemons do not run. node.json says last that a recovery is done, and first that a state is given up: a recovery that
// was cut short is run again.

// generationStep bounds by how much a recovery raises the generation.
const generationStep = 1 << 16

// ErrHalfRecovered is returned by the start of a node whose recovery was cut short.
var ErrHalfRecovered = errors.New("a recovery of this node was cut short: run 'rdmcfs recover' again as before")

// RecoverConfig says how a node goes on.
type RecoverConfig struct {
	DataDir string
	// Generation is the one to follow, and Lead the name or number of the node that has begun it. Where they are not
	// given this node begins one itself.
	Generation uint32
	Lead       string
	// Force begins a generation even if the voters that answer are a majority with this node.
	Force bool
	Host  Host
}

// stopped is a data directory whose daemon does not run.
type stopped struct {
	dir    dataDir
	id     identity
	host   Host
	claims closer
}

func openStopped(dir string, h Host) (*stopped, error) {
	s := &stopped{dir: dataDir(dir), host: h}
	var err error
	if s.id, err = s.dir.load(h.formats()); err != nil {
		return nil, err
	}
	lock, err := s.dir.lock()
	if err != nil {
		return nil, err
	}
	s.claims.add(lock.Close)
	return s, nil
}

// raised notes the format of the state that is about to be stored.
func (s *stopped) raised(number uint64) error {
	s.id.Format = max(s.id.Format, number)
	return s.dir.raise(number, s.host.formats())
}

// openState opens the state. A damaged one can't be what a cluster goes on with.
func (s *stopped) openState() (*meta.DB, error) {
	db, err := s.host.openState(s.dir.path("state"), meta.Options{Formats: s.host.formats(), Raised: s.raised})
	if err != nil {
		return nil, fmt.Errorf("node: recover: %w", err)
	}
	return db, nil
}

// log reads what the log has beyond the state.
func (s *stopped) log(db *meta.DB) (consensus.Remains, error) {
	cfg := consensus.Config{Dir: s.dir.path("raft"), FS: s.host.Log, Identity: s.id.raft()}
	return consensus.ReadRemains(cfg, db.Index())
}

// Remaining returns what a node that does not run has, so that one can be chosen. It changes nothing.
func Remaining(dir string, h Host) (out admin.Remaining, err error) {
	s, err := openStopped(dir, h)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, s.claims.Close()) }()
	if s.id.Recovering {
		return out, fmt.Errorf("node: %w", ErrHalfRecovered)
	}
	db, err := s.openState()
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if db.Generation() != s.id.Generation {
		return out, fmt.Errorf("node: %w", ErrHalfRecovered)
	}
	log, err := s.log(db)
	if err != nil {
		return out, err
	}
	out = admin.Remaining{Node: uint32(s.id.Node), Name: s.id.Name, Generation: s.id.Generation,
		Index: max(log.Last, db.Index()), Votes: log.Member}
	if out.Votes {
		out.Term = log.Term // others note it only now and then
	}
	out.Files, out.Bytes = db.StatFS()
	at := db.Time()
	for _, e := range log.Entries {
		at = max(at, e.Time)
	}
	if at > 0 {
		out.Time = time.Unix(0, at)
	}
	_, noKey := s.dir.tls().LoadAuthority()
	out.Signs = noKey == nil
	nodes, err := db.Nodes()
	for _, n := range nodes {
		out.Nodes = append(out.Nodes, admin.RemainingNode{ID: uint32(n.ID), Name: n.Name, Addr: n.Addr, Voter: n.Voter})
	}
	return out, err
}

// Recover makes a stopped node begin a new generation of the cluster, in which it votes alone, or follow the one that
// another node has begun. It returns the generation. It may be repeated when it was cut short.
func Recover(ctx context.Context, cfg RecoverConfig) (generation uint32, err error) {
	s, err := openStopped(cfg.DataDir, cfg.Host)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.claims.Close()) }()
	if cfg.Generation == 0 {
		err = s.lead(ctx, cfg.Force)
	} else {
		err = s.follow(ctx, cfg.Lead, cfg.Generation)
	}
	return s.id.Generation, err
}

// lead applies all that the log has and begins a generation.
func (s *stopped) lead(ctx context.Context, force bool) (err error) {
	if s.id.Recovering {
		return fmt.Errorf("node: %w", ErrHalfRecovered)
	}
	db, err := s.openState()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if db.Generation() < s.id.Generation {
		return fmt.Errorf("node: recover: the state is of generation %d, and this node of %d: restore one of them "+
			"from a backup", db.Generation(), s.id.Generation)
	}
	if db.Generation() == s.id.Generation {
		if err := s.majorityLost(ctx, db); err != nil && !force {
			return err
		}
		if err := s.begin(db); err != nil {
			return err
		}
	}
	s.id.Left, s.id.Generation = append(s.id.Left, s.id.Generation), db.Generation()
	return s.goOn(s.alone(db))
}

// alone is how a log begins after a state with this node as the only voter.
func (s *stopped) alone(db *meta.DB) consensus.CreateOptions {
	return consensus.CreateOptions{Voters: []consensus.ID{raftID(s.id.Node, s.id.store())}, Index: db.Index(),
		Time: db.Time()}
}

// dial asks a node whether it is there, as a node of a generation.
func (s *stopped) dial(ctx context.Context, node meta.NodeID, addr string, generation uint32) error {
	creds, err := s.dir.tls().LoadIdentity(time.Now)
	if err != nil {
		return err
	}
	peers := control.NewPeers(control.PeersConfig{Identity: creds, Generation: generation,
		Format: func() format.End { return format.End{Known: s.host.formats()} }, Dial: s.host.Dial,
		Resolve: func(uint32) (string, bool) { return addr, addr != "" }})
	conn, err := peers.DialRaft(ctx, uint32(node))
	if err == nil {
		conn.Close()
	}
	return errors.Join(err, peers.Close(), ctx.Err())
}

// majorityLost returns an error if the voters that answer are, with this node, enough to go on as they are, or if a
// node is of another generation. A node that began a generation beside them would split the cluster.
func (s *stopped) majorityLost(ctx context.Context, db *meta.DB) error {
	nodes, err := db.Nodes()
	if err != nil {
		return err
	}
	if _, err := s.dir.tls().LoadIdentity(time.Now); err != nil {
		return err // nobody could be asked
	}
	answers := make([]error, len(nodes))
	var asked sync.WaitGroup
	for i, n := range nodes {
		if n.ID != s.id.Node {
			asked.Go(func() { answers[i] = s.dial(ctx, n.ID, n.Addr, s.id.Generation) })
		}
	}
	asked.Wait()
	voters, there := 0, []string{}
	for i, n := range nodes {
		if errors.Is(answers[i], control.ErrGeneration) {
			return admin.Errorf(admin.CodeInvalid, "%s is of another generation: one has begun already, and this node can "+
				"follow it with --follow. --force begins one more", n.Name)
		}
		if !n.Voter {
			continue
		}
		voters++
		switch {
		case n.ID == s.id.Node:
			there = append(there, "this node")
		case answers[i] == nil:
			there = append(there, n.Name)
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if len(there) <= voters/2 {
		return nil
	}
	return admin.Errorf(admin.CodeInvalid, "%d of the %d voters are not lost (%s): start this node, and they go on "+
		"together. --force begins another generation beside them; what they change is lost then",
		len(there), voters, strings.Join(there, ", "))
}

func (s *stopped) begin(db *meta.DB) error {
	log, err := s.log(db)
	if err != nil {
		return fmt.Errorf("node: recover: %w", err)
	}
	for _, e := range log.Entries {
		if _, _, err := db.Apply(e.Index, e.Time, e.Data); err != nil {
			return fmt.Errorf("node: recover: apply entry %d: %w", e.Index, err)
		}
	}
	// a step of its own for each: if two nodes begin one by mistake, their generations refuse each other
	generation := s.id.Generation + 1 + rand.Uint32N(generationStep)
	if err := db.Recover(max(log.Last, db.Index())+1, generation, s.id.Node); err != nil {
		return err
	}
	_, err = db.Sync()
	return err
}

// follow gives up this node's state, and its log, for those of the node that leads a generation. Its contents and its
// unpublished files stay. node.json says that before, and that it is done.
func (s *stopped) follow(ctx context.Context, lead string, generation uint32) error {
	id, at, empty, err := s.find(lead)
	if err != nil {
		return err
	}
	if id == s.id.Node {
		return admin.Errorf(admin.CodeInvalid, "%s is this node itself: it can't follow itself", lead)
	}
	if err := s.mayFollow(ctx, id, at.Addr, generation, empty); err != nil {
		return err
	}
	s.id.Recovering = true
	if err := s.dir.save(s.id); err != nil {
		return err
	}
	if err := os.RemoveAll(s.dir.path("state")); err != nil {
		return fmt.Errorf("node: recover: %w", err)
	}
	db, err := s.openState()
	if err != nil {
		return err
	}
	db.Distrust(db.State(), fmt.Errorf("the cluster was recovered: node %d leads generation %d", id, generation))
	if err := db.Close(); err != nil {
		return err
	}
	if db, err := s.openState(); !errors.Is(err, meta.ErrDamaged) { // the mark was not written
		if err == nil {
			err = errors.Join(errors.New("node: recover: the state can't be given up: see whether the disk is full"), db.Close())
		}
		return err
	}
	s.id.Generation, s.id.Recovering = generation, false
	return s.goOn(consensus.CreateOptions{Voters: []consensus.ID{raftID(id, decodeID(at.Store))}})
}

// mayFollow refuses a generation in which this node is or has been, unless it has nothing of that generation yet: it
// would forget what it has promised there. It also refuses a generation to which the node that should lead it does not
// belong, if that node runs.
func (s *stopped) mayFollow(ctx context.Context, lead meta.NodeID, addr string, generation uint32, empty bool) error {
	cfg := consensus.Config{Dir: s.dir.path("raft"), FS: s.host.Log, Identity: s.id.raft()}
	log, err := consensus.ReadRemains(cfg, 0)
	fresh := empty && err == nil && !log.Promised
	if !fresh && !slices.Contains(s.id.Left, s.id.Generation) {
		s.id.Left = append(s.id.Left, s.id.Generation)
	}
	if slices.Contains(s.id.Left, generation) {
		return admin.Errorf(admin.CodeInvalid, "this node is or was of generation %d already, and can't follow anybody "+
			"there: give the number that 'rdmcfs recover --begin' has printed", generation)
	}
	switch err := s.dial(ctx, lead, addr, generation); {
	case errors.Is(err, control.ErrGeneration):
		return admin.Errorf(admin.CodeInvalid, "node %d runs, and is not of generation %d: give the number that 'rdmcfs "+
			"recover --begin' has printed there", lead, generation)
	case errors.Is(err, credentials.ErrEvicted):
		return admin.Errorf(admin.CodeInvalid, "the cluster of generation %d has evicted this node: join it again with an "+
			"empty data directory", generation)
	}
	return ctx.Err()
}

// find looks a node up, by the state or, after a recovery that was cut short or had a wrong generation, by the peers
// file. empty says that there is no state that could be lost.
func (s *stopped) find(lead string) (id meta.NodeID, at peerAddr, empty bool, err error) {
	number, notNumber := strconv.ParseUint(lead, 10, 32)
	db, err := s.openState()
	if err == nil {
		nodes, err := db.Nodes()
		if err := errors.Join(err, db.Close()); err != nil {
			return 0, at, false, err
		}
		for _, n := range nodes {
			if n.Name == lead || notNumber == nil && uint64(n.ID) == number {
				return n.ID, peerAddr{Addr: n.Addr, Store: fmt.Sprintf("%x", n.Store)}, false, nil
			}
		}
	} else if !errors.Is(err, meta.ErrDamaged) && !s.id.Recovering {
		return 0, at, false, err
	}
	if peer, ok := s.dir.loadPeers(s.id.Peers)[meta.NodeID(number)]; ok && notNumber == nil {
		return meta.NodeID(number), peer, err != nil, nil
	}
	return 0, at, false, admin.Errorf(admin.CodeNotFound, "this node knows no node %s: give the number that "+
		"'rdmcfs recover' has printed on it", lead)
}

// goOn replaces the log, and last of all notes that this node belongs to the new generation.
func (s *stopped) goOn(opts consensus.CreateOptions) error {
	if err := s.dir.remakeLog(s.host, s.id, opts); err != nil {
		return err
	}
	return s.dir.save(s.id)
}

func (d dataDir) remakeLog(h Host, id identity, opts consensus.CreateOptions) error {
	if err := os.RemoveAll(d.path("raft")); err != nil {
		return fmt.Errorf("node: recover: %w", err)
	}
	return d.createLog(h, id, opts)
}
