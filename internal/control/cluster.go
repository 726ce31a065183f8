package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/credentials"
	"github.com/rdmcfs/rdmcfs/internal/format"
)

// KindReserved is the first kind of call that belongs to this package.
const KindReserved = 0xff000000

const (
	kindJoin      = KindReserved + iota // on rdmcfs-join/1
	kindRenew                           // on rdmcfs-renew/1
	kindAuthority                       // on rdmcfs-peer/1: the signing key, for those who may sign
)

const (
	joinTimeout   = 60 * time.Second // of a join or renewal connection, as the server sees it
	joinClockMax  = 24 * time.Hour   // how far the clock of a machine that joins may be ahead
	nameBytesMax  = 64
	labelsMax     = 32
	labelBytesMax = 256
	addrBytesMax  = 256
	versionMax    = 256
)

// Registration is what the log must decide about a machine that wants to join. Its token is not expired by the
// clock of the signing node; whether it is known and unused is for the log.
type Registration struct {
	SecretHash [32]byte // credentials.Token.SecretHash of the token, for Name when Replace is set
	KeyHash    [32]byte // of the machine's key: the same when a join is repeated
	Name       string   // "" = choose one
	Addr       string   // host:port that the others reach it at
	Labels     map[string]string
	Replace    bool         // take the place of the node of that name
	Formats    format.Range // that the machine's program knows
	Version    string       // of that program
}

// Admission is the log's answer.
type Admission struct {
	Node  uint32
	Name  string
	Peers []PeerAddr
}

// PeerAddr is a member as a newcomer needs to know it.
type PeerAddr struct {
	Node  uint32 `json:"node"`
	Addr  string `json:"addr"`
	Store string `json:"store,omitempty"` // its store id in hex, for the identities of the log
}

// ClusterConfig is what the node answers joins, renewals and key requests from. Functions must be set.
type ClusterConfig struct {
	Identity   *credentials.Identity
	Generation uint32
	// Authority is the signing key, or nil where this node does not hold it.
	Authority func() *credentials.Authority
	// Signers are the addresses of the nodes that may sign, for callers of a node that does not.
	Signers func() []string
	// Register proposes the join. A machine that asks again, with the same key, gets the same node as long as that one
	// waits for it. The error wraps ErrTokenUnknown, ErrTokenUsed, credentials.ErrTokenExpired, ErrNameTaken,
	// ErrNotReplaceable or ErrUnavailable if one of them fits.
	Register func(context.Context, Registration) (Admission, error)
	// MaySign reports whether the node is entitled to the signing key: it is a voter in the log.
	MaySign func(node uint32) bool
	// Now is the time from which tokens and certificates count, Clock what the cluster's clocks show.
	Now, Clock func() time.Time
	Log        *slog.Logger
}

// cluster answers joins, renewals and key requests.
type cluster struct{ cfg ClusterConfig }

// ServeCluster makes the port answer joins and renewals, and the server hand the signing key to entitled nodes.
// It is called once, before others know the port's address.
func ServeCluster(port *Port, server *Server, cfg ClusterConfig) {
	c := &cluster{cfg: cfg}
	joins, renewals := NewServer(cfg.Log), NewServer(cfg.Log)
	joins.HandleCall(kindJoin, c.join)
	renewals.HandleCall(kindRenew, c.renew)
	server.HandleCall(kindAuthority, c.authority)
	port.register(ProtocolJoin, false, false, briefly(port, joins))
	port.register(ProtocolRenew, true, true, briefly(port, renewals))
}

// briefly serves a connection for joinTimeout at most.
func briefly(port *Port, s *Server) connHandler {
	return func(ctx context.Context, conn net.Conn, from Caller) {
		ctx, cancel := context.WithTimeout(ctx, joinTimeout)
		defer cancel()
		port.logEnd(s.ServeConn(ctx, conn, from))
	}
}

// joinCall is the payload of kindJoin, in JSON: rare, and read by people who debug.
type joinCall struct {
	Token   string            `json:"token"`
	Request []byte            `json:"request"` // certificate request, DER
	Addr    string            `json:"addr"`
	Name    string            `json:"name"`
	Labels  map[string]string `json:"labels,omitempty"`
	Replace bool              `json:"replace,omitempty"`
	Clock   int64             `json:"clock,omitempty"` // the newcomer's, in Unix nanoseconds; 0 = not said
	Version string            `json:"version,omitempty"`
}

