package replicate

import (
	"errors"
	"log/slog"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
)

// Config is what a Replicator works with. All fields are required, except the ones that say so.
type Config struct {
	// Self is this node's number and current incarnation.
	Self func() meta.Lease
	// Names is the applied state of this node.
	Names meta.Reader
	Log   Log
	Peers Peers
	// Groups makes multicast groups; see Multicast.
	Groups Groups
	Store  Store
	// IsLeader reports whether this node hands out catch-up work. Several at once do no harm.
	IsLeader func() bool
	// Clock is the machine's when nil.
	Clock Clock
	// Logger may be nil.
	Logger *slog.Logger
	// Point is called at labelled points of a write with one of the Point constants, for tests that end the
	// process there; it may be nil. It is called from several goroutines.
	Point func(name string)
	// Tuning changes bounds; zero fields have defaults.
	Tuning Tuning
}

// Tuning holds bounds in time and memory. Zero means the default.
type Tuning struct {
	Silent       time.Duration // a member that answers nothing while others do is ejected after this; 2 s
	Stalled      time.Duration // a member without progress while others have some; 1.5 s
	Stuck        time.Duration // a session that nobody moves ends after this; 25 s
	SlowFor      time.Duration // paces of members are compared over this; 10 s
	SlowPart     float64       // a member below the others' median pace divided by this is left out; 8
	DeleteAfter  time.Duration // retired contents are deleted after this; 10 min
	CatchUpEvery time.Duration // the leader looks for owed contents this often, and when notified; 1 s
	ReleaseEvery time.Duration // a node that stood in for another offers what it holds to be let go this often; 1 min
	MendEvery    time.Duration // what could not be mended, or committed, when it was found is tried again; 5 s
	GroupAwaited time.Duration // a small content waits so long for a group that is being made, where that pays; 250 ms
	// KeepFenced is how long the blocks of a session that was fenced are kept. A root that lives has its next
	// incarnation and announces the next session of its push within seconds; its close ends 30 s after progress
	// stopped. 2 min.
	KeepFenced time.Duration
	CacheBytes int64 // memory for blocks read from other nodes; 64 MiB
}

func (t Tuning) withDefaults() Tuning {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&t.Silent, 2*time.Second)
	def(&t.Stalled, 1500*time.Millisecond)
	def(&t.Stuck, 25*time.Second)
	def(&t.SlowFor, 10*time.Second)
	def(&t.DeleteAfter, 10*time.Minute)
	def(&t.CatchUpEvery, time.Second)
	def(&t.ReleaseEvery, time.Minute)
	def(&t.MendEvery, 5*time.Second)
	def(&t.GroupAwaited, 250*time.Millisecond)
	def(&t.KeepFenced, 2*time.Minute)
	if t.SlowPart == 0 {
		t.SlowPart = 8
	}
	if t.CacheBytes == 0 {
		t.CacheBytes = 64 << 20
	}
	return t
}

// The points of a write at which Config.Point is called.
const (
	PointVote    = "vote"    // member: stored, before the vote is sent
	PointPropose = "propose" // writer: votes are gathered, before the publish is proposed
	PointCommit  = "commit"  // writer: the publish is in the log
	PointApply   = "apply"   // member: before a decision of the log is carried out in the store
	PointVisible = "visible" // writer: before the barrier
	PointReply   = "reply"   // writer: before Publish returns
)

func (c Config) withDefaults() (Config, error) {
	if c.Self == nil || c.Names == nil || c.Log == nil || c.Peers == nil || c.Groups == nil || c.Store == nil ||
		c.IsLeader == nil {
		return c, errors.New("replicate: config: a required field is not set")
	}
	if c.Clock == nil {
		c.Clock = SystemClock()
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Point == nil {
		c.Point = func(string) {}
	}
	c.Tuning = c.Tuning.withDefaults()
	return c, nil
}
