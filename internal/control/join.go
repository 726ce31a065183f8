package control

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/credentials"
	"github.com/rdmcfs/rdmcfs/internal/format"
)

const (
	joinDialTimeout = 5 * time.Second
	redirectsMax    = 16
)

// JoinConfig is a machine's wish to become a node.
type JoinConfig struct {
	Addr    string               // of any member
	Token   string               // from 'rdmcfs token'
	Request *credentials.Request // from credentials.Dir.JoinRequest, so that it can be repeated
	Listen  string               // host:port that the others will reach this machine at
	Name    string
	Labels  map[string]string
	Replace bool
	Now     func() time.Time
	Dial    DialFunc // nil = plain TCP
	// Formats are what the program knows; the zero value is format.Known. Version is that of its release.
	Formats format.Range
	Version string
}

// Joined is what the machine is now.
type Joined struct {
	Cluster      credentials.ClusterID
	Node         uint32
	Name         string
	Generation   uint32
	LeafDER      []byte
	AuthorityDER []byte
	Peers        []PeerAddr
}

// Join asks a member, or the nodes that it names, to take this machine in. A join that failed without an answer
// may be repeated with the same Request.
func Join(ctx context.Context, cfg JoinConfig) (Joined, error) {
	token, err := credentials.ParseToken(cfg.Token)
	if err != nil {
		return Joined{}, err
	}
	call := joinCall{Token: cfg.Token, Request: cfg.Request.DER(), Addr: cfg.Listen, Name: cfg.Name, Labels: cfg.Labels,
		Replace: cfg.Replace,
		Clock:   cfg.Now().UnixNano(), Version: cfg.Version}
	if err := checkMemberAddr(cfg.Addr); err != nil {
		return Joined{}, err
	}
	if err := checkJoin(call); err != nil {
		return Joined{}, err
	}
	payload, err := json.Marshal(call)
	if err != nil {
		return Joined{}, fmt.Errorf("control: join: %w", err)
	}
	conf := credentials.JoinClientConfig(token, ProtocolJoin, cfg.Now)
	by := caller{cfg.Dial, conf, format.End{Known: cfg.known()}}
	reply, err := askSigners(ctx, by, []string{cfg.Addr}, kindJoin, payload, joinReply.signers)
	if err != nil {
		return Joined{}, fmt.Errorf("control: join: %w", err)
	}
	joined := Joined{Cluster: token.Cluster, Node: reply.Node, Name: reply.Name, Generation: reply.Generation,
		LeafDER: reply.Certificate, AuthorityDER: reply.Authority, Peers: reply.Peers}
	return joined, checkJoined(joined, token, cfg)
}

// refusals are the answers after which a join has changed nothing, and never will.
var refusals = []Code{CodeForeignCluster, CodeTokenMalformed, CodeTokenUnknown, CodeTokenUsed, CodeTokenExpired,
	CodeNameTaken, CodeAddrTaken, CodeNotReplaceable, CodeClock, CodeFormat, CodeFormatHere}

// JoinRefused reports whether a member has refused a join for good. After other errors the cluster may have taken the
// machine in, and the join is repeated with the same Request.
func JoinRefused(err error) bool {
	if errors.Is(err, credentials.ErrForeignCluster) {
		return true // this machine has refused to ask, or to believe the answer
	}
	var answer *RemoteError
	return errors.As(err, &answer) && slices.Contains(refusals, answer.Code)
}

// CheckJoin refuses what can be no token and no address of a member, before anything is made for a join.
func CheckJoin(addr, token string) error {
	if _, err := credentials.ParseToken(token); err != nil {
		return err
	}
	return checkMemberAddr(addr)
}

func checkMemberAddr(addr string) error {
	if host, port, err := net.SplitHostPort(addr); err != nil || host == "" || port == "" {
		return Usagef("control: join: address %q of a member: want HOST:PORT, such as 10.0.0.1:7400", addr)
	}
	return nil
}

// checkJoined proves that the answer is an identity of the token's cluster for our key.
func checkJoined(j Joined, token credentials.Token, cfg JoinConfig) error {
	id, err := credentials.IdentityFromRequest(j.AuthorityDER, j.LeafDER, cfg.Request, cfg.Now)
	if err != nil {
		return fmt.Errorf("control: join: answer: %w", err)
	}
	if id.AuthorityKeyHash() != token.KeyHash || id.Name() != (credentials.Name{Cluster: token.Cluster, Node: j.Node}) {
		return fmt.Errorf("control: join: the certificate in the answer %w", credentials.ErrForeignCluster)
	}
	return nil
}

// askSigners calls the addresses in turn, then the addresses that the called nodes name, until one signs or refuses.
func askSigners[R any](ctx context.Context, by caller, addrs []string, kind uint32, payload []byte,
	signers func(R) (others []string, signed bool)) (R, error) {
	var zero R
	lastErr := errRedirected
	addrs = slices.Clone(addrs)
	for i := 0; i < len(addrs) && i < redirectsMax; i++ {
		raw, err := by.askOnce(ctx, addrs[i], kind, payload)
		var refused *RemoteError
		switch {
		case errors.As(err, &refused) && !errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrBusy):
			return zero, err
		case ctx.Err() != nil:
			return zero, errors.Join(ctx.Err(), err)
		case err != nil:
			lastErr = err
			continue
		}
		var reply R
		if err := json.Unmarshal(raw, &reply); err != nil {
			return zero, fmt.Errorf("control: answer of %s: %w: %w", addrs[i], ErrProtocol, err)
		}
		more, signed := signers(reply)
		if signed {
			return reply, nil
		}
		for _, addr := range more {
			if !slices.Contains(addrs, addr) {
				addrs = append(addrs, addr)
			}
		}
	}
	return zero, lastErr
}

func (c *JoinConfig) known() format.Range {
	if c.Formats == (format.Range{}) {
		return format.Known
	}
	return c.Formats
}

// caller is how a node that is asked for a certificate is called, and what the caller says of its format.
type caller struct {
	dial   DialFunc // nil = plain TCP
	conf   *tls.Config
	format format.End
}

// askOnce makes one call over a connection of its own.
func (by caller) askOnce(ctx context.Context, addr string, kind uint32, payload []byte) ([]byte, error) {
	dial := by.dial
	if dial == nil {
		dial = dialTCP
	}
	dialCtx, cancel := context.WithTimeout(ctx, joinDialTimeout)
	defer cancel()
	conn, err := dialTLS(dialCtx, reached(dial), addr, by.conf, saying(0, by.format))
	if err != nil {
		return nil, err
	}
	c := newClient(conn)
	defer c.close()
	ctx, cancel = context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	return c.call(ctx, kind, payload)
}

// reached makes a failed dial say what to look at.
func reached(dial DialFunc) DialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrNoNode, err)
		}
		return conn, nil
	}
}
