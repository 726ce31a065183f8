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

// Server is a set of handlers by kind. Kinds from KindReserved on belong to this package. Handlers may be added
// while it serves.
type Server struct {
	log *slog.Logger

	mu    sync.RWMutex
	calls map[uint32]CallHandler
}

// NewServer makes a server without handlers.
func NewServer(log *slog.Logger) *Server {
	return &Server{log: log, calls: map[uint32]CallHandler{}}
}

// HandleCall registers the handler of a kind of call. A kind has one handler.
func (s *Server) HandleCall(kind uint32, h CallHandler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls[kind] != nil {
		panic(fmt.Sprintf("control: two handlers for calls of kind %d", kind)) // tidy: a programming error
	}
	s.calls[kind] = h
}

func (s *Server) callHandler(kind uint32) CallHandler {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.calls[kind]
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
	active map[uint64]context.CancelFunc // by id, of the calls that run here
	held   int                           // bytes of requests in handlers
	freed  chan struct{}                 // capacity 1: held shrank
}

// ServeConn serves a greeted connection until it ends, then waits for its handlers.
func (s *Server) ServeConn(ctx context.Context, conn net.Conn, from Caller) error {
	v := &serving{server: s, conn: conn, from: from, done: make(chan struct{}),
		active: map[uint64]context.CancelFunc{}, freed: make(chan struct{}, 1)}
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
		case frameCall:
			err = v.accept(in, h)
		case frameCancel:
			v.cancelled(h.id)
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
	ctx, err := v.begin(h)
	if err != nil {
		return err
	}
	if ctx == nil {
		v.release(len(payload))
		return v.reply(h.id, nil, fmt.Errorf("control: %d calls are running: %w", callsMax, ErrBusy))
	}
	v.tasks.Go(func() {
		defer v.release(len(payload))
		defer v.end(h.id)
		v.runCall(ctx, h, payload)
	})
	return nil
}

// begin enters a call into the table and makes its context, nil when the table is full.
func (v *serving) begin(h header) (context.Context, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.active[h.id] != nil {
		return nil, fmt.Errorf("%w: call %d is running already", ErrProtocol, h.id)
	}
	if len(v.active) >= callsMax {
		return nil, nil
	}
	var ctx context.Context
	var cancel context.CancelFunc
	if h.timeoutMS == 0 {
		ctx, cancel = context.WithCancel(v.ctx)
	} else {
		ctx, cancel = context.WithTimeout(v.ctx, time.Duration(h.timeoutMS)*time.Millisecond)
	}
	v.active[h.id] = cancel
	return ctx, nil
}

func (v *serving) end(id uint64) {
	v.mu.Lock()
	v.active[id]()
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

// reply sends the end of a call. It waits only for room in the outbox, which the connection's end frees.
func (v *serving) reply(id uint64, answer []byte, err error) error {
	if err == nil {
		return v.out.put(v.ctx, header{kind: frameReply, id: id}, answer)
	}
	e := toRemote(err)
	text := e.Message
	return v.out.put(v.ctx, header{kind: frameError, id: id, argument: uint32(e.Code)},
		[]byte(text[:min(len(text), textBytesMax)]))
}

// cancelled ends a call early. It may have ended already.
func (v *serving) cancelled(id uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if cancel := v.active[id]; cancel != nil {
		cancel()
	}
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
