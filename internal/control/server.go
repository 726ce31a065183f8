package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"
)

const (
	// callsMax is how many calls of one connection run at a time; more are answered ErrBusy.
	callsMax = 1024
	// requestBytesMax is how many bytes of requests of one connection are in handlers at a time; the
	// connection is not read beyond.
	requestBytesMax = 32 << 20
)

// CallHandler answers calls of one kind. The payload is the handler's. The context ends with the caller's
// deadline, its cancel, or the connection. The answer may be reused after the next call to the handler only if
// the handler does not keep it: it is copied right after the handler returns.
type CallHandler func(ctx context.Context, from Caller, payload []byte) ([]byte, error)

// StreamHandler answers streams of one kind. send copies the item and waits while the caller is StreamWindow items
// behind; its error ends the stream and should be returned.
type StreamHandler func(ctx context.Context, from Caller, payload []byte, send func(item []byte) error) error

// Server is a set of handlers by kind. Kinds from KindReserved on belong to this package. Handlers may be added
// while it serves.
type Server struct {
	log *slog.Logger

	mu      sync.RWMutex
	calls   map[uint32]CallHandler
	streams map[uint32]StreamHandler
}

// NewServer makes a server without handlers.
func NewServer(log *slog.Logger) *Server {
	return &Server{log: log, calls: map[uint32]CallHandler{}, streams: map[uint32]StreamHandler{}}
}

// HandleCall registers the handler of a kind of call. A kind has one handler.
func (s *Server) HandleCall(kind uint32, h CallHandler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls[kind] != nil {
		panic(fmt.Sprintf("control: two handlers for calls of kind %d", kind)) // tidy: two owners of one kind is a programming error
	}
	s.calls[kind] = h
}

// HandleStream registers the handler of a kind of stream.
func (s *Server) HandleStream(kind uint32, h StreamHandler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streams[kind] != nil {
		panic(fmt.Sprintf("control: two handlers for streams of kind %d", kind)) // tidy: two owners of one kind is a programming error
	}
	s.streams[kind] = h
}

func (s *Server) callHandler(kind uint32) CallHandler {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.calls[kind]
}

func (s *Server) streamHandler(kind uint32) StreamHandler {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.streams[kind]
}

// serving is one connection being served.
type serving struct {
	server *Server
	conn   net.Conn
	from   Caller
	ctx    context.Context
	cancel context.CancelFunc
	out    *outbox
	done   chan struct{}
	tasks  sync.WaitGroup

	mu     sync.Mutex
	active map[uint64]*incoming
	held   int           // bytes of requests in handlers
	freed  chan struct{} // capacity 1: held shrank
}

// incoming is a call that runs here.
type incoming struct {
	cancel context.CancelFunc
	stream bool
	credit chan uint32 // streams: capacity 1, items granted and not taken yet
}

// ServeConn serves a greeted connection until it ends, then waits for its handlers.
func (s *Server) ServeConn(ctx context.Context, conn net.Conn, from Caller) error {
	v := &serving{server: s, conn: conn, from: from, done: make(chan struct{}),
		active: map[uint64]*incoming{}, freed: make(chan struct{}, 1)}
	v.ctx, v.cancel = context.WithCancel(ctx)
	v.out = newOutbox(conn, writeTimeout, v.done)
	stop := context.AfterFunc(v.ctx, func() { conn.Close() })
	defer stop()
	v.tasks.Go(func() {
		v.out.run()
		v.cancel()
	})
	err := v.read()
	v.cancel()
	close(v.done)
	conn.Close()
	v.tasks.Wait()
	if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return fmt.Errorf("control: connection from node %d at %s: %w", from.Node, from.Addr, err)
}

func (v *serving) read() error {
	in := newInbox(v.conn, frameTimeout)
	for {
		h, err := in.header()
		if err != nil {
			return err
		}
		switch h.kind {
		case frameCall, frameStream:
			err = v.accept(in, h)
		case frameCancel:
			v.cancelled(h.id)
		case frameCredit:
			err = v.credited(h)
		default:
			err = fmt.Errorf("%w: frame of type %d from the calling side", ErrProtocol, h.kind)
		}
		if err != nil {
			return err
		}
	}
}

// accept reads a request and starts its handler.
func (v *serving) accept(in *inbox, h header) error {
	if err := v.reserve(int(h.length)); err != nil {
		return err
	}
	payload, err := in.payload(h)
	if err != nil {
		return err
	}
	ctx, call, err := v.begin(h)
	if err != nil {
		return err
	}
	if call == nil {
		v.release(len(payload))
		return v.reply(h.id, nil, fmt.Errorf("control: %d calls are running: %w", callsMax, ErrBusy))
	}
	v.tasks.Go(func() {
		defer v.release(len(payload))
		defer v.end(h.id, call)
		if call.stream {
			v.runStream(ctx, h, call, payload)
			return
		}
		v.runCall(ctx, h, payload)
	})
	return nil
}

