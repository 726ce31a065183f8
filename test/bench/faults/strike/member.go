package strike

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/rdma/tcp"
	"github.com/rdmcfs/rdmcfs/replicate"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
)

// task is what a member process of Run reads first from its input. One order a line follows; the input's end
// is the last.
type task struct {
	Plan   Plan
	Rank   int
	Listen string
	Folder string // of its store
	Drops  bool   // its network can be cut by order
}

// Orders to a member process.
const (
	orderEntry  = "entry"  // an entry of the log
	orderBegin  = "begin"  // start the node: all that it needs is in the log
	orderSend   = "send"   // to the root: the next message
	orderCut    = "cut"    // drop what comes and goes
	orderGoOn   = "go on"  // to the root that holds: the victim has been struck
	orderFinish = "finish" // report the digest of the last message
)

// order is one order, a JSON value.
type order struct {
	Order     string   `json:"order"`
	Message   int      `json:"message,omitempty"`   // from 1
	Addresses []string `json:"addresses,omitempty"` // of all nodes' calls, by rank
	Index     uint64   `json:"index,omitempty"`
	Time      int64    `json:"time,omitempty"`
	Entry     []byte   `json:"entry,omitempty"`
	Rank      int      `json:"rank,omitempty"` // that proposed it
	Call      uint64   `json:"call,omitempty"` // its number there
}

// Events of a member process, one JSON value a line.
const (
	eventListens   = "listens"   // at an address, for calls
	eventReady     = "ready"     // its node has started
	eventPropose   = "propose"   // wants an operation in the log
	eventCut       = "cut"       // drops what comes and goes
	eventReached   = "reached"   // the root has sent that part of the message that is to be disturbed
	eventTold      = "told"      // heard of a failure
	eventDelivered = "delivered" // a version is stored here and published
	eventPublished = "published" // the root's close has returned
	eventFenced    = "fenced"    // the log has ended the root's incarnation
	eventFinal     = "final"     // the digest of what it holds
	eventEnded     = "ended"     // the process has ended with an error
)

// event is what a member process says. At is the machine's time in ns.
type event struct {
	Event   string  `json:"event"`
	Rank    int     `json:"rank"`
	At      int64   `json:"at"`
	Message int     `json:"message,omitempty"` // from 1
	Address string  `json:"address,omitempty"`
	Digest  string  `json:"digest,omitempty"`
	Text    string  `json:"text,omitempty"`
	Seconds float64 `json:"seconds,omitempty"`
	Groups  int     `json:"groups,omitempty"`
	Out     []Lost  `json:"out,omitempty"`
	Entry   []byte  `json:"entry,omitempty"`
	Call    uint64  `json:"call,omitempty"`
}

// member is a member process: the replication of one node, as the daemon runs it, over the fabric of the daemon.
type member struct {
	task    task
	network *dropper
	ctx     context.Context // of the process
	goOn    chan struct{}   // closed when a root that holds may go on, or the input has ended

	// What the node is made of, in the order of its making; nil until then.
	db       *meta.DB
	store    *content.Store
	blocks   net.Listener // of the device, where it can be cut
	device   *tcp.Device
	listener net.Listener // of the calls
	engine   *rdmc.Engine
	calls    *calls
	node     *replicate.Replicator

	messages int // published, as far as the log was applied; belongs to the goroutine that applies it

	accepting, answering, busy sync.WaitGroup

	mu      sync.Mutex // protects all below
	out     *json.Encoder
	waiting map[uint64]chan meta.Result // proposals, by call
	call    uint64
	last    meta.ContentID // published
}

