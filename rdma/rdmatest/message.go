package rdmatest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/minio/crc64nvme"

	"github.com/rdmcfs/rdmcfs/rdma"
)

var messageChecks = []check{
	{"Message/Sizes", messageSizes},
	{"Message/GatherScatter", messageGatherScatter},
	{"Message/Inline", messageInline},
	{"Message/Unsignaled", messageUnsignaled},
	{"Message/Order", messageOrder},
	{"Message/PostsAllOrNone", messageAllOrNone},
	{"Message/ReceiveWithoutMemory", messageNoMemory},
	{"Message/RegisteredMemory", messageRegistered},
	{"Message/CRC", messageCRC},
	{"Message/Seal", messageSeal},
}

// messageSizes covers what fits into a header buffer, what does not, and all sizes around words.
func messageSizes(t *testing.T, p *Pair) {
	a, b := p.link(t, options{bytes: 8 << 20})
	sizes := []int{0, 1, 7, 8, 9, 63, 64, 4055, 4056, 4057, 4095, 4096, 4097, 65535, 65536, 1 << 20, 8 << 20}
	random(a.mem.Bytes(), 3)
	for i, n := range sizes {
		clear(b.mem.Bytes())
		b.recv(uint64(i), 0, len(b.mem.Bytes()))
		a.post(rdma.SendWR{ID: uint64(i), Op: rdma.OpSend, List: a.list(0, n), Imm: uint32(n)})
		if c := b.takeRcvd(uint64(i), rdma.StatusOK); c.Bytes != n || c.Imm != uint32(n) {
			t.Fatalf("size %d: completion %+v", n, c)
		}
		a.takeSent(uint64(i), rdma.StatusOK)
		wantBytes(t, b.bytes(0, n), a.bytes(0, n), "message")
		if rest := b.mem.Bytes()[n:]; len(rest) > 0 && !bytes.Equal(rest, make([]byte, len(rest))) {
			t.Fatalf("size %d: bytes behind the message changed", n)
		}
	}
}

// messageGatherScatter cuts a message differently on both sides, with empty entries.
func messageGatherScatter(t *testing.T, p *Pair) {
	a, b := p.link(t, options{})
	random(a.mem.Bytes(), 5)
	cuts := []rdma.SGE{a.sge(5000, 3000), a.sge(0, 0), a.sge(100, 1), a.sge(20000, 60000)}
	var want []byte
	for _, c := range cuts {
		want = append(want, a.bytes(c.Offset, c.Length)...)
	}
	into := []rdma.SGE{b.sge(0, 0), b.sge(700000, 10), b.sge(0, 50000), b.sge(100001, 100000)}
	if err := b.qp.PostRecv(rdma.RecvWR{ID: 1, List: into}); err != nil {
		t.Fatal(err)
	}
	a.post(rdma.SendWR{ID: 1, Op: rdma.OpSend, List: cuts})
	if c := b.takeRcvd(1, rdma.StatusOK); c.Bytes != len(want) {
		t.Fatalf("%d bytes arrived, want %d", c.Bytes, len(want))
	}
	var got []byte
	for _, c := range into {
		got = append(got, b.bytes(c.Offset, c.Length)...)
	}
	wantBytes(t, got[:len(want)], want, "scattered message")
}

// messageInline: the bytes are the poster's again when PostSend has returned.
func messageInline(t *testing.T, p *Pair) {
	a, b := p.link(t, options{})
	n := a.dev.Limits().MaxInline
	if n == 0 {
		t.Skip("no inline sends")
	}
	want := make([]byte, n)
	random(want, 9)
	mine := bytes.Clone(want)
	b.recv(1, 0, n)
	b.recv(2, n, n)
	for id := range 2 {
		copy(mine, want)
		a.post(rdma.SendWR{ID: uint64(id), Op: rdma.OpSend, Inline: mine})
		clear(mine)
	}
	b.take(b.rcvd, 2)
	wantBytes(t, b.bytes(0, n), want, "first inline message")
	wantBytes(t, b.bytes(n, n), want, "second inline message")
	err := a.qp.PostSend(rdma.SendWR{Op: rdma.OpSend, Inline: make([]byte, n+1)})
	wantError(t, err, rdma.ErrRequest)
}

