package rdmc

import (
	"errors"

	"github.com/rdmcfs/rdmcfs/rdma/pin"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// A message is never registered as a whole, but for one that is placed: its blocks pass through the group's buffers, a window of
// registered memory that moves over it. So a message of any size needs no more than that. What the groups of an engine may register
// together is the budget of a pin.Domain: each reserves what it can need when it is made, so that no message fails for want of memory
// later.

// memory gives the domain that an engine's groups reserve in.
func (cfg *EngineConfig) memory() *pin.Domain {
	if cfg.Memory != nil {
		return cfg.Memory
	}
	return pin.NewDomain(cfg.Device, pin.Config{})
}

// reserve makes the group's core with as many block buffers as the configuration says, or half as many, and so on, until they take no
// more than half of what is free; two there must be. With an error nothing is reserved.
func (g *Group) reserve(plan *schedule.Plan) (err error) {
	cfg, memory := &g.cfg, g.engine.memory
	for {
		g.core = newCore(plan, cfg.Rank, cfg.BlockSize, cfg.Epoch, cfg.Unannounced, cfg.limits())
		n := g.registeredMax()
		if cfg.Window <= 2 || memory.Budget() == 0 || int64(n) <= memory.Free()/2 {
			if g.reserved, err = memory.Reserve(n); err == nil || cfg.Window <= 2 || !errors.Is(err, pin.ErrBudget) {
				return err
			}
		} // else others took what was free
		cfg.Window = max(2, cfg.Window/2)
		cfg.Grants = max(1, min(cfg.Grants, cfg.Window/2))
	}
}

// registeredMax is how many bytes the group registers at most: block buffers with their trailers, small messages, control messages.
func (g *Group) registeredMax() int {
	return g.trailerOffset(len(g.core.slots), 0) + g.smallBuffers()*g.smallStride() + len(g.core.lanes)*(controlWindow+1)*maxControl
}