// begin enters a call into the table; nil when that is full.
func (v *serving) begin(h header) (context.Context, *incoming, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.active[h.id] != nil {
		return nil, nil, fmt.Errorf("%w: call %d is running already", ErrProtocol, h.id)
	}
	if len(v.active) >= callsMax {
		return nil, nil, nil
	}
	call := &incoming{stream: h.kind == frameStream}
	var ctx context.Context
	if h.timeoutMS == 0 {
		ctx, call.cancel = context.WithCancel(v.ctx)
	} else {
		ctx, call.cancel = context.WithTimeout(v.ctx, time.Duration(h.timeoutMS)*time.Millisecond)
	}
	if call.stream {
		call.credit = make(chan uint32, 1)
	}
	v.active[h.id] = call
	return ctx, call, nil
}

func (v *serving) end(id uint64, call *incoming) {
	call.cancel()
	v.mu.Lock()
	delete(v.active, id)
	v.mu.Unlock()
}

func (v *serving) runCall(ctx context.Context, h header, payload []byte) {
	handler := v.server.callHandler(h.argument)
	if handler == nil {
		v.reply(h.id, nil, fmt.Errorf("control: call of kind %d: %w", h.argument, ErrNoHandler))
		return
	}
	answer, err := handler(ctx, v.from, payload)
	if err == nil && len(answer) > MaxPayload {
		err = fmt.Errorf("control: reply of %d bytes: %w", len(answer), ErrTooLarge)
	}
	v.reply(h.id, answer, err)
}

func (v *serving) runStream(ctx context.Context, h header, call *incoming, payload []byte) {
	handler := v.server.streamHandler(h.argument)
	if handler == nil {
		v.reply(h.id, nil, fmt.Errorf("control: stream of kind %d: %w", h.argument, ErrNoHandler))
		return
	}
	window := uint32(StreamWindow)
	send := func(item []byte) error {
		if len(item) > MaxItem {
			return fmt.Errorf("control: item of %d bytes: %w", len(item), ErrTooLarge)
		}
		if window == 0 {
			select {
			case window = <-call.credit:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		window--
		return v.out.put(ctx, header{kind: frameItem, id: h.id}, item)
	}
	if err := handler(ctx, v.from, payload, send); err != nil {
		v.reply(h.id, nil, err)
		return
	}
	v.out.put(v.ctx, header{kind: frameEnd, id: h.id}, nil)
}

// reply sends the end of a call. It waits only for room in the outbox, which the connection's end frees.
func (v *serving) reply(id uint64, answer []byte, err error) error {
	if err == nil {
		return v.out.put(v.ctx, header{kind: frameReply, id: id}, answer)
	}
	e := toRemote(err)
	text := e.Message
	return v.out.put(v.ctx, header{kind: frameError, id: id, argument: uint32(e.Code)}, []byte(text[:min(len(text), textBytesMax)]))
}

// cancelled ends a call early. It may have ended already.
func (v *serving) cancelled(id uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if call := v.active[id]; call != nil {
		call.cancel()
	}
}

// credited adds to what a stream may send. A peer that grants more than it can have consumed is wrong.
func (v *serving) credited(h header) error {
	v.mu.Lock()
	call := v.active[h.id]
	v.mu.Unlock()
	switch {
	case h.argument == 0, h.argument > StreamWindow, call != nil && !call.stream:
		return fmt.Errorf("%w: credit of %d for call %d", ErrProtocol, h.argument, h.id)
	case call == nil:
		return nil
	}
	grant := h.argument
	select {
	case earlier := <-call.credit:
		grant += earlier
	default:
	}
	if grant > StreamWindow {
		return fmt.Errorf("%w: credit of %d for call %d", ErrProtocol, grant, h.id)
	}
	call.credit <- grant // only this goroutine sends, and it has just emptied it
	return nil
}

// reserve waits until n more bytes of requests may be held.
func (v *serving) reserve(n int) error {
	for {
		v.mu.Lock()
		if v.held == 0 || v.held+n <= requestBytesMax {
			v.held += n
			v.mu.Unlock()
			return nil
		}
		v.mu.Unlock()
		select {
		case <-v.freed:
		case <-v.ctx.Done():
			return net.ErrClosed
		}
	}
}

func (v *serving) release(n int) {
	v.mu.Lock()
	v.held -= n
	v.mu.Unlock()
	select {
	case v.freed <- struct{}{}:
	default:
	}
}
