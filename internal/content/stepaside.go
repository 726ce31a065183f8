package content

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// StepAside gives the data file of the content that r reads to a Staging, which so begins as that content, and leaves a
// durable copy in its place. Programs that read the file by passthrough then see what is written to the Staging. All
// Readers, r too, read the copy from then on. Opens of the content wait meanwhile. r has to stay open as long as the
// Staging: see [Staging.Sound].
//
// The copy is made by FICLONE where the file system can, else block by block with a check of each, if it has at most
// [StepAsideBytesMax] of data. ErrTooLarge: it has more. ErrBusy: another Reader has given its file away
// ([Reader.File]), or the content is being mended. ErrShape: it has no file of its own here. ErrNotFound: it was
// deleted.
func (s *Store) StepAside(r *Reader, origin Origin) (*Staging, error) {
	st, err := s.stepAside(r, origin)
	if err != nil {
		return nil, fmt.Errorf("content: step aside %s: %w", r.ID(), noSpace(err))
	}
	return st, nil
}

func (s *Store) stepAside(r *Reader, origin Origin) (st *Staging, err error) {
	id := r.ID()
	if !r.HasFile() || r.index != s.index {
		return nil, ErrShape
	}
	if _, err := s.index.claim(id, Committed); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.index.unclaim(id, nil)) }()
	if err := s.index.startFold(id); err != nil {
		return nil, err
	}
	defer s.index.endFold(id)
	s.opener.compareMark(r.body)
	aside := s.files.asidePath(id)
	rot, _ := s.index.rotOf(id) // before all of it is read: what is found later shows in Sound
	if err := s.copyAside(r, aside); err != nil {
		return nil, errors.Join(err, s.files.unlink(aside))
	}
	st, err = s.giveAway(r.body, origin, aside)
	if err != nil {
		return nil, err
	}
	st.clone, st.cloneRot = id, rot
	if err := st.Sound(); err != nil {
		return nil, errors.Join(err, st.Drop())
	}
	return st, nil
}

// giveAway makes a Staging of the data file of an open content, and puts the file at path in its place.
func (s *Store) giveAway(b *body, origin Origin, path string) (*Staging, error) {
	was := b.looked()
	// From here on the file has two names. Open drops the staged one then: nothing was written to it.
	st, err := s.staging.create(stageHead{origin: origin}, s.files.streamPath(b.id, ID{}))
	if err == nil {
		err = s.files.exchange(b, path, func(m mark) { s.index.setMark(b.id, m) })
	}
	if err == nil {
		return st, nil
	}
	err = errors.Join(err, s.files.unlink(path))
	if st != nil {
		err = errors.Join(err, st.Drop())
	}
	if s.index.hasMark(b.id, was) { // the second name, which came and went, has changed the ctime
		s.opener.renewMark(b)
	}
	return nil, err
}

// copyAside makes a durable copy of what r reads.
func (s *Store) copyAside(r *Reader, path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if !r.Checked() || r.body.cloneTo(f, s.staging.clone) != nil {
		if r.body.layout.stream > StepAsideBytesMax {
			return errors.Join(ErrTooLarge, f.Close())
		}
		if err = s.space.promise(r.body.layout.stream); err == nil {
			err = copyChecked(f, r)
			s.space.settle(r.body.layout.stream)
		}
	}
	if err == nil {
		err = s.files.sync(f)
	}
	return errors.Join(err, f.Close())
}

// exchange puts the file at path in the place of the data file of an open content, for all who have it open or open it
// later, and tells its mark before anybody opens it. ErrBusy: one besides own has given its file away.
func (sf *storeFiles) exchange(own *body, path string, tell func(mark)) error {
	sf.opening.Lock()
	defer sf.opening.Unlock()
	for b := range sf.bodies[own.id] {
		if b != own && b.exposed.Load() {
			return ErrBusy
		}
	}
	if err := sf.rename(path, sf.streamPath(own.id, ID{})); err != nil {
		return err
	}
	for b := range sf.bodies[own.id] {
		if err := sf.reopen(b); err != nil {
			return err
		}
	}
	tell(own.looked())
	return sf.syncShard(own.id)
}

// reopen makes the descriptor of a body one of the file that has its name now. Reads under way end before.
func (sf *storeFiles) reopen(b *body) error {
	b.swap.Lock()
	defer b.swap.Unlock()
	fd := int(b.streamFile.Fd())
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return err
	}
	f, err := openFile(sf.streamPath(b.id, ID{}), flags&unix.O_ACCMODE)
	if err != nil {
		return err
	}
	defer f.Close()
	b.mark = markOf(f)
	return unix.Dup3(int(f.Fd()), fd, unix.O_CLOEXEC)
}

// register notes that the data file of a plain content is open. opening is held for reading.
func (sf *storeFiles) register(b *body) {
	sf.bodiesMu.Lock()
	defer sf.bodiesMu.Unlock()
	if sf.bodies == nil {
		sf.bodies = map[ID]map[*body]struct{}{}
	}
	if sf.bodies[b.id] == nil {
		sf.bodies[b.id] = map[*body]struct{}{}
	}
	sf.bodies[b.id][b] = struct{}{}
	b.files = sf
}

func (sf *storeFiles) unregister(b *body) {
	sf.opening.RLock() // no exchange is using its descriptor
	defer sf.opening.RUnlock()
	sf.bodiesMu.Lock()
	defer sf.bodiesMu.Unlock()
	delete(sf.bodies[b.id], b)
	if len(sf.bodies[b.id]) == 0 {
		delete(sf.bodies, b.id)
	}
}
