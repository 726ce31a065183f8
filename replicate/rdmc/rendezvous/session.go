package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma/tcp"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// Errors of sessions that a caller can act on.
var (
	// ErrOut is returned at a member that is out of the session: the others go on without it.
	ErrOut = errors.New("rendezvous: this member is out of the session")
	// ErrRootLost is returned at a member when the root is gone, or the member is cut off. The session has ended.
	ErrRootLost = errors.New("rendezvous: the root is lost")
	// ErrNobodyLeft is returned at the root when all members are out.
	ErrNobodyLeft = errors.New("rendezvous: no member is left")
	// ErrEnded is returned when the session has ended for another reason, which its text tells.
	ErrEnded = errors.New("rendezvous: the session has ended")
)

// Bounds of Config.Detect.
const (
	DefaultDetect = 2 * time.Second
	MinDetect     = 100 * time.Millisecond
	MaxDetect     = 10 * time.Minute
)

// Config describes a session at one of its members.
type Config struct {
	// Rank is this member's place in the session; 0 is the root, which sends.
	Rank int
	// Room is where the root waits for the others, as host:port.
	Room string
	// Listen is this host's address for data, at which the others reach it; port 0 picks one. Empty means
	// 127.0.0.1:0. It is not used with Engine.
	Listen string
	// Engine carries the groups, and stays the caller's; nil makes one over TCP.
	Engine *rdmc.Engine

	// Members is how many take part, the root included. This and what follows up to Listener is for the root, which
	// tells the others.
	Members int
	// BlockSize is the bytes per block; 0 means rdmc.DefaultBlockSize.
	BlockSize int
	// Algorithm makes the schedules; 0 means schedule.BinomialPipeline, which also stands in where the algorithm has
	// no schedule for as many as are left. schedule.Hybrid is refused.
	Algorithm schedule.Algorithm
	// Detect bounds the time from a member's failure until all others have heard of it, and how long a meeting waits
	// for a member; 0 means DefaultDetect. Silence counts while a message is under way: one that stops between two
	// messages is found by the next one.
	Detect time.Duration
	// Listener takes the place of Room; the session closes it.
	Listener net.Listener

	// Window, Grants, MaxSends and SendRate are this member's, as in rdmc.GroupConfig.
	Window, Grants, MaxSends int
	SendRate                 uint64
	// Dial, at a member, opens the connection to the room; nil means a net.Dialer.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// OnFailure may be set; it is called as soon as this member hears that the group of an epoch has failed, at the
	// root in Send. It must not block.
	OnFailure func(epoch uint32, err error)
	// Log may be nil.
	Log *slog.Logger
}

func (cfg Config) check() (Config, error) {
	if cfg.BlockSize == 0 {
		cfg.BlockSize = rdmc.DefaultBlockSize
	}
	if cfg.Detect == 0 {
		cfg.Detect = DefaultDetect
	}
	if cfg.Listen == "" {
		cfg.Listen = "127.0.0.1:0"
	}
	if cfg.Dial == nil {
		cfg.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", addr)
		}
	}
	if cfg.OnFailure == nil {
		cfg.OnFailure = func(uint32, error) {}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	switch {
	case cfg.Rank < 0 || cfg.Rank >= rdmc.MaxMembers:
		return cfg, fmt.Errorf("%w: rank %d", rdmc.ErrInvalid, cfg.Rank)
	case cfg.Rank == 0 && (cfg.Members < 2 || cfg.Members > rdmc.MaxMembers):
		return cfg, fmt.Errorf("%w: a session of %d members: give 2 to %d", rdmc.ErrInvalid, cfg.Members, rdmc.MaxMembers)
	case cfg.BlockSize < 1 || cfg.BlockSize > rdmc.MaxBlockSize:
		return cfg, fmt.Errorf("%w: block size %d", rdmc.ErrInvalid, cfg.BlockSize)
	case cfg.Detect < MinDetect || cfg.Detect > MaxDetect:
		return cfg, fmt.Errorf("%w: a failure heard of within %v: give %v to %v", rdmc.ErrInvalid, cfg.Detect, MinDetect, MaxDetect)
	case cfg.Engine == nil && isAnyAddress(cfg.Listen):
		return cfg, fmt.Errorf("%w: data at %s: the others dial it: give an address of this host", rdmc.ErrInvalid, cfg.Listen)
	case cfg.Algorithm == schedule.Hybrid:
		return cfg, fmt.Errorf("%w: a session knows no racks: take another algorithm than %v", rdmc.ErrInvalid, cfg.Algorithm)
	}
	return cfg, nil
}

// isAnyAddress reports whether an address to listen at is that of all interfaces, which nobody can dial.
func isAnyAddress(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	return err == nil && (host == "" || net.ParseIP(host).IsUnspecified())
}

// Session is one member's part in a series of groups, one at a time, that bring messages from the root to all members
// that are left: when the group of an epoch fails, the survivors meet at the root's room, and the root goes on with a
// group of them and the next epoch, sending only what one of them lacks. See docs/decisions/019.
//
// The root calls Send, the others Next and Message.Receive, one call at a time. Close may be called at any time.
type Session struct {
	cfg    Config
	root   *root
	member *member
	engine *rdmc.Engine
	device *tcp.Device // nil if the engine is the caller's
}

