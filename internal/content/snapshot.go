package content

import "fmt"

// Snapshot is what is to be published of an [Overlay]: a shape that is settled, and the bytes as they are when they are
// read. Writes go on; what they change counts as changed since the snapshot. Each read is atomic with respect to
// writes. One snapshot of an overlay is open at a time.
type Snapshot struct {
	o     *Overlay
	shape Shape
	fresh pageMap
	cut   int64
}

// Snapshot settles what changed since the last published one. ErrBusy: the last is still open.
func (o *Overlay) Snapshot() (*Snapshot, error) {
	o.content.Lock()
	defer o.content.Unlock()
	if o.snap != nil {
		return nil, fmt.Errorf("content: snapshot of overlay: %w", ErrBusy)
	}
	extents, err := o.dirtyLocked()
	if err != nil {
		return nil, err
	}
	o.snap = &Snapshot{o: o, fresh: o.fresh, cut: o.cut, shape: Shape{
		Size: o.size, Base: o.prior, BaseSize: o.priorSize, Extents: extents,
	}}
	o.fresh, o.cut = pageMap{}, o.size
	return o.snap, nil
}

// Shape is the delta over what was published last.
func (p *Snapshot) Shape() Shape { return p.shape }

// ReadAt reads the overlay's bytes, for [Layout.ReadBlock]; it is an io.ReaderAt.
func (p *Snapshot) ReadAt(b []byte, off int64) (int, error) { return p.o.ReadAt(b, off) }

// Published ends the snapshot: id has its bytes, and the next one is a delta over it. An error says that this is not
// noted for after a crash.
func (p *Snapshot) Published(id ID) error {
	p.o.content.Lock()
	defer p.o.content.Unlock()
	if p.o.snap != p {
		return nil
	}
	p.o.snap, p.o.prior, p.o.priorSize = nil, id, p.shape.Size
	return p.o.st.SetOver(id)
}

// Failed ends the snapshot: what it held counts as changed again.
func (p *Snapshot) Failed() {
	p.o.content.Lock()
	defer p.o.content.Unlock()
	if p.o.snap == p {
		p.o.snap = nil
		p.o.fresh.merge(&p.fresh)
		p.o.cut = min(p.o.cut, p.cut)
	}
}
