package httpapi

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// Everything that a client can take is bounded.
const (
	connectionsMax  = 32
	headerBytesMax  = 16 << 10
	headerTimeout   = 5 * time.Second // also of the TLS handshake
	readTimeout     = 10 * time.Second
	writeTimeout    = 30 * time.Second // with the time that the answer takes; profiles get theirs on top
	idleTimeout     = 30 * time.Second
	shutdownTimeout = 2 * time.Second
)

// protocolHTTP is the name of HTTP/1.1 in TLS. HTTP/2 is not offered: there a connection carries many requests at a
// time, and the bound on connections would bound little.
const protocolHTTP = "http/1.1"

// Source is where the answers come from. All functions are called from several goroutines.
type Source struct {
	Metrics http.Handler
	Status  http.Handler
	// Alive returns why the process does not run its loops, nil if it does; Ready why the node does not serve.
	Alive func() error
	Ready func() error
}

// Config says how to serve.
type Config struct {
	Listener net.Listener // becomes the server's
	// Identity makes the TLS side of the connections, for the names of application protocols. The clients' certificates
	// are asked for there and not checked.
	Identity interface {
		ReaderServerConfig(protocols []string) *tls.Config
	}
	// Trusted reports whether the other end of a connection has shown a certificate that lets it read.
	Trusted func(tls.ConnectionState) bool
	Token   Token
	Source  Source
	Pprof   bool // profiles are offered
	Log     *slog.Logger
}

// Server answers until Close.
type Server struct {
	http   *http.Server
	cancel context.CancelFunc
	serve  sync.WaitGroup
}

// Serve answers on the listener. It returns at once.
func Serve(cfg Config) *Server {
	ctx, cancel := context.WithCancel(context.Background())
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	s := &Server{cancel: cancel, http: &http.Server{
		Handler:   cfg.guarded(),
		TLSConfig: cfg.Identity.ReaderServerConfig([]string{protocolHTTP}),
		Protocols: protocols,
		// "OPTIONS *" goes to the handler too, which refuses it and ends the connection.
		DisableGeneralOptionsHandler: true,
		MaxHeaderBytes:               headerBytesMax,
		ReadHeaderTimeout:            headerTimeout,
		ReadTimeout:                  readTimeout,
		WriteTimeout:                 writeTimeout,
		IdleTimeout:                  idleTimeout,
		BaseContext:                  func(net.Listener) context.Context { return ctx },
		ErrorLog:                     slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
	}}
	ln := newLimited(cfg.Listener, connectionsMax)
	s.serve.Go(func() {
		if err := s.http.ServeTLS(ln, "", ""); !errors.Is(err, http.ErrServerClosed) {
			cfg.Log.Error("httpapi: port ended", "addr", ln.Addr(), "err", err)
		}
	})
	return s
}

// Close ends running requests and waits for them. It may be called again.
func (s *Server) Close() error {
	s.cancel()
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = s.http.Close()
	}
	s.serve.Wait()
	return err
}
