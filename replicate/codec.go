package replicate

import (
	"fmt"

	"github.com/rdmcfs/rdmcfs/internal/coder"
	"github.com/rdmcfs/rdmcfs/meta"
)

// errWire is wrapped by every decoding error.
var errWire = coder.ErrMalformed

// message is what travels. One method of each kind lists its fields.
type message interface{ code(*fields) }

// fields is a coder that knows the types of this package. Numbers are big endian; lengths and offsets are varints.
// Bytes that are read are parts of the message.
type fields struct{ coder.Coder }

// encode returns a message's bytes. With about room for them, nothing is copied.
func encode(m message, room int) []byte {
	c := fields{coder.Writer(make([]byte, 0, room), coder.Big)}
	c.Same8("version", wireVersion)
	m.code(&c)
	return c.Written()
}

// decode reads what encode wrote.
func decode[T any, P interface {
	*T
	message
}](b []byte) (m T, err error) {
	c := fields{coder.Reader(b, coder.Big)}
	c.Same8("version", wireVersion)
	P(&m).code(&c)
	if err = c.Finish(); err != nil {
		err = fmt.Errorf("replicate: %w", err)
	}
	return m, err
}

func (c *fields) node(p *meta.NodeID) { c.U32((*uint32)(p)) }

func (c *fields) id(p *meta.ContentID) {
	c.node(&p.Node)
	c.U32(&p.Incarnation)
	c.U64(&p.Seq)
}

func (c *fields) nodes(p *[]meta.NodeID, max int) {
	for i := range coder.Slice(&c.Coder, p, max, 4) {
		c.node(&(*p)[i])
	}
}

func (c *fields) ids(p *[]meta.ContentID, max int) {
	for i := range coder.Slice(&c.Coder, p, max, 16) {
		c.id(&(*p)[i])
	}
}

// text is cut to what a message may have of it.
func (c *fields) text(p *string) {
	s := clipText(*p)
	if c.Text(&s, maxTextBytes); c.Reading() {
		*p = s
	}
}

func clipText(s string) string { return s[:min(len(s), maxTextBytes)] }
