// Package rendezvous brings the members of an rdmc group together over TCP, for programs that have no control
// channel of their own. They meet in a room at the root, exchange the addresses of their queue pairs, and have a
// connected group:
//
//	cfg := rendezvous.Config{Rank: rank, Members: 4, Room: "root:7400", Listen: "10.0.0.1:0"}
//	cfg.Group.Incoming = func(size uint64) (rdmc.Sink, error) { ... } // at the others: where a message goes
//	meeting, err := rendezvous.Meet(ctx, cfg)
//	transfer, err := meeting.Group.Send(rdmc.Outgoing{Size: size, Source: source}) // at the root
//	err = meeting.Group.Close(ctx) // nil: every message reached every member whole
//	meeting.Close()
//
// That is all. Nobody joins later. When a member fails, the group fails, and every member is notified. Package
// replicate continues with the survivors, from the blocks that they have; it has a log that says which nodes are up.
//
// Connections are neither encrypted nor authenticated: use them only in networks that you trust.
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
)

// Errors of meetings that a caller can act on.
var (
	// ErrProtocol is returned when the other side says something that makes no sense.
	ErrProtocol = errors.New("rendezvous: protocol error")
	// ErrRefused is returned at a member that the root does not let in, or when a meeting has failed at the root. Its
	// text says why.
	ErrRefused = errors.New("rendezvous: refused")
)

// stepTimeout bounds what one step of a meeting takes when all members are there.
const stepTimeout = 20 * time.Second

// Config describes a meeting at one of its members.
type Config struct {
	// Rank is this member's place in the group; 0 is the root, which sends.
	Rank int
	// Room is where the root waits for the others, as host:port.
	Room string
	// Listener takes the place of Room at the root; the meeting closes it.
	Listener net.Listener
	// Members is how many take part, the root included. It is for the root, which passes it to the others.
	Members int

	// Listen is this host's address for data, at which the others reach it; port 0 picks one. Empty means
	// 127.0.0.1:0. It is not used with Engine.
	Listen string
	// Engine carries the group, and stays the caller's; nil makes one over TCP.
	Engine *rdmc.Engine
	// Group describes the group, which is an unannounced one. Its Rank and Members are filled in, and the root passes
	// its Number, BlockSize and Algorithm to the others.
	Group rdmc.GroupConfig
	// Log may be nil.
	Log *slog.Logger
}

func (cfg Config) check() (Config, error) {
	if cfg.Group.BlockSize == 0 {
		cfg.Group.BlockSize = rdmc.DefaultBlockSize
	}
	if cfg.Listen == "" {
		cfg.Listen = "127.0.0.1:0"
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	switch {
	case cfg.Rank < 0 || cfg.Rank >= rdmc.MaxMembers:
		return cfg, fmt.Errorf("%w: rank %d", rdmc.ErrInvalid, cfg.Rank)
	case cfg.Rank == 0 && (cfg.Members < 2 || cfg.Members > rdmc.MaxMembers):
		return cfg, fmt.Errorf("%w: a group of %d members: give 2 to %d", rdmc.ErrInvalid, cfg.Members, rdmc.MaxMembers)
	case cfg.Group.BlockSize < 1 || cfg.Group.BlockSize > rdmc.MaxBlockSize:
		return cfg, fmt.Errorf("%w: block size %d", rdmc.ErrInvalid, cfg.Group.BlockSize)
	case cfg.Rank > 0 && cfg.Group.Incoming == nil:
		return cfg, fmt.Errorf("%w: nobody says where messages go: give Group.Incoming", rdmc.ErrInvalid)
	case cfg.Engine == nil && isAnyAddress(cfg.Listen):
		return cfg, fmt.Errorf("%w: data at %s: the others dial it: give an address of this host", rdmc.ErrInvalid,
			cfg.Listen)
	}
	return cfg, nil
}

// isAnyAddress reports whether an address to listen at is that of all interfaces, which nobody can dial.
func isAnyAddress(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	return err == nil && (host == "" || net.ParseIP(host).IsUnspecified())
}

// Meeting is what came of a Meet: a group, and what carries it.
type Meeting struct {
	// Group is this member's end, connected with its neighbours. Close or Abort it when all is sent.
	Group *rdmc.Group
	// BlockSize is the bytes per block of the group's messages; the last block of a message may be shorter.
	BlockSize int

	door   *door // at the root, which turns latecomers away; else nil
	engine *rdmc.Engine
	device *tcp.Device // nil if the engine is the caller's
}

// Meet waits until all members are there and returns when they are connected, at each of them. The root waits for the
// others, and they for the root. It blocks until then, or until ctx is done. A meeting must be closed.
func Meet(ctx context.Context, cfg Config) (*Meeting, error) {
	cfg, err := cfg.check()
	if err != nil {
		return nil, err
	}
	m := &Meeting{engine: cfg.Engine}
	if m.engine == nil {
		if err := m.openEngine(cfg); err != nil {
			return nil, err
		}
	}
	if cfg.Rank == 0 {
		err = m.host(ctx, cfg)
	} else {
		err = m.join(ctx, cfg)
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// openEngine makes an engine over TCP. A dead peer is given up before its silence ends the group.
func (m *Meeting) openEngine(cfg Config) error {
	silence := cfg.Group.SilenceTimeout
	device, err := tcp.New(tcp.Config{PeerTimeout: silence, ReceiverTimeout: silence})
	if err != nil {
		return fmt.Errorf("rendezvous: %w", err)
	}
	var engine *rdmc.Engine
	if _, err = device.Listen(cfg.Listen); err == nil {
		engine, err = rdmc.NewEngine(rdmc.EngineConfig{Device: device, Logger: cfg.Log})
	}
	if err != nil {
		device.Close()
		return fmt.Errorf("rendezvous: data at %s: give a free address of this host: %w", cfg.Listen, err)
	}
	m.device, m.engine = device, engine
	return nil
}

// newGroup makes this member's end of the group that the root has described.
func (m *Meeting) newGroup(cfg Config, common welcome) error {
	g := cfg.Group
	g.Rank, g.Number, g.BlockSize, g.Algorithm = cfg.Rank, common.number, common.blockSize, common.algorithm
	g.Members, g.Unannounced = make([]string, common.members), true
	for rank := range g.Members {
		g.Members[rank] = fmt.Sprint("member ", rank)
	}
	group, err := m.engine.NewGroup(g)
	if err != nil {
		return err
	}
	m.Group, m.BlockSize = group, g.BlockSize
	return nil
}

// Close aborts the group, unless it was closed, and waits until no Source or Sink is in use. None of them may call it.
func (m *Meeting) Close() error {
	if m.Group != nil {
		m.Group.Abort()
	}
	if m.door != nil {
		m.door.close()
	}
	if m.device == nil {
		return nil
	}
	return errors.Join(m.engine.Close(), m.device.Close())
}
