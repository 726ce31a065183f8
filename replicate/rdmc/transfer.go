package rdmc

import (
	"context"
	"errors"
)

// errNoSink is the end of a block that had nowhere to go in a group that has failed.
var errNoSink = errors.New("rdmc: no sink")

// Transfer is one message at one member.
type Transfer struct {
	group        *Group
	announcement Announcement
	source       Source        // at the root
	ready        chan struct{} // closed when sink is set
	sink         Sink          // at a member; nil if Incoming returned an error
	placed       Placed        // the source or sink, if it is one
	storedHere   chan struct{} // closed under the group's lock
	done         chan struct{} // closed under the group's lock

	// Under the group's lock.
	have     *Bitmap // nil at the root
	isStored bool
	isDone   bool
	held     []job // blocks that wait until it is known where they go
	err      error
}

// open makes the transfer's channels.
func (t *Transfer) open(have *Bitmap) {
	t.have = have
	t.ready, t.storedHere, t.done = make(chan struct{}), make(chan struct{}), make(chan struct{})
}

// goesTo says where the message goes. The group's lock is held.
func (t *Transfer) goesTo(s Sink) {
	t.sink = s
	t.placed, _ = s.(Placed)
	close(t.ready)
	g := t.group
	for _, j := range t.held {
		if !g.core.Ended() { // else nobody may be there to take it
			g.jobs <- j
		}
	}
	t.held = nil
	g.core.Ready(t.announcement.Seq)
}

// read fills buf with a block from the source or sink.
func (t *Transfer) read(i uint64, buf []byte) error {
	if t.source != nil {
		return t.source.ReadBlock(i, buf)
	}
	return t.sink.ReadBlock(i, buf)
}

// write stores a block, when it is known where.
func (t *Transfer) write(i uint64, buf []byte) error {
	select {
	case <-t.ready:
	default:
		select {
		case <-t.ready:
		case <-t.group.failed:
			return errNoSink
		}
	}
	if t.sink == nil {
		return errNoSink
	}
	return t.sink.WriteBlock(i, buf)
}

// writeSmall stores a small message, which may be of several blocks.
func (t *Transfer) writeSmall(data []byte) error {
	size, block := uint64(len(data)), t.group.cfg.BlockSize
	for i := range BlockCount(size, block) {
		at := i * uint64(block)
		if err := t.write(i, data[at:at+uint64(BlockLength(size, block, i))]); err != nil {
			return err
		}
	}
	return nil
}

// Announcement is what members must know of the message.
func (t *Transfer) Announcement() Announcement { return t.announcement }

// Stored is closed when all blocks of the message that had to move are stored here (at the root: at once), or when it
// failed.
func (t *Transfer) Stored() <-chan struct{} { return t.storedHere }

// Done is closed when the transfer has ended. At the root that is when every member has stored all
// blocks, at a member when all are stored and relayed. Err is set when it failed.
func (t *Transfer) Done() <-chan struct{} { return t.done }

// Err is nil while the transfer runs and after it succeeded; else the group's failure.
func (t *Transfer) Err() error {
	t.group.mu.Lock()
	defer t.group.mu.Unlock()
	return t.err
}

// Wait waits for Done and returns Err, or ctx's error.
func (t *Transfer) Wait(ctx context.Context) error {
	select {
	case <-t.done:
		return t.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Have returns which blocks of the message are stored here, including those of Receiver.Have. At the root all are.
// After a failure blocks may still be added until Group.Abort or Group.Close has returned.
func (t *Transfer) Have() *Bitmap {
	if t.group.cfg.Rank == 0 {
		blocks := BlockCount(t.announcement.Size, t.group.cfg.BlockSize)
		return BitmapOf(blocks, AllBlocks(blocks))
	}
	t.group.mu.Lock()
	defer t.group.mu.Unlock()
	return t.have.Clone()
}

// markStored closes Stored. The group's lock is held.
func (t *Transfer) markStored() {
	if !t.isStored {
		t.isStored = true
		close(t.storedHere)
	}
}

// finish closes Done. The group's lock is held.
func (t *Transfer) finish(err error) {
	if t.isDone {
		return
	}
	t.isDone, t.err = true, err
	t.markStored()
	close(t.done)
}