func messageUnsignaled(t *testing.T, p *Pair) {
	a, b := p.link(t, options{})
	for i := range 8 {
		b.recv(uint64(i), 0, 10)
		a.post(rdma.SendWR{ID: uint64(i), Op: rdma.OpSend, List: a.list(0, 10), Unsignaled: i != 7})
	}
	b.take(b.rcvd, 8)
	a.takeSent(7, rdma.StatusOK)
	a.empty(a.sent)
}

// messageOrder: sends and writes of changing sizes; each message finds the write before it in place.
func messageOrder(t *testing.T, p *Pair) {
	const rounds, depth = 400, 32
	a, b := p.link(t, options{})
	for i := range depth {
		b.recv(uint64(i), 1024*i, 1024)
	}
	for i := range rounds {
		word := a.bytes(8*(i%depth), 8)
		copy(word, []byte{byte(i), byte(i >> 8), 1, 2, 3, 4, 5, 6})
		a.post(
			rdma.SendWR{ID: uint64(2 * i), Op: rdma.OpWrite, List: a.list(8*(i%depth), 8),
				RemoteKey: b.mem.Key(), RemoteAddr: 512 << 10},
			rdma.SendWR{ID: uint64(2*i + 1), Op: rdma.OpSend, List: a.list(4096, i%1024), Imm: uint32(i)})
		c := b.takeRcvd(uint64(i), rdma.StatusOK)
		if got := b.bytes(512<<10, 2); c.Imm != uint32(i) || got[0] != byte(i) || got[1] != byte(i>>8) {
			t.Fatalf("message %d: imm %d, word before it %x", i, c.Imm, got)
		}
		b.recv(uint64(i+depth), 1024*(i%depth), 1024)
		for k := range 2 {
			a.takeSent(uint64(2*i+k), rdma.StatusOK)
		}
	}
}

func messageAllOrNone(t *testing.T, p *Pair) {
	a, b := p.link(t, options{sendDepth: 4, recvDepth: 4})
	good := rdma.SendWR{ID: 1, Op: rdma.OpSend, List: a.list(0, 10)}
	bad := rdma.SendWR{ID: 2, Op: rdma.OpSend, List: a.list(linkBytes-5, 10)}
	wantError(t, a.qp.PostSend(good, bad), rdma.ErrBounds)
	wantError(t, a.qp.PostSend(good, good, good, good, good), rdma.ErrQueueFull)
	recv := rdma.RecvWR{ID: 5, List: b.list(0, 10)}
	wantError(t, b.qp.PostRecv(recv, rdma.RecvWR{List: b.list(-1, 4)}), rdma.ErrBounds)
	wantError(t, b.qp.PostRecv(recv, recv, recv, recv, recv), rdma.ErrQueueFull)
	b.recv(6, 0, 10)
	a.post(rdma.SendWR{ID: 7, Op: rdma.OpSend, List: a.list(0, 10)})
	b.takeRcvd(6, rdma.StatusOK)
	a.takeSent(7, rdma.StatusOK)
	a.empty(a.sent)
	b.empty(b.rcvd)
}

func messageNoMemory(t *testing.T, p *Pair) {
	a, b := p.link(t, options{})
	if err := b.qp.PostRecv(rdma.RecvWR{ID: 4}); err != nil {
		t.Fatal(err)
	}
	a.post(rdma.SendWR{ID: 1, Op: rdma.OpSend, Imm: 1 << 31})
	if c := b.takeRcvd(4, rdma.StatusOK); c.Bytes != 0 || c.Imm != 1<<31 {
		t.Fatalf("completion %+v", c)
	}
}

