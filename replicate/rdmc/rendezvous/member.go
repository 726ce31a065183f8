package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
)

// redial is how long a member waits before it dials again a root that is not there yet.
const redial = 50 * time.Millisecond

// errCalled is the end of a group that the root gave up.
var errCalled = errors.New("rendezvous: the root called to the next epoch")

// member is a member's side of a session. One goroutine, serve, takes in what the root says and how the groups fare,
// also while the application is busy with a message, so that it comes to meetings in time.
type member struct {
	cfg    Config
	common welcome
	engine *rdmc.Engine
	conn   net.Conn
	cancel context.CancelFunc // of serve
	ctx    context.Context
	work   sync.WaitGroup // serve, the reader

	frames  chan heard    // written by the reader
	begun   chan *Message // written by serve, holds one
	ready   chan struct{} // closed by serve when the first group is connected
	taken   chan taking   // written by Message.Receive
	ended   chan struct{} // closed by serve at its end
	err     error         // why it ended; set before ended is closed
	patient *time.Timer   // how long the root may say nothing, while it has to speak

	// Of serve.
	group     *rdmc.Group // the epoch's, or nil
	members   []int       // of the group, by rank
	epoch     uint32
	connected chan error // of the group that is being connected, or nil
	failed    <-chan struct{}
	message   *Message // under way, or nil
	started   bool
}

// Message is a message that the root sends, at a member.
type Message struct {
	member *member
	number uint64
	size   uint64
	done   chan error // holds one: how it ended; written by serve
	asked  atomic.Bool

	// Of serve.
	sink     rdmc.Sink
	have     *rdmc.Bitmap
	transfer *rdmc.Transfer
	begin    *rdmc.Announcement // in the present group; nil while it has not begun there
}

// taking says where a message goes.
type taking struct {
	message *Message
	sink    rdmc.Sink
}

func openMember(ctx context.Context, cfg Config, engine *rdmc.Engine) (*member, error) {
	conn, common, err := enter(ctx, cfg)
	if err != nil {
		return nil, err
	}
	m := &member{
		cfg: cfg, common: common, engine: engine, conn: conn,
		frames: make(chan heard), begun: make(chan *Message, 1), ready: make(chan struct{}), taken: make(chan taking),
		ended: make(chan struct{}), patient: time.NewTimer(time.Hour),
	}
	m.patient.Stop()
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.work.Go(m.read)
	m.work.Go(m.serve)
	select {
	case <-m.ready:
		return m, nil
	case <-m.ended:
		err = m.err
	case <-ctx.Done():
		err = fmt.Errorf("rendezvous: the session of %v does not begin: %w", conn.RemoteAddr(), ctx.Err())
	}
	m.close()
	return nil, err
}

// enter comes to the room, waiting for the root to be there.
func enter(ctx context.Context, cfg Config) (net.Conn, welcome, error) {
	for {
		conn, err := cfg.Dial(ctx, cfg.Room)
		if err == nil {
			common, err := introduce(ctx, conn, cfg.Rank)
			if err != nil {
				conn.Close()
			}
			return conn, common, err
		}
		select {
		case <-ctx.Done():
			return nil, welcome{}, fmt.Errorf("rendezvous: the root does not answer at %s: start it, and check that this host reaches that address: %w",
				cfg.Room, errors.Join(ctx.Err(), err))
		case <-time.After(redial):
		}
	}
}

func introduce(ctx context.Context, conn net.Conn, rank int) (welcome, error) {
	conn.SetReadDeadline(time.Now().Add(2 * helloTimeout)) // the root may be listening to strangers
	stop := context.AfterFunc(ctx, func() { conn.SetReadDeadline(time.Unix(1, 0)) })
	err := send(conn, frame{kind: kindHello, rank: rank}, helloTimeout)
	var f frame
	if err == nil {
		f, err = receive(conn, maxFrame)
	}
	if !stop() {
		err = errors.Join(ctx.Err(), err)
	}
	switch {
	case err != nil:
		return welcome{}, fmt.Errorf("rendezvous: enter the room at %v: %w", conn.RemoteAddr(), err)
	case f.kind == kindOut:
		return welcome{}, fmt.Errorf("%w: %s", ErrOut, f.text)
	case f.kind != kindWelcome:
		return welcome{}, fmt.Errorf("%w: no welcome at %v", ErrProtocol, conn.RemoteAddr())
	}
	keepAlive(conn, f.welcome.detect)
	return f.welcome, conn.SetReadDeadline(time.Time{})
}