// RunMember is a member process that Run started: it reads its task and orders from in, prints events to out,
// and ends when in ends.
func RunMember(ctx context.Context, in io.Reader, out io.Writer) error {
	input := bufio.NewReader(in)
	line, err := input.ReadBytes('\n')
	m := &member{
		network: newDropper(), goOn: make(chan struct{}), out: json.NewEncoder(out),
		waiting: make(map[uint64]chan meta.Result),
	}
	if err == nil {
		err = json.Unmarshal(line, &m.task)
	}
	if err != nil {
		return fmt.Errorf("strike: member's task: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m.ctx = ctx
	if err := m.run(json.NewDecoder(input), cancel); err != nil {
		m.say(event{Event: eventEnded, Text: err.Error()})
	}
	return nil
}

// say prints an event.
func (m *member) say(e event) {
	if e.At == 0 {
		e.At = time.Now().UnixNano()
	}
	e.Rank = m.task.Rank
	m.mu.Lock()
	defer m.mu.Unlock()
	m.out.Encode(e) // if that fails the reader is gone, and the input ends then
}

// run carries out orders until they end, or one fails.
func (m *member) run(orders *json.Decoder, cancel context.CancelFunc) (err error) {
	release := sync.OnceFunc(func() { close(m.goOn) })
	defer func() {
		release()
		cancel()
		err = errors.Join(err, m.close())
	}()
	if err := m.open(); err != nil {
		return err
	}
	for {
		var o order
		if err := orders.Decode(&o); err != nil {
			return nil // the end of the run
		}
		switch o.Order {
		case orderEntry:
			err = m.apply(o)
		case orderBegin:
			err = m.begin(o.Addresses)
		case orderSend:
			m.busy.Go(func() { m.send(o.Message) })
		case orderCut:
			m.network.drop()
			m.say(event{Event: eventCut})
		case orderGoOn:
			release()
		case orderFinish:
			m.busy.Go(func() { m.say(event{Event: eventFinal, Digest: m.digest()}) })
		}
		if err != nil {
			return err
		}
	}
}

// open makes what the node works with: its store, its fabric, and where it listens.
func (m *member) open() (err error) {
	m.db = meta.OpenMemory()
	if m.store, err = content.Open(m.task.Folder, content.Options{}); err != nil {
		return err
	}
	if err := m.openDevice(); err != nil {
		return err
	}
	if m.listener, err = net.Listen("tcp", m.task.Listen); err != nil {
		return fmt.Errorf("strike: calls: %w", err)
	}
	m.say(event{Event: eventListens, Address: m.listener.Addr().String()})
	return nil
}

// openDevice makes the fabric, over a network that can be cut if the task says so.
func (m *member) openDevice() (err error) {
	cfg := tcp.Config{Congestion: m.task.Plan.Congestion}
	if m.task.Drops {
		if m.blocks, err = net.Listen("tcp", m.task.Listen); err != nil {
			return fmt.Errorf("strike: data: %w", err)
		}
		cfg.Advertise, cfg.Dial = m.blocks.Addr().String(), m.network.dial
	}
	if m.device, err = tcp.New(cfg); err != nil {
		return err
	}
	if m.task.Drops {
		m.accepting.Go(func() { m.network.serve(m.blocks, m.device) })
		return nil
	}
	_, err = m.device.Listen(m.task.Listen)
	return err
}

// begin starts the node.
func (m *member) begin(addresses []string) (err error) {
	if m.engine, err = rdmc.NewEngine(rdmc.EngineConfig{Device: m.device}); err != nil {
		return err
	}
	self, err := m.db.Node(nodeOf(m.task.Rank))
	if err != nil {
		return err
	}
	lease := meta.Lease{Node: self.ID, Incarnation: self.Incarnation}
	m.calls = &calls{self: self.ID, network: m.network, addresses: addresses}
	m.node, err = replicate.New(replicate.Config{
		Self: func() meta.Lease { return lease }, Names: m.db, Log: proposer{m}, Peers: m.calls,
		Groups: toldGroups{replicate.Multicast(m.engine), m}, Store: m.store, IsLeader: func() bool { return false },
	})
	if err != nil {
		return err
	}
	m.calls.handle = m.node.Handle
	m.answering.Go(func() { m.calls.serve(m.ctx, &droppedListener{m.listener, m.network}) })
	m.say(event{Event: eventReady})
	return nil
}

// close ends what there is. The context has ended.
func (m *member) close() error {
	var errs []error
	if m.listener != nil {
		m.listener.Close() // serve may have closed it
	}
	m.answering.Wait()
	m.busy.Wait()
	if m.node != nil {
		errs = append(errs, m.node.Close())
	}
	if m.engine != nil {
		errs = append(errs, m.engine.Close())
	}
	if m.blocks != nil {
		errs = append(errs, m.blocks.Close())
	}
	if m.device != nil {
		errs = append(errs, m.device.Close())
	}
	m.accepting.Wait()
	if m.store != nil {
		errs = append(errs, m.store.Close())
	}
	return errors.Join(append(errs, m.db.Close())...)
}

// apply takes an entry of the log in.
func (m *member) apply(o order) error {
	result, events, err := m.db.Apply(o.Index, o.Time, o.Entry)
	if err != nil {
		return err
	}
	m.mu.Lock()
	for _, e := range events {
		if e.Kind == meta.EventPublished {
			m.last = e.Content
		}
	}
	done := m.waiting[o.Call]
	if o.Rank != m.task.Rank {
		done = nil
	}
	m.mu.Unlock()
	if m.node != nil {
		m.node.Applied(events)
	}
	if done != nil {
		done <- result
	}
	for _, e := range events {
		switch {
		case e.Kind == meta.EventFenced && e.Node == nodeOf(0) && m.task.Rank != 0:
			m.say(event{Event: eventFenced, Text: "the log has ended the writer's incarnation"})
		case e.Kind == meta.EventPublished:
			m.messages++
			message := m.messages
			m.busy.Go(func() { m.awaitStored(message, e.Content) })
		}
	}
	return nil
}

// awaitStored reports when a version that was published is stored here.
func (m *member) awaitStored(message int, id meta.ContentID) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if state, ok := m.store.State(content.ID(id.Bytes())); ok && state == content.Committed {
			m.say(event{Event: eventDelivered, Message: message, Digest: m.digestOf(id)})
			return
		}
		select {
		case <-tick.C:
		case <-m.ctx.Done():
			return
		}
	}
}