// joinReply answers kindJoin: a certificate, or the addresses of nodes that can give one.
type joinReply struct {
	Redirect    []string   `json:"redirect,omitempty"`
	Node        uint32     `json:"node,omitempty"`
	Name        string     `json:"name,omitempty"`
	Generation  uint32     `json:"generation,omitempty"`
	Certificate []byte     `json:"certificate,omitempty"`
	Authority   []byte     `json:"authority,omitempty"`
	Peers       []PeerAddr `json:"peers,omitempty"`
}

// signers returns the nodes to ask instead, and whether the answer has a certificate.
func (r joinReply) signers() (others []string, signed bool) {
	return r.Redirect, len(r.Certificate) > 0
}

// renewCall is the payload of kindRenew.
type renewCall struct {
	Request []byte `json:"request"`
}

// renewReply answers kindRenew.
type renewReply struct {
	Redirect    []string `json:"redirect,omitempty"`
	Certificate []byte   `json:"certificate,omitempty"`
}

// signers returns the nodes to ask instead, and whether the answer has a certificate.
func (r renewReply) signers() (others []string, signed bool) {
	return r.Redirect, len(r.Certificate) > 0
}

func (c *cluster) join(ctx context.Context, from Caller, payload []byte) ([]byte, error) {
	var call joinCall
	if err := json.Unmarshal(payload, &call); err != nil {
		return nil, fmt.Errorf("control: join: %w: %w", ErrProtocol, err)
	}
	token, err := c.checkToken(call.Token)
	if err != nil {
		return nil, err
	}
	if err := checkJoin(call); err != nil {
		return nil, err
	}
	if err := checkClock(call.Clock, c.cfg.Clock()); err != nil {
		return nil, err
	}
	authority := c.cfg.Authority()
	if authority == nil {
		return json.Marshal(joinReply{Redirect: c.cfg.Signers()})
	}
	reply, err := c.admit(ctx, authority, call, token, from.Formats)
	if err != nil {
		c.cfg.Log.Info("control: join refused", "from", from.Addr, "name", call.Name, "err", err)
		return nil, err
	}
	c.cfg.Log.Info("control: joined", "node", reply.Node, "name", reply.Name, "addr", call.Addr, "from", from.Addr)
	return json.Marshal(reply)
}

// checkToken refuses what can be refused without the log.
func (c *cluster) checkToken(text string) (credentials.Token, error) {
	token, err := credentials.ParseToken(text)
	switch {
	case err != nil:
		return token, err
	case token.Cluster != c.cfg.Identity.Name().Cluster, token.KeyHash != c.cfg.Identity.AuthorityKeyHash():
		return token, fmt.Errorf("control: the token %w", credentials.ErrForeignCluster)
	case c.cfg.Now().After(token.Expires):
		return token, fmt.Errorf("control: %w", credentials.ErrTokenExpired)
	}
	return token, nil
}

// checkClock refuses a machine whose clock is far ahead of the cluster's, before its token is used up: it would take
// the others' certificates for expired and never be heard. A clock that is behind does no such harm.
func checkClock(theirs int64, now time.Time) error {
	ahead := time.Unix(0, theirs).Sub(now)
	if theirs == 0 || ahead <= joinClockMax {
		return nil
	}
	return fmt.Errorf("control: join: this machine's clock is %.0f days ahead of the cluster's, which is %s: %w",
		ahead.Hours()/24, now.UTC().Format(time.DateTime+" MST"), ErrClock)
}

// checkJoin bounds what would go into the log.
func checkJoin(call joinCall) error {
	if err := CheckNodeName(call.Name); err != nil {
		return err
	}
	if err := CheckLabels(call.Labels); err != nil {
		return err
	}
	if len(call.Version) > versionMax {
		return Usagef("control: join: a version of %d bytes; at most %d allowed", len(call.Version), versionMax)
	}
	if call.Replace && call.Name == "" {
		return Usagef("control: join: --replace needs the --name of the node to replace")
	}
	if host, port, err := net.SplitHostPort(call.Addr); err != nil || host == "" || port == "" || port == "0" ||
		len(call.Addr) > addrBytesMax {
		return Usagef("control: join: listen address %q: want host:port that the others can reach", call.Addr)
	}
	if ip := net.ParseIP(hostOf(call.Addr)); ip != nil && ip.IsUnspecified() {
		return Usagef("control: join: listen address %q: the others can't reach this; name one of this machine's addresses",
			call.Addr)
	}
	return nil
}

