package meta

// pin keeps one version for somebody who reads it for long, while apply goes on. Between reads it holds nothing but the
// version. It ends without its user when the database is closed or restored.
type pin struct {
	db     *DB
	of     *version
	view   kvView // nil when closed or abandoned
	before func() // called before the view is closed; may be nil
}

// pinned pins the present version of a database; life is held.
func pinned(db *DB) (*pin, error) {
	if db.closed {
		return nil, ErrClosed
	}
	if err := db.Distrusted(); err != nil {
		return nil, err
	}
	db.pins.Lock()
	defer db.pins.Unlock()
	p := &pin{db: db, of: db.cur.Load()}
	db.pins.open[p] = struct{}{}
	p.view = db.store.view(p.index())
	return p, nil
}

// index is that of the pinned version.
func (p *pin) index() uint64 { return p.of.head.Index }

// read runs fn over the pinned version. Afterwards others may close or restore the database, which ends the pin.
func (p *pin) read(fn func(s snap) error) error {
	p.db.life.RLock()
	state, err := p.db.State(), ErrClosed
	if p.view != nil {
		err = fn(snap{p.view, p.of})
	}
	p.db.life.RUnlock()
	metDamage(p.db, state, err)
	return err
}

// Close lets the version go.
func (p *pin) Close() error {
	p.db.life.RLock()
	defer p.db.life.RUnlock()
	p.db.pins.Lock()
	defer p.db.pins.Unlock()
	p.abandonLocked()
	return nil
}

// abandonLocked ends the pin; pins is held, and nobody reads it (the caller is its reader, or holds life alone).
func (p *pin) abandonLocked() {
	if p.view == nil {
		return
	}
	if p.before != nil {
		p.before()
	}
	p.view.close()
	p.view = nil
	delete(p.db.pins.open, p)
}

// abandonPins ends every pin of a database; life is held alone.
func abandonPins(db *DB) {
	db.pins.Lock()
	defer db.pins.Unlock()
	for p := range db.pins.open {
		p.abandonLocked()
	}
}