// proposer is the log at a member: the process that started it keeps it.
type proposer struct{ m *member }

// Propose implements replicate.Log.
func (p proposer) Propose(ctx context.Context, op meta.Op) (meta.Result, error) {
	m, done := p.m, make(chan meta.Result, 1)
	m.mu.Lock()
	m.call++
	call := m.call
	m.waiting[call] = done
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.waiting, call)
	}()
	m.say(event{Event: eventPropose, Entry: meta.EncodeEntry(meta.Entry{Node: nodeOf(m.task.Rank), Seq: 1, Op: op}),
		Call: call})
	select {
	case result := <-done:
		return result, nil
	case <-ctx.Done():
		return meta.Result{}, ctx.Err()
	case <-m.ctx.Done():
		return meta.Result{}, m.ctx.Err()
	}
}

// Barrier implements replicate.Log. How long others take to show a version is not of the session.
func (p proposer) Barrier(context.Context, uint64) ([]meta.NodeID, error) { return nil, nil }

// toldGroups reports when a group fails here.
type toldGroups struct {
	replicate.Groups
	m *member
}

// NewGroup implements replicate.Groups.
func (g toldGroups) NewGroup(cfg rdmc.GroupConfig) (replicate.Group, error) {
	before := cfg.OnFailure
	cfg.OnFailure = func(err error) {
		g.m.say(event{Event: eventTold, Text: err.Error()})
		if before != nil {
			before(err)
		}
	}
	return g.Groups.NewGroup(cfg)
}

// send publishes a file, and reports when the given part of the one that is to be disturbed has been sent.
func (m *member) send(message int) {
	data := make([]byte, m.task.Plan.Size)
	rand.NewChaCha8([32]byte{1, byte(message), byte(message >> 8)}).Read(data)
	source := &watched{data: data}
	if message == m.task.Plan.messages() && m.task.Plan.Fault != None {
		source.at = int64(m.task.Plan.At * float64(len(data)))
		source.reached = func() {
			m.say(event{Event: eventReached, Message: message})
			if m.task.Plan.Hold {
				<-m.goOn
			}
		}
	}
	sum := sha256.Sum256(data)
	e, err := m.publish(message, source)
	if err != nil {
		m.say(event{Event: eventEnded, Text: err.Error()})
		return
	}
	e.Event, e.Message, e.Digest = eventPublished, message, hex.EncodeToString(sum[:])
	m.say(e)
}

// publish writes one file and waits until its close would have returned.
func (m *member) publish(message int, source *watched) (e event, err error) {
	created, err := proposer{m}.Propose(m.ctx, &meta.Create{
		Parent: meta.RootIno, Name: fmt.Sprint("message", message), Kind: meta.KindFile, Mode: 0o644,
	})
	if err == nil && created.Errno != 0 {
		err = created.Errno
	}
	if err != nil {
		return e, fmt.Errorf("strike: create: %w", err)
	}
	feed := m.node.FollowTransfers()
	defer feed.Close()
	start := time.Now()
	size := int64(len(source.data))
	out, err := m.node.Publish(m.ctx, replicate.Push{
		Ino: created.Inode.Ino, Size: size, Source: source, Data: []replicate.Extent{{Offset: 0, Length: size}},
	})
	e.Seconds = time.Since(start).Seconds()
	if err != nil {
		return e, err
	}
	ended, _, _ := feed.Take()
	for _, t := range ended {
		if t.Content != out.Content {
			continue
		}
		e.Groups = int(t.Epoch) + 1
		for _, member := range t.Members {
			if member.State == "out" {
				e.Out = append(e.Out, Lost{Rank: rankOf(member.Node), Reason: fmt.Sprintf("%v: %s", member.Reason, member.Text)})
			}
		}
	}
	return e, nil
}

// digest returns the digest of the last version, if it is stored here.
func (m *member) digest() string {
	m.mu.Lock()
	id := m.last
	m.mu.Unlock()
	return m.digestOf(id)
}

func (m *member) digestOf(id meta.ContentID) string {
	if state, ok := m.store.State(content.ID(id.Bytes())); !ok || state != content.Committed {
		return "not here"
	}
	r, err := m.store.Open(content.ID(id.Bytes()))
	if err != nil {
		return err.Error()
	}
	defer r.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(r, 0, r.Size())); err != nil {
		return err.Error()
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// watched is a file that signals, once, when it is read beyond a given place.
type watched struct {
	data    []byte
	at      int64
	reached func()
	once    sync.Once
}

// ReadAt copies bytes out.
func (w *watched) ReadAt(p []byte, off int64) (int, error) {
	if w.reached != nil && off+int64(len(p)) >= min(w.at, int64(len(w.data))) {
		w.once.Do(w.reached)
	}
	n := 0
	if off < int64(len(w.data)) {
		n = copy(p, w.data[off:])
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}
