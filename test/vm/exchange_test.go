package vm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/rdmcfs/rdmcfs/rdma"
)

const (
	slotBytes = 64 << 10
	slots     = 8 // of messages on their way out
	// each way; all have a receive from the beginning, with a slot of its own: none is sent again for want of it
	messages  = 240
	receives  = messages + 1
	areaAt    = (slots + receives) * slotBytes
	areaBytes = 4 << 20 // of writes and reads
)

// pairEnd is a queue pair at an end of the wire, with a region of slots and an area.
type pairEnd struct {
	t          testing.TB
	mem        rdma.Region
	sent, rcvd rdma.CompletionQueue
	qp         rdma.QueuePair
	peer       rdma.RegionKey
}

// pair makes a queue pair and joins it with the other end's.
func (e *wireEnd) pair() *pairEnd {
	e.t.Helper()
	p := &pairEnd{t: e.t}
	var err error
	if p.mem, err = e.dev.AllocRegion(areaAt+areaBytes, rdma.RemoteRead|rdma.RemoteWrite); err != nil {
		e.t.Fatal(err)
	}
	for _, q := range []*rdma.CompletionQueue{&p.sent, &p.rcvd} {
		if *q, err = e.dev.NewCQ(receives); err != nil {
			e.t.Fatal(err)
		}
	}
	if p.qp, err = e.dev.NewQP(rdma.QPConfig{SendCQ: p.sent, RecvCQ: p.rcvd, SendDepth: slots,
		RecvDepth: receives}); err != nil {
		e.t.Fatal(err)
	}
	for i := range receives {
		if err := p.qp.PostRecv(rdma.RecvWR{ID: uint64(i), List: p.list((slots+i)*slotBytes, slotBytes)}); err != nil {
			p.t.Fatal(err)
		}
	}
	theirs := e.say(told{Step: "address", Address: p.qp.Address(), Key: p.mem.Key()})
	p.peer = theirs.Key
	ctx, cancel := context.WithTimeout(e.t.Context(), endLimit)
	defer cancel()
	if err := p.qp.Connect(ctx, theirs.Address); err != nil {
		e.t.Fatal(err)
	}
	return p
}

func (p *pairEnd) list(at, n int) []rdma.SGE {
	return []rdma.SGE{{Region: p.mem, Offset: at, Length: n}}
}

// take waits for one good completion.
func (p *pairEnd) take(q rdma.CompletionQueue) (rdma.Completion, error) {
	ctx, cancel := context.WithTimeout(context.Background(), endLimit)
	defer cancel()
	var out [1]rdma.Completion
	for q.Poll(out[:]) == 0 {
		if err := q.Wait(ctx); err != nil {
			return out[0], err
		}
	}
	if out[0].Status != rdma.StatusOK {
		return out[0], fmt.Errorf("completion %d: %v", out[0].ID, out[0].Status)
	}
	return out[0], nil
}

// content is what message i from an end holds: a length and bytes by chance, from the phase, the end and the number.
func content(phase string, first bool, i uint64) []byte {
	r := rand.NewChaCha8(sha256.Sum256(fmt.Appendf(nil, "%s %v %d", phase, first, i)))
	b := make([]byte, 1+r.Uint64()%slotBytes)
	r.Read(b)
	return b
}

// exchange sends messages both ways at once, then writes to the other end's area and reads it back.
func (e *wireEnd) exchange(phase string) {
	e.t.Helper()
	p := e.pair()
	var both sync.WaitGroup
	both.Go(func() {
		if err := p.sendAll(phase, e.first); err != nil {
			e.t.Errorf("%s: send: %v", phase, err)
		}
	})
	if err := p.receiveAll(phase, !e.first); err != nil {
		e.t.Errorf("%s: receive: %v", phase, err)
	}
	both.Wait()
	e.say(told{Step: phase + ": messages"})
	if !e.t.Failed() {
		e.oneSided(phase, p)
	}
	e.say(told{Step: phase + ": writes and reads"})
	if err := p.qp.Close(); err != nil {
		e.t.Error(err)
	}
}

func (p *pairEnd) sendAll(phase string, first bool) error {
	for i := range uint64(messages + slots) {
		if i >= slots { // the slot's last message has left
			if c, err := p.take(p.sent); err != nil || c.ID != i-slots {
				return fmt.Errorf("%+v instead of message %d: %w", c, i-slots, err)
			}
		}
		if i >= messages {
			continue
		}
		at := int(i%slots) * slotBytes
		n := copy(p.mem.Bytes()[at:], content(phase, first, i))
		if err := p.qp.PostSend(rdma.SendWR{ID: i, Op: rdma.OpSend, List: p.list(at, n), Imm: uint32(i)}); err != nil {
			return err
		}
	}
	return nil
}

func (p *pairEnd) receiveAll(phase string, first bool) error {
	for i := range uint64(messages) {
		c, err := p.take(p.rcvd)
		if err != nil {
			return fmt.Errorf("after %d: %w", i, err)
		}
		at, want := int(slots+i)*slotBytes, content(phase, first, i)
		if c.ID != i || c.Imm != uint32(i) || !bytes.Equal(p.mem.Bytes()[at:at+c.Bytes], want) {
			return fmt.Errorf("message %d is not what was sent: %+v", i, c)
		}
	}
	return nil
}

// oneSided: end 1 writes the other's area, the last piece with an immediate value, and reads it back; end 2 reports
// what it finds there.
func (e *wireEnd) oneSided(phase string, p *pairEnd) {
	e.t.Helper()
	there := p.mem.Bytes()[areaAt:]
	if !e.first {
		if c, err := p.take(p.rcvd); err != nil || c.Op != rdma.OpRecvWriteImm || c.Imm != areaBytes {
			e.t.Errorf("%s: write with immediate value: %+v, %v", phase, c, err)
		}
		e.say(told{Step: phase + ": written", Sum: sha256.Sum256(there)})
		return
	}
	rand.NewChaCha8(sha256.Sum256([]byte(phase))).Read(there)
	sum := sha256.Sum256(there)
	pieces := func(op rdma.Opcode) {
		for at := 0; at < areaBytes; at += slotBytes {
			wr := rdma.SendWR{Op: op, List: p.list(areaAt+at, slotBytes), RemoteKey: p.peer, RemoteAddr: uint64(areaAt + at)}
			if op == rdma.OpWrite && at == areaBytes-slotBytes {
				wr.Op, wr.Imm = rdma.OpWriteImm, areaBytes
			}
			if err := p.qp.PostSend(wr); err != nil {
				e.t.Fatal(err)
			}
			if c, err := p.take(p.sent); err != nil {
				e.t.Fatalf("%s: at %d: %+v: %v", phase, at, c, err)
			}
		}
	}
	pieces(rdma.OpWrite)
	if e.say(told{Step: phase + ": written"}).Sum != sum {
		e.t.Errorf("%s: other bytes were written", phase)
	}
	clear(there)
	pieces(rdma.OpRead)
	if sha256.Sum256(there) != sum {
		e.t.Errorf("%s: other bytes were read", phase)
	}
}
