package rdmc

import (
	"github.com/rdmcfs/rdmcfs/replicate/rdmc/core"
)

// workers is how many goroutines per group call Sources and Sinks.
const workers = 2

// job is a call of a Source or Sink, made by a worker.
type job struct {
	transfer *Transfer
	store    bool
	small    bool // block is the count of a small message
	slot     int
	block    uint64
	data     []byte // the block, or a small message
	trailer  []byte // room for its trailer
}

// jobOf is what a worker has to do for an action on a block. The lock is held.
func (g *Group) jobOf(a *core.Action) job {
	j := job{store: a.Kind == core.ActStore, slot: a.Slot, block: a.Block, transfer: g.transfers[a.Seq]}
	j.data, j.trailer = g.blocks.bytes(a.Slot, a.Length)
	return j
}

// smallJobOf is what a worker has to do for an action on a small message. The lock is held.
func (g *Group) smallJobOf(a *core.Action) job {
	j := job{small: true, store: a.Kind == core.ActSmallHand, slot: a.Slot, block: a.Block, transfer: g.transfers[a.Seq]}
	j.data, j.trailer = core.Split(g.smalls.bytes(a.Slot, a.Length))
	return j
}

// queueStore gives a block to a worker to write. If its message has nowhere to go yet, it waits until it has, so that
// it keeps no worker from others. The lock is held.
func (g *Group) queueStore(j job) {
	if g.cfg.Unannounced && j.transfer.sink == nil {
		j.transfer.held = append(j.transfer.held, j)
		return
	}
	g.jobs <- j
}

// runJobs calls Sources and Sinks until the group ends.
func (g *Group) runJobs() {
	for j := range g.jobs {
		j.run(g)
		g.engine.turns.run()
	}
}

// run calls the Source or Sink, and tells the core.
func (j *job) run(g *Group) {
	var err error
	switch {
	case j.small && j.store:
		err = j.transfer.writeSmall(j.data)
	case j.store:
		err = j.transfer.write(j.block, j.data)
	default:
		err = j.read(g)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.look()
	j.tell(g, err)
	g.drain()
}

// tell tells the core what came of the call. The lock is held.
func (j *job) tell(g *Group, err error) {
	switch {
	case j.small && j.store:
		if err == nil {
			j.transfer.have = BitmapOf(j.transfer.have.Blocks(), j.transfer.announcement.Blocks)
		}
		g.core.Small().Taken(j.block, err)
	case j.small:
		g.core.Small().Loaded(j.block, err)
	case j.store:
		g.core.BlockStored(j.slot, err)
	default:
		g.core.BlockLoaded(j.slot, err)
	}
}

// read reads a block or a small message, and seals it.
func (j *job) read(g *Group) error {
	a, block := &j.transfer.announcement, j.block
	if j.small {
		block = 0
	} else if g.Err() != nil {
		return nil // nothing is sent any more
	}
	if j.small || !g.blocks.isPlaced(j.slot) {
		if err := j.transfer.read(block, j.data); err != nil {
			return err
		}
	}
	t := core.Trailer{Seq: a.Seq, Block: j.block, Size: a.Size, Epoch: g.cfg.Epoch, Length: uint32(len(j.data))}
	t.Seal(j.data, j.trailer)
	return nil
}