// read hands on what the root says.
func (m *member) read() {
	for {
		f, err := receive(m.conn, maxFrame)
		select {
		case m.frames <- heard{frame: f, err: err}:
		case <-m.ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// serve takes part until the session ends here.
func (m *member) serve() {
	var err error
	for err == nil {
		select {
		case h := <-m.frames:
			if err = h.err; err != nil {
				err = fmt.Errorf("%w: its connection ended: %w", ErrRootLost, err)
			} else {
				err = m.hear(h.frame)
			}
		case <-m.failed:
			m.noteFailure()
		case connectErr := <-m.connected:
			err = m.noteConnected(connectErr)
		case t := <-m.taken:
			err = m.take(t)
		case <-m.patient.C:
			err = fmt.Errorf("%w: it said nothing in time about the failure of epoch %d: it has died, or this member is cut off", ErrRootLost, m.epoch)
		case <-m.ctx.Done():
			err = fmt.Errorf("%w: it was closed", ErrEnded)
		}
	}
	m.endGroup()
	m.patient.Stop()
	m.conn.Close()
	m.err = err
	if m.message != nil {
		m.message.done <- err
	}
	close(m.ended)
}

// hear takes in a frame of the root. Its error ends the session here.
func (m *member) hear(f frame) error {
	switch f.kind {
	case kindCall:
		return m.meet(f)
	case kindForm:
		return m.form(f)
	case kindAddresses:
		return m.connect(f)
	case kindBegin:
		return m.begin(f)
	case kindDelivered:
		return m.delivered(f)
	case kindOut:
		return fmt.Errorf("%w, lost in epoch %d: %s", ErrOut, f.epoch, f.text)
	case kindEnd:
		if f.text == "" {
			return io.EOF
		}
		return fmt.Errorf("%w: %s", ErrEnded, f.text)
	}
	return fmt.Errorf("%w: frame of kind %d from the root", ErrProtocol, f.kind)
}

// expect gives the root so long to say something.
func (m *member) expect(within time.Duration) { m.patient.Reset(within) }

// noteFailure begins the wait for the root's call. While no message is under way the root may not have noticed yet.
func (m *member) noteFailure() {
	m.failed = nil
	failure := asGroupError(m.group.Err())
	m.cfg.OnFailure(m.epoch, failure)
	switch {
	case m.message == nil && m.started:
	case rootSuspected(failure):
		m.expect(m.common.detect / 8)
	default:
		m.expect(2 * m.common.detect)
	}
}

// meet ends what there is of earlier epochs and tells what is here.
func (m *member) meet(f frame) error {
	if m.group != nil {
		m.group.Fail(absent(m.members, f.members), errCalled) // if it has not failed; who is out need not be told
	}
	if m.failed != nil && m.started {
		m.cfg.OnFailure(m.epoch, asGroupError(m.group.Err())) // the call was faster
	}
	m.endGroup()
	m.epoch = f.epoch
	answer := frame{kind: kindMeet, epoch: f.epoch, number: f.number}
	if m.message != nil && m.message.have != nil {
		answer.have = m.message.have.PresentFirst(maxRuns)
	}
	m.expect(3 * m.common.detect)
	return m.say(answer)
}

// say tells the root something. Where that fails the reader notices, and what the root has said before comes first.
func (m *member) say(f frame) error {
	if err := send(m.conn, f, m.common.detect); err != nil {
		m.cfg.Log.Info("the root takes nothing in", "error", err)
	}
	return nil
}

// endGroup ends the present group, if there is one, and keeps what came by it.
func (m *member) endGroup() {
	if m.group == nil {
		return
	}
	m.group.Abort()
	if m.connected != nil {
		<-m.connected // ends with the group
	}
	m.group, m.failed, m.connected = nil, nil, nil
	if p := m.message; p != nil {
		if p.transfer != nil {
			p.have = p.transfer.Have()
		}
		p.transfer, p.begin = nil, nil
	}
}

// form makes this member's end of the epoch's group.
func (m *member) form(f frame) error {
	rank := slices.Index(f.members, m.cfg.Rank)
	if f.epoch != m.epoch || m.group != nil || rank < 0 || f.members[len(f.members)-1] >= m.common.members {
		return fmt.Errorf("%w: group %v in epoch %d", ErrProtocol, f.members, f.epoch)
	}
	group, err := m.engine.NewGroup(groupConfig(m.cfg, m.common, f, rank))
	if err != nil {
		return err
	}
	m.group, m.members, m.failed = group, f.members, group.Failed()
	m.expect(3 * m.common.detect)
	return m.say(frame{kind: kindAddresses, epoch: m.epoch, parts: group.Addresses()})
}

// connect joins the end with its neighbours, in the background: the root may call before that has ended.
func (m *member) connect(f frame) error {
	if f.epoch != m.epoch || m.group == nil || m.connected != nil {
		return fmt.Errorf("%w: addresses for epoch %d", ErrProtocol, f.epoch)
	}
	group, done := m.group, make(chan error, 1)
	m.connected = done
	m.work.Go(func() {
		ctx, cancel := context.WithTimeout(m.ctx, 2*m.common.detect)
		defer cancel()
		done <- group.Connect(ctx, f.parts)
	})
	m.expect(5 * m.common.detect)
	return nil
}

func (m *member) noteConnected(err error) error {
	m.connected = nil
	answer := frame{kind: kindConnected, epoch: m.epoch}
	if err != nil {
		answer.text = err.Error()
	} else {
		if m.message == nil {
			m.patient.Stop() // the next message comes when it comes
		}
		if !m.started {
			m.started = true
			close(m.ready)
		}
	}
	return m.say(answer)
}

// begin notes that a message, or what is left of it, moves in the present group.
func (m *member) begin(f frame) error {
	m.patient.Stop()
	blocks := rdmc.BlockCount(f.message.Size, m.common.blockSize)
	switch p := m.message; {
	case f.message.Size > rdmc.MaxMessageBytes || blocks > rdmc.MaxMessageBlocks:
		return fmt.Errorf("%w: message of %d bytes", ErrProtocol, f.message.Size)
	case f.epoch != m.epoch || m.group == nil:
		return fmt.Errorf("%w: message %d in epoch %d", ErrProtocol, f.number, f.epoch)
	case p == nil:
		p = &Message{member: m, number: f.number, size: f.message.Size, done: make(chan error, 1)}
		m.message = p
		m.begun <- p // there is room: the one before has been taken, or it would be under way
	case p.number != f.number || p.size != f.message.Size:
		return fmt.Errorf("%w: message %d while %d is under way", ErrProtocol, f.number, p.number)
	}
	m.message.begin = &f.message
	if m.failed == nil {
		m.expect(2 * m.common.detect) // it has failed already
	}
	return m.receive()
}

// receive has the blocks come in, when it is known where they go.
func (m *member) receive() error {
	p := m.message
	if p.begin == nil || p.sink == nil || p.transfer != nil {
		return nil
	}
	t, err := m.group.Receive(*p.begin, rdmc.Receiver{Sink: p.sink, Have: p.have})
	if err != nil && m.group.Err() == nil {
		return err
	}
	p.transfer = t // nil if the group has failed
	return nil
}

// take notes where a message goes.
func (m *member) take(t taking) error {
	if t.message != m.message || t.message.sink != nil {
		return nil // it has ended
	}
	t.message.sink = t.sink
	return m.receive()
}

func (m *member) delivered(f frame) error {
	p := m.message
	if p == nil || p.number != f.number {
		return fmt.Errorf("%w: message %d delivered", ErrProtocol, f.number)
	}
	if p.transfer == nil || !p.transfer.Have().Full() {
		return fmt.Errorf("%w: message %d delivered, and not all of it is here", ErrProtocol, f.number)
	}
	m.message = nil
	m.patient.Stop() // also if the group has failed: the root may not have noticed
	p.done <- nil
	return nil
}

func (m *member) next(ctx context.Context) (*Message, error) {
	select {
	case p := <-m.begun:
		return p, nil
	default:
	}
	select {
	case p := <-m.begun:
		return p, nil
	case <-m.ended:
		return nil, m.err
	case <-ctx.Done():
		return nil, fmt.Errorf("rendezvous: next message: %w", ctx.Err())
	}
}

// Size is the message's length in bytes.
func (p *Message) Size() uint64 { return p.size }

// Receive stores the message in the sink and returns nil when all members that are left have it whole. Until then the
// sink may be read, to relay blocks to others. It blocks through failures of others. Its errors are those of Next;
// when it returns one, the sink is not in use any more, and this member is out of the session. Each message must be
// received, once: a second call is refused with rdmc.ErrInvalid. Only an empty one needs no sink; without one another
// is refused in the same way, and has not been received yet.
func (p *Message) Receive(ctx context.Context, sink rdmc.Sink) error {
	if sink == nil {
		if p.size > 0 {
			return fmt.Errorf("%w: a message without a sink", rdmc.ErrInvalid)
		}
		sink = rdmc.Buffer{}
	}
	if p.asked.Swap(true) {
		return fmt.Errorf("%w: message %d is received twice", rdmc.ErrInvalid, p.number)
	}
	m := p.member
	select {
	case m.taken <- taking{p, sink}:
	case <-m.ended:
	case <-ctx.Done():
	}
	select {
	case err := <-p.done:
		return err
	case <-ctx.Done():
	}
	m.close()
	select {
	case err := <-p.done:
		return errors.Join(ctx.Err(), err)
	default:
		return ctx.Err()
	}
}

// close leaves the session.
func (m *member) close() {
	m.cancel()
	m.work.Wait()
}