// messageRegistered sends from memory the caller owns.
func messageRegistered(t *testing.T, p *Pair) {
	a, b := p.link(t, options{})
	src, err := a.dev.Register(a.bytes(64<<10, 64<<10), 0)
	if err != nil {
		t.Fatal(err)
	}
	random(src.Bytes(), 11)
	b.recv(1, 0, 64<<10)
	a.post(rdma.SendWR{ID: 1, Op: rdma.OpSend, List: []rdma.SGE{{Region: src, Offset: 1, Length: 1000}}})
	b.takeRcvd(1, rdma.StatusOK)
	wantBytes(t, b.bytes(0, 1000), src.Bytes()[1:1001], "message")
	a.takeSent(1, rdma.StatusOK)
	if err := src.Close(); err != nil {
		t.Error(err)
	}
	wantBytes(t, b.bytes(0, 1000), a.bytes(64<<10+1, 1000), "memory after deregistration")
}

// messageCRC compares checksums that the provider reports with the bytes that lie in memory, which need not lie in one
// piece.
func messageCRC(t *testing.T, p *Pair) {
	a, b := p.link(t, options{wantCRC: true})
	random(a.mem.Bytes(), 11)
	for i, n := range []int{0, 1, 40, 4096, 65_536, 300_001, 700_000} {
		into := []rdma.SGE{b.sge(16, n/3), b.sge(500_000, n-n/3)}
		if err := b.qp.PostRecv(rdma.RecvWR{ID: uint64(i), List: into}); err != nil {
			t.Fatal(err)
		}
		a.post(rdma.SendWR{ID: uint64(i), Op: rdma.OpSend, List: a.list(0, n)})
		c := b.takeRcvd(uint64(i), rdma.StatusOK)
		a.takeSent(uint64(i), rdma.StatusOK)
		want := crc64nvme.Update(crc64nvme.Checksum(b.bytes(16, n/3)), b.bytes(500_000, n-n/3))
		if c.HasCRC && c.CRC != want {
			t.Fatalf("%d bytes: told CRC %016x, memory has %016x", n, c.CRC, want)
		}
	}
}

// messageSeal makes the provider put checksums behind messages, many at a time between others; a provider that can't
// must say so.
func messageSeal(t *testing.T, p *Pair) {
	a, b := p.link(t, options{})
	random(a.mem.Bytes(), 12)
	sealed := func(id uint64, n int) rdma.SendWR {
		return rdma.SendWR{ID: id, Op: rdma.OpSend, List: []rdma.SGE{a.sge(0, n), a.sge(800_000+int(id)*64, 40)},
			SealCRC: true}
	}
	if !a.dev.Limits().SealsCRC {
		if err := a.qp.PostSend(sealed(0, 10)); !errors.Is(err, rdma.ErrRequest) {
			t.Fatalf("a send to be sealed: %v", err)
		}
		return
	}
	for _, bad := range []rdma.SendWR{
		{Op: rdma.OpSend, List: a.list(0, 7), SealCRC: true},
		{Op: rdma.OpSend, Inline: make([]byte, 8), SealCRC: true},
		{Op: rdma.OpWriteImm, List: a.list(0, 8), SealCRC: true},
	} {
		if err := a.qp.PostSend(bad); !errors.Is(err, rdma.ErrRequest) {
			t.Fatalf("%+v: %v", bad, err)
		}
	}
	sizes := []int{0, 1, 4096, 65_536, 262_104, 262_144, 262_148, 700_000}
	for i, n := range sizes {
		id := uint64(i)
		b.recv(2*id, 0, 1000)
		b.recv(2*id+1, 0, n+40)
		a.post(rdma.SendWR{ID: 2 * id, Op: rdma.OpSend, List: a.list(0, 1000)})
		wr := sealed(id, n)
		wr.ID = 2*id + 1
		a.post(wr)
		b.takeRcvd(2*id, rdma.StatusOK)
		b.takeRcvd(2*id+1, rdma.StatusOK)
		a.takeSent(2*id, rdma.StatusOK)
		a.takeSent(2*id+1, rdma.StatusOK)
		got := b.bytes(0, n+40)
		want := crc64nvme.Checksum(got[:n+32])
		if told := binary.LittleEndian.Uint64(got[n+32:]); told != want {
			t.Fatalf("%d bytes: sealed with %016x, want %016x", n, told, want)
		}
		wantBytes(t, got[:n], a.bytes(0, n), "message")
	}
}
