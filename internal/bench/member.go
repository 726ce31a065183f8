package bench

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net"
	"syscall"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma/tcp"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc/rendezvous"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// MemberConfig says what one member of a measured group does. It travels to the member's process as JSON.
type MemberConfig struct {
	Rank, Members int
	// Room is where rank 0 hosts the rendezvous.
	Room string
	// Listen is this member's address for data, port included.
	Listen string
	// Size is the bytes per message, Messages how many are sent, one after another, Pause the time between.
	Size     uint64
	Messages int
	Pause    time.Duration

	Algorithm string
	BlockSize int
	Window    int
	Grants    int
	MaxSends  int

	Congestion                string
	SendBuffer, ReceiveBuffer int
	NotSentLowat              int
	PacingBytesPerSec         uint64
}

// MemberResult is what a member measured.
type MemberResult struct {
	Rank int
	// Seconds are, by message, the time from the announcement until all was stored: at the root by all members,
	// elsewhere here.
	Seconds []float64
	// Idle is, by message, the share of the machine's processor time that was idle meanwhile.
	Idle []float64
	// CPUSeconds is the processor time of the process from the first message to the end of the last.
	CPUSeconds float64
	// Digest is the SHA-256 of the last message.
	Digest string
}

// RunMember takes part in a group and returns when it has been closed.
func RunMember(ctx context.Context, cfg MemberConfig) (MemberResult, error) {
	m := member{cfg: cfg, message: memory{block: uint64(cfg.BlockSize), data: make([]byte, cfg.Size)}}
	for i := 0; i < len(m.message.data); i += 4096 {
		m.message.data[i] = 1 // have the pages before the clock runs
	}
	if cfg.Rank == 0 {
		rand.NewChaCha8([32]byte{1}).Read(m.message.data)
	}
	device, err := tcp.New(tcp.Config{
		Congestion: cfg.Congestion, NotSentLowat: cfg.NotSentLowat, PacingBytesPerSec: cfg.PacingBytesPerSec,
		SendBuffer: cfg.SendBuffer, ReceiveBuffer: cfg.ReceiveBuffer,
	})
	if err != nil {
		return MemberResult{}, fmt.Errorf("bench: %w", err)
	}
	defer device.Close()
	if _, err := device.Listen(cfg.Listen); err != nil {
		return MemberResult{}, fmt.Errorf("bench: %w", err)
	}
	engine, err := rdmc.NewEngine(rdmc.EngineConfig{Device: device})
	if err != nil {
		return MemberResult{}, fmt.Errorf("bench: %w", err)
	}
	defer engine.Close()
	if err := m.meet(ctx, engine); err != nil {
		return MemberResult{}, err
	}
	defer m.room.Close()
	return m.run(ctx)
}

// member is a running member.
type member struct {
	cfg     MemberConfig
	room    *rendezvous.Room
	group   *rdmc.Group
	message memory
	result  MemberResult
}

// meet makes the group and connects it with the others.
func (m *member) meet(ctx context.Context, engine *rdmc.Engine) error {
	algorithm := schedule.BinomialPipeline
	var err error
	if m.cfg.Algorithm != "" {
		if algorithm, err = schedule.ParseAlgorithm(m.cfg.Algorithm); err != nil {
			return err
		}
	}
	m.group, err = engine.NewGroup(rdmc.GroupConfig{
		Number: 1, Members: make([]string, m.cfg.Members), Rank: m.cfg.Rank, Algorithm: algorithm,
		BlockSize: m.cfg.BlockSize, Window: m.cfg.Window, Grants: m.cfg.Grants, MaxSends: m.cfg.MaxSends,
	})
	if err != nil {
		return err
	}
	if m.cfg.Rank == 0 {
		listener, err := net.Listen("tcp", m.cfg.Room)
		if err != nil {
			return fmt.Errorf("bench: %w", err)
		}
		defer listener.Close()
		m.room, err = rendezvous.Host(ctx, listener, m.cfg.Members)
		if err != nil {
			return err
		}
	} else if m.room, err = rendezvous.Join(ctx, m.cfg.Room, m.cfg.Rank); err != nil {
		return err
	}
	return m.room.Connect(ctx, m.group)
}

func (m *member) run(ctx context.Context) (MemberResult, error) {
	m.result.Rank = m.cfg.Rank
	before := cpuSeconds()
	for i := range m.cfg.Messages {
		if i > 0 && m.cfg.Rank == 0 && m.cfg.Pause > 0 {
			select {
			case <-time.After(m.cfg.Pause):
			case <-ctx.Done():
			}
		}
		times, err := ReadProcessorTimes()
		if err != nil {
			return m.result, err
		}
		start, transfer, err := m.begin(ctx)
		if err != nil {
			return m.result, err
		}
		if err := m.await(ctx, transfer); err != nil {
			return m.result, err
		}
		m.result.Seconds = append(m.result.Seconds, time.Since(start).Seconds())
		after, err := ReadProcessorTimes()
		if err != nil {
			return m.result, err
		}
		m.result.Idle = append(m.result.Idle, after.IdleSince(times))
	}
	m.result.CPUSeconds = cpuSeconds() - before
	sum := sha256.Sum256(m.message.data)
	m.result.Digest = hex.EncodeToString(sum[:])
	return m.result, m.group.Close(ctx)
}

// begin announces the next message, or waits for its announcement.
func (m *member) begin(ctx context.Context) (time.Time, *rdmc.Transfer, error) {
	if m.cfg.Rank == 0 {
		start := time.Now()
		transfer, err := m.group.Send(rdmc.Outgoing{Size: m.cfg.Size, Source: &m.message})
		if err != nil {
			return start, nil, err
		}
		return start, transfer, m.room.Announce(ctx, transfer.Announcement())
	}
	a, err := m.room.Next(ctx)
	if err != nil {
		return time.Time{}, nil, err
	}
	if a.Size != m.cfg.Size {
		return time.Time{}, nil, fmt.Errorf("bench: announced %d bytes, want %d", a.Size, m.cfg.Size)
	}
	start := time.Now()
	transfer, err := m.group.Receive(a, rdmc.Receiver{Sink: &m.message})
	return start, transfer, err
}

func (m *member) await(ctx context.Context, transfer *rdmc.Transfer) error {
	done := transfer.Stored()
	if m.cfg.Rank == 0 {
		done = transfer.Done()
	}
	select {
	case <-done:
		return transfer.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// memory is a message in memory. Blocks do not overlap, so copies need no lock.
type memory struct {
	block uint64
	data  []byte
}

// ReadBlock copies a block out.
func (m *memory) ReadBlock(i uint64, buf []byte) error {
	copy(buf, m.data[i*m.block:])
	return nil
}

// WriteBlock copies a block in.
func (m *memory) WriteBlock(i uint64, buf []byte) error {
	copy(m.data[i*m.block:], buf)
	return nil
}

// cpuSeconds is the processor time of this process so far.
func cpuSeconds() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}
