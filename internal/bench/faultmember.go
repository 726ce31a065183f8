package bench

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma/tcp"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc/rendezvous"
)

// faultTask is what a member process of Fault reads first from its input. One order a line follows; the input's end
// is the last.
type faultTask struct {
	Plan         FaultPlan
	Rank         int
	Room, Listen string
	HasListener  bool // of the room, as roomFD
	Drops        bool // its network can be cut by order
}

// Orders to a member process.
const (
	orderSend   = "send"   // to the root: the next message
	orderCut    = "cut"    // drop what comes and goes
	orderGoOn   = "go on"  // to the root that holds: the victim has been struck
	orderFinish = "finish" // tell the digest again, and end
)

// Events of a member process, one JSON value a line.
const (
	eventReady     = "ready"     // the session has begun
	eventCut       = "cut"       // drops what comes and goes
	eventReached   = "reached"   // the root has sent so much of the message that is to be disturbed
	eventTold      = "told"      // heard of a failure
	eventDelivered = "delivered" // a message is here, at the root: everywhere
	eventFinal     = "final"     // its last digest
	eventEnded     = "ended"     // the session has ended with an error
)

// faultEvent is what a member process says. At is the machine's time in ns.
type faultEvent struct {
	Event    string               `json:"event"`
	Rank     int                  `json:"rank"`
	At       int64                `json:"at"`
	Message  int                  `json:"message,omitempty"` // from 1
	Digest   string               `json:"digest,omitempty"`
	Text     string               `json:"text,omitempty"`
	Seconds  float64              `json:"seconds,omitempty"`
	Delivery *rendezvous.Delivery `json:"delivery,omitempty"`
}

// faultMember is a member process.
type faultMember struct {
	task    faultTask
	orders  chan string // closed when the input ends
	session *rendezvous.Session
	network *dropper
	goOn    chan struct{} // closed when a root that holds may go on, or the input has ended
	data    []byte

	mu  sync.Mutex // protects out, and what it writes to
	out *json.Encoder
}