// Open joins a session: the root waits for all others, a member for the root. It returns when the first group is
// connected. A session must be closed.
func Open(ctx context.Context, cfg Config) (*Session, error) {
	cfg, err := cfg.check()
	if err != nil {
		return nil, err
	}
	s := &Session{cfg: cfg, engine: cfg.Engine}
	if s.engine == nil {
		if err := s.openEngine(); err != nil {
			return nil, err
		}
	}
	if cfg.Rank == 0 {
		s.root, err = openRoot(ctx, cfg, s.engine)
	} else {
		s.member, err = openMember(ctx, cfg, s.engine)
	}
	if err != nil {
		s.closeEngine()
		return nil, err
	}
	return s, nil
}

// openEngine makes an engine over TCP. A dead peer is given up before its silence ends the group.
func (s *Session) openEngine() error {
	device, err := tcp.New(tcp.Config{PeerTimeout: s.cfg.Detect, ReceiverTimeout: s.cfg.Detect})
	if err != nil {
		return fmt.Errorf("rendezvous: %w", err)
	}
	s.device = device
	if _, err = device.Listen(s.cfg.Listen); err == nil {
		s.engine, err = rdmc.NewEngine(rdmc.EngineConfig{Device: device, Logger: s.cfg.Log})
	}
	if err != nil {
		device.Close()
		return fmt.Errorf("rendezvous: data at %s: give a free address of this host: %w", s.cfg.Listen, err)
	}
	return nil
}

func (s *Session) closeEngine() error {
	if s.device == nil {
		return nil
	}
	return errors.Join(s.engine.Close(), s.device.Close())
}

// Delivery is how a message was delivered.
type Delivery struct {
	// Members are those that have the message whole, the root included, by rank in the session.
	Members []int `json:"members"`
	// Out are those that were lost since the delivery before, or since the session was opened.
	Out []Lost `json:"out"`
	// Epochs is how many groups it took.
	Epochs int `json:"epochs"`
}

// Lost is a member that is out of the session, with the reason.
type Lost struct {
	Rank   int    `json:"rank"`
	Epoch  uint32 `json:"epoch"` // of the group that it was lost from, or that was to be made
	Reason string `json:"reason"`
}

// Send brings a message of size bytes to all members that are left, and returns when they all have it: it blocks
// through failures of members and leaves out those that fail. It returns ErrNobodyLeft, the source's error, or ctx's,
// and then the session has ended. At the root only.
func (s *Session) Send(ctx context.Context, size uint64, source rdmc.Source) (Delivery, error) {
	if s.root == nil {
		return Delivery{}, fmt.Errorf("%w: send by rank %d, only the root can", rdmc.ErrInvalid, s.cfg.Rank)
	}
	return s.root.send(ctx, size, source)
}

// BlockSize is the bytes per block of the session's messages; the last block of a message may be shorter.
func (s *Session) BlockSize() int {
	if s.root != nil {
		return s.cfg.BlockSize
	}
	return s.member.common.blockSize
}

// Next waits for the next message. It returns io.EOF when the root has closed the session, ErrOut, ErrRootLost,
// ErrEnded, or ctx's error. At members only.
func (s *Session) Next(ctx context.Context) (*Message, error) {
	if s.member == nil {
		return nil, fmt.Errorf("%w: the root receives nothing", rdmc.ErrInvalid)
	}
	return s.member.next(ctx)
}

// Close leaves the session, and waits until no Source or Sink is in use. The root's Close ends the session for all:
// what Send reported is delivered. A Source or Sink must not call it.
func (s *Session) Close() error {
	if s.root != nil {
		s.root.close("")
	} else {
		s.member.close()
	}
	return s.closeEngine()
}

// groupConfig is the group of an epoch, for one member of it.
func groupConfig(cfg Config, common welcome, f frame, rank int) rdmc.GroupConfig {
	names := make([]string, len(f.members))
	for i, id := range f.members {
		names[i] = fmt.Sprint("member ", id)
	}
	return rdmc.GroupConfig{
		Number: 1, Epoch: f.epoch, Members: names, Rank: rank,
		BlockSize: common.blockSize, Algorithm: f.algorithm,
		Window: cfg.Window, Grants: cfg.Grants, MaxSends: cfg.MaxSends, SendRate: cfg.SendRate,
		SilenceTimeout: common.detect * 3 / 4,
	}
}

// asGroupError is the failure of a group; another error counts as one that blames nobody.
func asGroupError(err error) *rdmc.GroupError {
	var failure *rdmc.GroupError
	if errors.As(err, &failure) {
		return failure
	}
	return &rdmc.GroupError{Reason: rdmc.ReasonDisconnected, Reporter: -1, Err: err}
}

// keepAlive has a connection that says nothing for long end when its other end is gone.
func keepAlive(conn net.Conn, detect time.Duration) {
	if tc, ok := conn.(*net.TCPConn); ok {
		every := max(detect/2, time.Second) // the kernel counts in seconds
		tc.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: every, Interval: every, Count: 3})
	}
}