func hostOf(addr string) string {
	host, _, _ := net.SplitHostPort(addr)
	return host
}

// CheckNodeName accepts letters, digits, dot, dash and underscore; "" lets the cluster choose.
func CheckNodeName(name string) error {
	odd := strings.ContainsFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r))
	})
	if odd || len(name) > nameBytesMax {
		return Usagef("control: node name %q: want up to %d letters, digits, dots, dashes", name, nameBytesMax)
	}
	return nil
}

// CheckLabels bounds the labels of a node.
func CheckLabels(labels map[string]string) error {
	if len(labels) > labelsMax {
		return Usagef("control: %d labels; at most %d allowed", len(labels), labelsMax)
	}
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if key == "" || len(key)+len(labels[key]) > labelBytesMax {
			return Usagef("control: label %q: want a key, and at most %d bytes with its value", key, labelBytesMax)
		}
	}
	return nil
}

// admit lets the log decide, then signs. The log decides about a repeated join too: its node may have been evicted
// meanwhile, or be another machine's.
func (c *cluster) admit(
	ctx context.Context, authority *credentials.Authority, call joinCall, token credentials.Token, knows format.Range,
) (joinReply, error) {
	keyHash, err := credentials.RequestKeyHash(call.Request)
	if err != nil {
		return joinReply{}, fmt.Errorf("control: join: %w: %w", ErrProtocol, err)
	}
	replaces := ""
	if call.Replace {
		replaces = call.Name
	}
	admission, err := c.cfg.Register(ctx, Registration{SecretHash: token.SecretHash(replaces), KeyHash: keyHash,
		Name: call.Name, Addr: call.Addr, Labels: call.Labels, Replace: call.Replace, Formats: knows,
		Version: call.Version})
	if errors.Is(err, ErrTokenUnknown) && call.Replace {
		err = fmt.Errorf("control: replace %q: %w", call.Name, ErrNotReplaceable)
	}
	if err != nil {
		return joinReply{}, err
	}
	cert, err := authority.Sign(call.Request, admission.Node, c.cfg.Now())
	if err != nil {
		return joinReply{}, err
	}
	return joinReply{Node: admission.Node, Name: admission.Name, Generation: c.cfg.Generation, Certificate: cert,
		Authority: authority.CertificateDER(), Peers: admission.Peers}, nil
}

func (c *cluster) renew(_ context.Context, from Caller, payload []byte) ([]byte, error) {
	var call renewCall
	if err := json.Unmarshal(payload, &call); err != nil {
		return nil, fmt.Errorf("control: renew: %w: %w", ErrProtocol, err)
	}
	authority := c.cfg.Authority()
	if authority == nil {
		return json.Marshal(renewReply{Redirect: c.cfg.Signers()})
	}
	cert, err := authority.Sign(call.Request, from.Node, c.cfg.Now())
	if err != nil {
		return nil, fmt.Errorf("control: renew: %w", err)
	}
	c.cfg.Log.Info("control: certificate renewed", "node", from.Node)
	return json.Marshal(renewReply{Certificate: cert})
}

func (c *cluster) authority(_ context.Context, from Caller, _ []byte) ([]byte, error) {
	authority := c.cfg.Authority()
	switch {
	case authority == nil:
		return nil, fmt.Errorf("control: %w", credentials.ErrNoAuthority)
	case !c.cfg.MaySign(from.Node):
		return nil, fmt.Errorf("control: node %d is no voter: %w", from.Node, ErrNotYours)
	}
	c.cfg.Log.Info("control: signing key given", "node", from.Node)
	return authority.KeyDER()
}

// FetchAuthority asks a node for the cluster's signing key, which it gives to voters only: the error is ErrNotYours for
// others, and credentials.ErrNoAuthority where the node has no key.
func FetchAuthority(ctx context.Context, peers *Peers, node uint32) (*credentials.Authority, error) {
	keyDER, err := peers.Call(ctx, node, kindAuthority, nil)
	if err != nil {
		return nil, err
	}
	return credentials.NewAuthorityFrom(peers.cfg.Identity.AuthorityDER(), keyDER)
}

var errRedirected = errors.New("control: no node that may sign certificates answered")
