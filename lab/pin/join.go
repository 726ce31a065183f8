package pin

import "errors"

// use is how the memory of a message was found.
type use struct {
	first  *entry // of the first piece
	last   *entry
	pieces int  // registrations
	made   bool // some of them for this message
	over   bool // join was called
}

// note counts a pin; they come in the order of their memory.
func (u *use) note(p *Pin) {
	u.made = u.made || !p.found
	if u.last != p.e {
		u.last = p.e
		u.pieces++
	}
	if u.first == nil {
		u.first = p.e
	}
}

// joinAfter says at which message its memory is registered as one piece, counting the messages that found all their
// memory registered, in pieces. The registration costs about as much as that many messages save when their bytes go in
// one write.
const joinAfter = 2

// joinRetry is how many such messages there are between attempts where the first had no room or failed.
const joinRetry = 64

// joinShare: one such registration may have at most this part of what a claim may take. A large one that is in use for
// a small part of it keeps others waiting, and one larger than a claim is of no use to it.
const joinShare = 4

// join registers the memory of a message as one piece if it was found in several often enough; the registrations of the
// pieces then end with their last use. If there is no room for both it does nothing: nobody's memory has to go for it.
// Call it when all has been posted or announced, so that it works while the link does.
func (d *Domain) join(u *use, a Ask) error {
	u.over = true
	if u.made || u.pieces < 2 || int64(len(a.Memory)) > d.Room(a.Claim)/joinShare {
		return nil
	}
	d.mu.Lock()
	u.first.again++
	due := u.first.again == joinAfter || u.first.again > joinAfter && u.first.again%joinRetry == 0
	due = due && d.book.room(uint64(len(a.Memory)))
	d.mu.Unlock()
	if !due {
		return nil
	}
	p, err := d.Try(a)
	if err != nil {
		return nil // the pieces are as good as before; a limit of locked memory may not have room for both
	}
	d.mu.Lock()
	idle := d.book.replace(p.e)
	d.mu.Unlock()
	return errors.Join(d.deregister(idle), p.Release())
}