// RunFaultMember is a member process that Fault started: it reads its task and orders from in, prints events to out,
// and ends when in ends.
func RunFaultMember(ctx context.Context, in io.Reader, out io.Writer) error {
	input := bufio.NewReader(in)
	line, err := input.ReadBytes('\n')
	m := &faultMember{orders: make(chan string), network: newDropper(), goOn: make(chan struct{}), out: json.NewEncoder(out)}
	if err == nil {
		err = json.Unmarshal(line, &m.task)
	}
	if err != nil {
		return fmt.Errorf("bench: member's task: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with the process at the latest
		defer cancel()
		release := sync.OnceFunc(func() { close(m.goOn) })
		defer release()
		lines := bufio.NewScanner(input)
		for lines.Scan() {
			switch lines.Text() {
			case orderCut:
				m.network.drop()
				m.say(faultEvent{Event: eventCut})
				continue
			case orderGoOn:
				release()
				continue
			}
			select {
			case m.orders <- lines.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	if err := m.run(ctx); err != nil {
		m.say(faultEvent{Event: eventEnded, Text: err.Error()})
	}
	return nil
}

// say prints an event.
func (m *faultMember) say(e faultEvent) {
	if e.At == 0 {
		e.At = time.Now().UnixNano()
	}
	e.Rank = m.task.Rank
	m.mu.Lock()
	defer m.mu.Unlock()
	m.out.Encode(e) // who reads it is gone if that fails, and the input ends then
}

func (m *faultMember) run(ctx context.Context) error {
	m.data = make([]byte, m.task.Plan.Size)
	for i := 0; i < len(m.data); i += 4096 {
		m.data[i] = 1 // have the pages before the clock runs
	}
	engine, end, err := m.engine()
	if err != nil {
		return err
	}
	defer end()
	if err := m.open(ctx, engine); err != nil {
		return err
	}
	defer m.session.Close()
	m.say(faultEvent{Event: eventReady})
	for message := 1; message <= m.task.Plan.messages(); message++ {
		if err := m.take(ctx, message); err != nil {
			return err
		}
	}
	if !m.awaitOrder(ctx, orderFinish) {
		return ctx.Err()
	}
	m.say(faultEvent{Event: eventFinal, Digest: m.digest()})
	return nil
}

// engine makes the engine, over a network that can be cut if the task says so.
func (m *faultMember) engine() (_ *rdmc.Engine, end func(), err error) {
	lc := net.ListenConfig{Control: tcp.Control(m.task.Plan.Congestion)}
	lc.SetMultipathTCP(false)
	listener, err := lc.Listen(context.Background(), "tcp", m.task.Listen)
	if err != nil {
		return nil, nil, fmt.Errorf("bench: data at %s: %w", m.task.Listen, err)
	}
	detect := m.task.Plan.Detect
	cfg := tcp.Config{Congestion: m.task.Plan.Congestion, PeerTimeout: detect, ReceiverTimeout: detect, Advertise: listener.Addr().String()}
	if m.task.Drops {
		cfg.Dial = m.network.dial
	}
	device, err := tcp.New(cfg)
	if err != nil {
		listener.Close()
		return nil, nil, err
	}
	var accepting sync.WaitGroup
	accepting.Go(func() { m.accept(listener, device) })
	closeDevice := func() {
		listener.Close()
		device.Close()
		accepting.Wait()
	}
	engine, err := rdmc.NewEngine(rdmc.EngineConfig{Device: device})
	if err != nil {
		closeDevice()
		return nil, nil, err
	}
	return engine, func() { engine.Close(); closeDevice() }, nil
}

// accept serves data connections until the listener is closed.
func (m *faultMember) accept(listener net.Listener, device *tcp.Device) {
	if m.task.Drops {
		m.network.serve(listener, device)
		return
	}
	var work sync.WaitGroup
	defer work.Wait()
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		work.Go(func() { device.Serve(conn) }) // an error closes it, and the dialer sees that
	}
}

func (m *faultMember) open(ctx context.Context, engine *rdmc.Engine) (err error) {
	p := m.task.Plan
	cfg := rendezvous.Config{
		Rank: m.task.Rank, Room: m.task.Room, Engine: engine, Members: p.Members, BlockSize: p.BlockSize, Algorithm: p.Algorithm,
		Detect: p.Detect, Window: p.Window, Grants: p.Grants, MaxSends: p.MaxSends,
		OnFailure: func(epoch uint32, err error) {
			m.say(faultEvent{Event: eventTold, Text: fmt.Sprintf("epoch %d: %v", epoch, err)})
		},
	}
	if m.task.Drops {
		cfg.Dial = m.network.dial
	}
	if m.task.HasListener {
		file := os.NewFile(roomFD, "room")
		if cfg.Listener, err = net.FileListener(file); err != nil {
			return fmt.Errorf("bench: room: %w", err)
		}
		file.Close()
		if m.task.Drops {
			cfg.Listener = &droppedListener{cfg.Listener, m.network}
		}
	}
	m.session, err = rendezvous.Open(ctx, cfg)
	return err
}

// take sends or receives a message, and tells how that went.
func (m *faultMember) take(ctx context.Context, message int) error {
	if m.task.Rank == 0 {
		return m.send(ctx, message)
	}
	next, err := m.session.Next(ctx)
	if err == nil && next.Size() != m.task.Plan.Size {
		err = fmt.Errorf("bench: a message of %d bytes, want %d", next.Size(), m.task.Plan.Size)
	}
	if err == nil {
		err = next.Receive(ctx, &memory{block: uint64(m.task.Plan.BlockSize), data: m.data})
	}
	at := time.Now().UnixNano()
	if err == nil {
		m.say(faultEvent{Event: eventDelivered, Message: message, At: at, Digest: m.digest()})
	}
	return err
}

// send waits for the order, and tells when so much of the message that is to be disturbed has been sent.
func (m *faultMember) send(ctx context.Context, message int) error {
	rand.NewChaCha8([32]byte{1, byte(message), byte(message >> 8)}).Read(m.data)
	digest := m.digest()
	if !m.awaitOrder(ctx, orderSend) {
		return ctx.Err()
	}
	source := &watched{memory: memory{block: uint64(m.task.Plan.BlockSize), data: m.data}}
	if message == m.task.Plan.messages() && m.task.Plan.Fault != FaultNone {
		source.at = uint64(m.task.Plan.At * float64(rdmc.BlockCount(m.task.Plan.Size, m.task.Plan.BlockSize)))
		source.reached = func() {
			m.say(faultEvent{Event: eventReached, Message: message})
			if m.task.Plan.Hold {
				<-m.goOn
			}
		}
	}
	start := time.Now()
	delivery, err := m.session.Send(ctx, m.task.Plan.Size, source)
	if err != nil {
		return err
	}
	m.say(faultEvent{Event: eventDelivered, Message: message, Digest: digest, Seconds: time.Since(start).Seconds(), Delivery: &delivery})
	return nil
}

// awaitOrder waits for the order; another one, or the end of the input, gives false.
func (m *faultMember) awaitOrder(ctx context.Context, want string) bool {
	select {
	case order := <-m.orders:
		return order == want
	case <-ctx.Done():
		return false
	}
}

func (m *faultMember) digest() string {
	sum := sha256.Sum256(m.data)
	return hex.EncodeToString(sum[:])
}

// watched is a message that tells, once, when a block is read. The last one stands for all that is beyond it.
type watched struct {
	memory
	at      uint64
	reached func()
	once    sync.Once
}

// ReadBlock copies a block out.
func (w *watched) ReadBlock(i uint64, buf []byte) error {
	blocks := (uint64(len(w.data)) + w.block - 1) / w.block
	if w.reached != nil && i >= min(w.at, blocks-1) {
		w.once.Do(w.reached)
	}
	return w.memory.ReadBlock(i, buf)
}
