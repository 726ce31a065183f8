package strike

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/rdmcfs/rdmcfs/internal/coder"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
)

// calls are the calls between the nodes of a fault run: one connection each, over a network that can be cut.
//
//	request: from 1, kind 1, length 4, bytes        answer: 0 if it was refused, length 4, bytes
type calls struct {
	self      meta.NodeID
	network   *dropper
	addresses []string // by rank; set before the first call
	handle    func(ctx context.Context, from meta.NodeID, kind replicate.Kind, payload []byte) ([]byte, error)
}

// nodeOf is the number in the log of the process of a rank.
func nodeOf(rank int) meta.NodeID { return meta.NodeID(rank + 1) }

func rankOf(node meta.NodeID) int { return int(node) - 1 }

// Call implements replicate.Peers.
func (c *calls) Call(ctx context.Context, node meta.NodeID, kind replicate.Kind, payload []byte) ([]byte, error) {
	conn, err := c.network.dial(ctx, c.addresses[rankOf(node)])
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if err := writeCall(conn, []byte{byte(c.self), byte(kind)}, payload); err != nil {
		return nil, errors.Join(ctx.Err(), err)
	}
	head, answer, err := readCall(conn, 1)
	switch {
	case err != nil:
		return nil, errors.Join(ctx.Err(), err)
	case head[0] == 0:
		return nil, fmt.Errorf("strike: node %d: %s", node, answer)
	}
	return answer, nil
}

func writeCall(w io.Writer, head, payload []byte) error {
	c := coder.Writer(nil, coder.Little)
	c.Fixed(head)
	c.View32(&payload, replicate.MaxMessageBytes)
	_, err := w.Write(c.Written())
	return err
}

func readCall(r io.Reader, heads int) (head, payload []byte, err error) {
	b := make([]byte, heads+4)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, nil, err
	}
	var n uint32
	c := coder.Reader(b[heads:], coder.Little)
	if c.U32(&n); n > replicate.MaxMessageBytes {
		return nil, nil, fmt.Errorf("strike: a call of %d bytes", n)
	}
	payload = make([]byte, n)
	_, err = io.ReadFull(r, payload)
	return b[:heads], payload, err
}

// serve answers calls until the listener is closed, and waits for the calls it has begun.
func (c *calls) serve(ctx context.Context, listener net.Listener) {
	var work sync.WaitGroup
	defer work.Wait()
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		work.Go(func() {
			defer conn.Close()
			defer context.AfterFunc(ctx, func() { conn.Close() })()
			c.answer(ctx, conn)
		})
	}
}

func (c *calls) answer(ctx context.Context, conn net.Conn) {
	head, payload, err := readCall(conn, 2)
	if err != nil {
		return
	}
	answer, err := c.handle(ctx, meta.NodeID(head[0]), replicate.Kind(head[1]), payload)
	ok := byte(1)
	if err != nil {
		ok, answer = 0, []byte(err.Error())
	}
	writeCall(conn, []byte{ok}, answer) // the caller notices
}
