package node

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/credentials"
	"github.com/rdmcfs/rdmcfs/internal/httpapi"
	"github.com/rdmcfs/rdmcfs/meta"
)

// HTTP says what a node lets programs on the network read (package httpapi). The zero value is nothing.
type HTTP struct {
	Addr  string // HOST:PORT; "" = nothing is served
	Pprof bool   // profiles of the process too
}

// aliveWithin is how old the last turn of the log's loop may be. It turns at least once a second.
const aliveWithin = 10 * time.Second

// httpPort is the port of Config.HTTP. It is bound first, so that a node that could not serve there does not start. It
// answers from then on: that the process lives is told while the node opens what it has.
type httpPort struct {
	cfg      HTTP
	dir      dataDir
	raft     *lateRaft
	state    func(consensus.Status) string
	closer   *closer
	log      *slog.Logger
	listener net.Listener // nil if nothing is served
	token    httpapi.Token
	server   *httpapi.Server
	answers  atomic.Pointer[httpAnswers] // nil while there is nothing to tell; the rest of the node is there after it
}

// httpAnswers are the answers of the admin socket, and what tells whom they may be given to.
type httpAnswers struct {
	admin.Handlers
	creds *credentials.Identity
	db    *meta.DB
}

// bindHTTP takes the port and the token of a node.
func bindHTTP(n *node) (*httpPort, error) {
	p := &httpPort{cfg: n.cfg.HTTP, dir: n.dir, raft: &n.raft, state: n.state, closer: &n.closer, log: n.log}
	addr := n.cfg.HTTP.Addr
	switch {
	case addr == "":
		return p, nil
	case n.cfg.Host.Listen != nil:
		return nil, errors.New("node: --http serves on the machine's own network, and this host has another one")
	case samePort(addr, n.id.Listen):
		return nil, errSamePort(addr)
	}
	var err error
	if p.listener, err = bindTCP(flagHTTP, addr); err != nil {
		return nil, err
	}
	n.closer.add(p.unbind)
	p.token, err = httpapi.OpenToken(n.dir.path(httpapi.TokenFile))
	return p, err
}

// unbind gives the port back, also after a server that has closed it.
func (p *httpPort) unbind() error {
	if err := p.listener.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// begin serves until the node ends.
func (p *httpPort) begin(creds *credentials.Identity) {
	if p.listener == nil {
		return
	}
	p.server = httpapi.Serve(httpapi.Config{
		Listener: p.listener, Identity: creds, Trusted: p.trusted, Token: p.token, Pprof: p.cfg.Pprof,
		Log: p.log,
		Source: httpapi.Source{Alive: p.alive, Ready: p.ready,
			Metrics: p.later(func(h *admin.Handlers) http.Handler { return h.Metrics }),
			Status:  p.later(func(h *admin.Handlers) http.Handler { return h.StatusHandler() })},
	})
	p.closer.add(p.server.Close)
	p.log.Info("metrics and status are served", "at", "https://"+p.listener.Addr().String(), "token",
		p.dir.path(httpapi.TokenFile))
}

// setAnswers has metrics and status answered as on the admin socket, until what was opened before is closed.
func (p *httpPort) setAnswers(a httpAnswers) {
	if p.listener == nil {
		return
	}
	p.answers.Store(&a)
	p.closer.add(p.server.Close)
}

// later answers with a handler of those that were told.
func (p *httpPort) later(choose func(*admin.Handlers) http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if told := p.answers.Load(); told != nil {
			if h := choose(&told.Handlers); h != nil {
				h.ServeHTTP(w, r)
				return
			}
		}
		http.Error(w, "this node is starting", http.StatusServiceUnavailable)
	})
}

// trusted reports whether a node of the cluster, which was not evicted, is at the other end. A node that does not know
// who was evicted, since it starts or rebuilds its state, trusts no certificate.
func (p *httpPort) trusted(cs tls.ConnectionState) bool {
	told := p.answers.Load()
	if told == nil {
		return false
	}
	peer, err := told.creds.Check(cs, false)
	return err == nil && belongs(told.db, meta.NodeID(peer.Name.Node))
}

// belongs reports whether a node is one of the cluster as this state has it.
func belongs(db *meta.DB, node meta.NodeID) bool {
	rec, err := db.Node(node)
	return err == nil && (rec.State == meta.NodeUp || rec.State == meta.NodeDown)
}

// alive returns why the process does not run its loops: the log's loop, from which all others have their work. A node
// that has not opened the log yet is alive.
func (p *httpPort) alive() error {
	if raft := p.raft.node.Load(); raft != nil {
		return aliveAt(consensus.LastTurn(raft), time.Now())
	}
	return nil
}

func aliveAt(lastTurn, now time.Time) error {
	if silent := now.Sub(lastTurn); silent > aliveWithin && !lastTurn.IsZero() {
		return fmt.Errorf("the loop of the log has stood still for %v", silent.Round(time.Second))
	}
	return nil
}

// ready returns why this node does not serve.
func (p *httpPort) ready() error {
	if p.answers.Load() == nil {
		return readyAs("starting", 0)
	}
	log := p.raft.status()
	return readyAs(p.state(log), nodeOf(log.Leader))
}

func readyAs(state string, leader meta.NodeID) error {
	switch {
	case state != stateServing:
		return fmt.Errorf("this node is %s, not %s", state, stateServing)
	case leader == 0:
		return errors.New("no leader is known")
	}
	return nil
}
