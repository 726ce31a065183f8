// Package coder is the one way in which rdmcfs turns values into bytes and back, on the wire and on disk.
//
// The fields of a message are listed once, in a method that takes a [Coder]. A Coder either appends the fields to bytes
// or reads them from bytes, so the two directions can't drift apart:
//
//	func (m *stop) code(c *coder.Coder) {
//		c.Same8("version", wireVersion)
//		c.U32(&m.Epoch)
//		c.Flag(&m.Drop)
//	}
//
//	c := coder.Writer(nil, coder.Big)      c := coder.Reader(b, coder.Big)
//	m.code(&c)                             m.code(&c)
//	b := c.Written()                       err := c.Finish()
//
// Everything that is read comes from outside. Before anything is allocated, each size is compared with the bound that
// the caller names and with what is left of the input. The first fault sticks: all later reads give zero, and
// [Coder.Finish] returns the fault. Accepted bytes are exactly the bytes that writing the same values gives: there is
// no second form of a number or of a flag.
//
// The package is pure: it takes bytes and returns bytes. A Coder that is a local variable and is passed to methods of
// known types causes no allocation.
package coder
