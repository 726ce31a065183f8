package rdmc

import (
	"fmt"
	"math"
	"sync"

	"github.com/rdmcfs/rdmcfs/replicate/rdmc/core"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// A message is never registered as a whole, unless it is placed: its blocks pass through the group's buffers, a window
// of registered memory that moves over it. So a message of any size needs no more than that. What the groups of an
// engine may register together is its Memory: each group reserves what it can need when it is made, so that no message
// fails for want of memory later.

// Memory counts the registered bytes of groups against a bound. It registers nothing itself. Its methods may be
// called from several goroutines, and none waits.
type Memory struct {
	bound int64

	mu         sync.Mutex
	used, peak int64
}

// NewMemory makes a bound of so many bytes for the engines that are given it; 0 is no bound.
func NewMemory(bound int64) *Memory { return &Memory{bound: bound} }

// Bound is the most bytes that groups may reserve together; 0 means no bound.
func (m *Memory) Bound() int64 { return m.bound }

// Used is how many bytes groups reserve now, and Peak the most that they did at a time.
func (m *Memory) Used() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used
}

// Peak is the most bytes that groups reserved at a time.
func (m *Memory) Peak() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.peak
}

// Free is how many bytes a group may reserve now.
func (m *Memory) Free() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.freeLocked()
}

func (m *Memory) freeLocked() int64 {
	if m.bound == 0 {
		return math.MaxInt64
	}
	return m.bound - m.used
}

// reserve takes bytes until release gives them back. It returns ErrMemory where others use too many.
func (m *Memory) reserve(bytes int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if bytes > m.freeLocked() {
		return fmt.Errorf("%w: %d bytes more, %d of %d in use", ErrMemory, bytes, m.used, m.bound)
	}
	m.used += bytes
	m.peak = max(m.peak, m.used)
	return nil
}

func (m *Memory) release(bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.used -= bytes
}

// reserve makes the group's core with as many block buffers as the configuration says, or half as many, and so on,
// until they take no more than half of what is free; two there must be. With an error, ErrMemory, nothing is
// reserved.
func (g *Group) reserve(plan *schedule.Plan) error {
	cfg, memory := &g.cfg, g.engine.memory
	for {
		g.core = core.New(core.Config{Plan: plan, Rank: cfg.Rank, BlockSize: cfg.BlockSize, Epoch: cfg.Epoch,
			Unannounced: cfg.Unannounced, Limits: cfg.limits()})
		g.blocks = newBlockBuffers(cfg, g.core.Slots(), g.core.Lanes().Count())
		g.smalls, g.waits.core = newSmallBuffers(cfg, g.core.Parent()), g.core
		n := int64(g.registeredMax())
		if cfg.Window <= 2 || n <= memory.Free()/2 {
			err := memory.reserve(n)
			if err == nil {
				g.reserved = n
			}
			if err == nil || cfg.Window <= 2 {
				return err
			}
		} // else others took what was free
		cfg.Window = max(2, cfg.Window/2)
		cfg.Grants = max(1, min(cfg.Grants, cfg.Window/2))
	}
}

// registeredMax is how many bytes the group registers at most: block buffers with their trailers, small messages,
// control messages.
func (g *Group) registeredMax() int {
	return g.blocks.size() + g.smalls.size() + controlSize(g.core.Lanes().Count())
}
