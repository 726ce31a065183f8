package ring

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/mem"
)

// rogue is a peer that says what it likes.
type rogue struct {
	t    testing.TB
	qp   rdma.QueuePair
	cq   rdma.CompletionQueue
	mem  rdma.Region
	to   address
	seen int // completions of sends
}

const rogueBytes = 1 << 18

func newRogue(t testing.TB, d rdma.Device, victim []byte) *rogue {
	t.Helper()
	r := &rogue{t: t}
	var err error
	if r.to, err = decodeAddress(victim); err != nil {
		t.Fatal(err)
	}
	if r.cq, err = d.NewCQ(1 << 10); err != nil {
		t.Fatal(err)
	}
	if r.mem, err = d.AllocRegion(rogueBytes, rdma.RemoteWrite); err != nil {
		t.Fatal(err)
	}
	if r.qp, err = d.NewQP(rdma.QPConfig{SendCQ: r.cq, RecvCQ: r.cq, SendDepth: 1 << 8, RecvDepth: 1 << 8}); err != nil {
		t.Fatal(err)
	}
	for i := range 64 {
		if err := r.qp.PostRecv(rdma.RecvWR{List: []rdma.SGE{{Region: r.mem, Offset: rogueBytes/2 + i*256,
			Length: 256}}}); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// address is what a victim needs to connect.
func (r *rogue) address() []byte {
	a := address{slots: 4, receives: 4, slotBytes: 256, ordered: true, key: r.mem.Key(), pair: r.qp.Address()}
	return a.encode()
}

func (r *rogue) post(wr rdma.SendWR, b []byte) {
	copy(r.mem.Bytes(), b)
	wr.List = []rdma.SGE{{Region: r.mem, Length: len(b)}}
	if err := r.qp.PostSend(wr); err != nil {
		return // the victim has hung up already
	}
	r.drain()
}

// drain waits for the completion of one send.
func (r *rogue) drain() {
	var out [1]rdma.Completion
	await(r.t, "a completion", func() bool { return r.cq.Poll(out[:]) == 1 && !out[0].Op.IsReceive() })
}

func (r *rogue) send(b []byte) { r.post(rdma.SendWR{Op: rdma.OpSend}, b) }
func (r *rogue) write(at uint64, b []byte) {
	r.post(rdma.SendWR{Op: rdma.OpWrite, RemoteKey: r.to.key, RemoteAddr: at}, b)
}

// message is a well-formed one, as far as f allows.
func message(f frame, body ...byte) []byte {
	b := make([]byte, headerBytes+len(body))
	copy(b[headerBytes:], body)
	f.size = len(body)
	f.encode(b, flagPrimary)
	return b
}

// slotMessage is one as it is written to a slot.
func slotMessage(f frame, body ...byte) []byte {
	b := make([]byte, tailOffset(len(body))+wordBytes)
	copy(b[headerBytes:], body)
	f.size = len(body)
	seal(b, &f)
	return b
}

func wordOf(w uint64) []byte { return binary.LittleEndian.AppendUint64(nil, w) }

// attacks end the channel of the victim with ErrProtocol.
var attacks = map[string]func(r *rogue){
	"Empty":     func(r *rogue) { r.send([]byte{1}) },
	"Noise":     func(r *rogue) { r.send(noise(200)) },
	"BadCRC":    func(r *rogue) { b := message(frame{kind: kindData}, 1, 2, 3); b[headerBytes]++; r.send(b) },
	"BadSize":   func(r *rogue) { r.send(message(frame{kind: kindData}, 1, 2, 3)[:headerBytes+2]) },
	"BadKind":   func(r *rogue) { r.send(message(frame{kind: 60})) },
	"Number":    func(r *rogue) { r.send(message(frame{kind: kindData, number: 1 << 20})) },
	"Repeated":  func(r *rogue) { r.send(message(frame{kind: kindData})); r.send(message(frame{kind: kindData})) },
	"Slots":     func(r *rogue) { r.send(message(frame{kind: kindState, slotsFreed: 1})) },
	"Receives":  func(r *rogue) { r.send(message(frame{kind: kindState, recvsFreed: 5})) },
	"SetSaw":    func(r *rogue) { r.send(message(frame{kind: kindState, setSaw: 1})) },
	"StateBody": func(r *rogue) { r.send(message(frame{kind: kindState}, 1)) },
	"Reserved3": func(r *rogue) { r.send(message(frame{kind: 3}, wordOf(1<<20)...)) },
	"Reserved5": func(r *rogue) { r.send(message(frame{kind: 5}, make([]byte, 24)...)) },
	"Reserved6": func(r *rogue) { r.send(message(frame{kind: 6}, make([]byte, 8)...)) },
	"AfterEnd": func(r *rogue) {
		r.send(message(frame{kind: kindEnd}))
		r.send(message(frame{kind: kindData, number: 1}))
	},
	"Flood": func(r *rogue) {
		for i := range uint32(16 + 8 + 1) { // the buffers of the victim, which reads nothing
			r.send(message(frame{kind: kindData, number: i}))
		}
	},
	"RingSize":      func(r *rogue) { r.write(0, wordOf(head{flagPrimary, kindData, sizeMax}.word())) },
	"RingCRC":       func(r *rogue) { b := slotMessage(frame{kind: kindData}, 1, 2); b[headerBytes]++; r.write(0, b) },
	"RingNumber":    func(r *rogue) { r.write(0, slotMessage(frame{kind: kindData, number: 9999}, 1, 2)) },
	"RingState":     func(r *rogue) { r.write(0, slotMessage(frame{kind: kindState})) },
	"RingReserved3": func(r *rogue) { r.write(0, slotMessage(frame{kind: 3}, wordOf(1<<20)...)) },
	"RingReserved5": func(r *rogue) { r.write(0, slotMessage(frame{kind: 5}, make([]byte, 24)...)) },
	"RingReserved6": func(r *rogue) { r.write(0, slotMessage(frame{kind: 6}, make([]byte, 8)...)) },
	"RingFlood": func(r *rogue) {
		n := uint64(r.to.slotBytes)
		for i := range uint64(16+8) + 1 {
			r.write(i%uint64(r.to.slots)*n, slotMessage(frame{kind: kindData, number: uint32(i)}))
			r.lookRing()
		}
	},
}

// lookRing makes the victim look at its ring; it is set by the test.
func (r *rogue) lookRing() { r.t.(interface{ look() }).look() }

func noise(n int) []byte {
	b, r := make([]byte, n), rand.New(rand.NewPCG(1, 2))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// victimT is a testing.TB with the victim.
type victimT struct {
	testing.TB
	c *Channel
}

// look polls the victim's ring as a member of the polling set is.
func (v victimT) look() {
	v.c.e.poll.Lock()
	defer v.c.e.poll.Unlock()
	v.c.takeRing()
}

// TestMaliciousPeer: whatever a peer sends or writes, its channel ends with an error that says so, and the others live.
func TestMaliciousPeer(t *testing.T) {
	for _, p := range providers() {
		for name, attack := range attacks {
			t.Run(p.name+"/"+name, func(t *testing.T) {
				a, b, _ := p.open(t)
				x, y := openEndpoint(t, a, Config{Receives: 8}), openEndpoint(t, b, Config{})
				other, peer := connect(t, x, y)
				victim, r := connectRogue(t, x, b)
				attack(r)
				await(t, "the end of the channel", func() bool {
					victimT{t, victim}.look()
					victim.mu.Lock()
					defer victim.mu.Unlock()
					if victim.inbox.n > 0 && victim.err == nil && victim.in.slotsFreed == 0 &&
						!strings.Contains("Flood RingFlood", name) {
						_, _, _ = victim.tryRecvLocked(make([]byte, 256))
					}
					return victim.err != nil
				})
				if !errors.Is(victim.err, ErrProtocol) {
					t.Errorf("%v", victim.err)
				}
				stream(t, other, peer, 1, 50)
			})
		}
	}
}

// connectRogue joins a new channel of x with a rogue on d.
func connectRogue(t testing.TB, x *Endpoint, d rdma.Device) (*Channel, *rogue) {
	t.Helper()
	victim, err := x.NewChannel()
	if err != nil {
		t.Fatal(err)
	}
	r := newRogue(victimT{t, victim}, d, victim.Address())
	var wg sync.WaitGroup
	var failed error
	wg.Go(func() { failed = r.qp.Connect(bound(t), r.to.pair) })
	if err := victim.Connect(bound(t), r.address()); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if failed != nil {
		t.Fatal(failed)
	}
	t.Cleanup(func() {
		_ = r.qp.Close()
		_ = r.mem.Close()
	})
	return victim, r
}

// TestHarmlessOddities: an oddity that is no violation changes nothing.
func TestHarmlessOddities(t *testing.T) {
	for _, p := range providers() {
		t.Run(p.name, func(t *testing.T) {
			a, b, _ := p.open(t)
			victim, r := connectRogue(t, openEndpoint(t, a, Config{}), b)
			r.write(0, wordOf(0x0101)) // a part of a head word
			victimT{t, victim}.look()
			r.write(0, wordOf(0))
			r.send(message(frame{kind: kindState, slotsFreed: 1 << 31})) // counts of long ago
			r.send(message(frame{kind: kindData}, 42))
			var got [1]byte
			if _, err := victim.Recv(bound(t), got[:]); err != nil || got[0] != 42 {
				t.Errorf("%d %v", got[0], err)
			}
		})
	}
}

// TestAddressesOfBadPeers: sizes are bounded before memory is made for them.
func TestAddressesOfBadPeers(t *testing.T) {
	d, _, _ := memDevices(t)
	e := openEndpoint(t, d, Config{})
	for _, a := range []address{
		{slots: 1 << 15, receives: 4, slotBytes: 128}, {slots: 4, receives: 4, slotBytes: 1 << 30},
		{slots: 1000, receives: 4, slotBytes: 8192},
		{slots: 0, receives: 4, slotBytes: 128}, {slots: 4, receives: 1, slotBytes: 128},
		{slots: 4, receives: 4, slotBytes: 129},
	} {
		c, err := e.NewChannel()
		if err != nil {
			t.Fatal(err)
		}
		a.pair = []byte("x")
		if err := c.Connect(bound(t), a.encode()); !errors.Is(err, rdma.ErrRequest) {
			t.Errorf("%+v: %v", a, err)
		}
	}
}

// FuzzPeer sends and writes what it is given to a channel, with right checksums where the first byte says so.
func FuzzPeer(f *testing.F) {
	f.Add([]byte{0, 8, 1, 2, 3, 4, 5, 6, 7, 8})
	f.Add([]byte{1, 40, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 3, 40, 1, 1, 1, 1})
	f.Fuzz(func(t *testing.T, in []byte) {
		fabric := mem.NewFabric(mem.Config{Seed: 1, Stepped: true})
		a, b := fabric.Device("a"), fabric.Device("b")
		defer func() { _ = a.Close(); _ = b.Close() }()
		e, err := newEndpoint(a, Config{Slots: 4, Receives: 4, EagerBytes: 64, CloseTimeout: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = e.Close() }()
		c, err := e.NewChannel()
		if err != nil {
			t.Fatal(err)
		}
		r := newRogue(t, b, c.Address())
		if err := errors.Join(c.Connect(t.Context(), r.address()), r.qp.Connect(t.Context(), r.to.pair)); err != nil {
			t.Fatal(err)
		}
		for len(in) >= 2 {
			mode, n := in[0], min(int(in[1]), len(in)-2)
			feed(r, mode, in[2:2+n])
			in = in[2+n:]
			for fabric.Step() {
			}
			e.poll.Lock()
			c.takeRing()
			e.progressLocked(true)
			e.poll.Unlock()
			var buf [128]byte
			c.mu.Lock()
			_, _, _ = c.tryRecvLocked(buf[:])
			c.mu.Unlock()
		}
	})
}

// feed posts b raw or as a message, by send or to slot mode>>4.
func feed(r *rogue, mode byte, b []byte) {
	if mode&1 != 0 && len(b) >= 16 {
		fr := frame{kind: kind(1 + b[0]%7), number: uint32(b[1] % 8), slotsFreed: uint32(b[2] % 4),
			recvsFreed: uint32(b[3] % 4),
			set:        uint16(b[4] % 3), setSaw: uint16(b[5] % 3)}
		if b = b[6:]; mode&2 != 0 {
			b = slotMessage(fr, b...)
		} else {
			b = message(fr, b...)
		}
	}
	copy(r.mem.Bytes(), b)
	wr := rdma.SendWR{Op: rdma.OpSend, List: []rdma.SGE{{Region: r.mem, Length: min(len(b), r.to.slotBytes)}}}
	if mode&2 != 0 {
		wr.Op, wr.RemoteKey, wr.RemoteAddr = rdma.OpWrite, r.to.key, uint64(int(mode>>4)%r.to.slots*r.to.slotBytes)
	}
	_ = r.qp.PostSend(wr) // refused once the channel has ended
}
