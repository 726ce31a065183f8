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
		Clock:   cfg.Now().UnixNano()}
	if host, port, err := net.SplitHostPort(cfg.Addr); err != nil || host == "" || port == "" {
		return Joined{}, Usagef("control: join: address %q of a member: want HOST:PORT, such as 10.0.0.1:7400", cfg.Addr)
	}
	if err := checkJoin(call); err != nil {
		return Joined{}, err
	}
	payload, err := json.Marshal(call)
	if err != nil {
		return Joined{}, fmt.Errorf("control: join: %w", err)
	}
	conf := credentials.JoinClientConfig(token, ProtocolJoin, cfg.Now)
	reply, err := askSigners(ctx, cfg.Dial, []string{cfg.Addr}, conf, kindJoin, payload, joinReply.signers)
	if err != nil {
		return Joined{}, fmt.Errorf("control: join: %w", err)
	}
	joined := Joined{Cluster: token.Cluster, Node: reply.Node, Name: reply.Name, Generation: reply.Generation,
		LeafDER: reply.Certificate, AuthorityDER: reply.Authority, Peers: reply.Peers}
	return joined, checkJoined(joined, token, cfg)
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
func askSigners[R any](ctx context.Context, dial DialFunc, addrs []string, conf *tls.Config, kind uint32,
	payload []byte,
	signers func(R) (others []string, signed bool)) (R, error) {
	var zero R
	lastErr := errRedirected
	addrs = slices.Clone(addrs)
	for i := 0; i < len(addrs) && i < redirectsMax; i++ {
		raw, err := askOnce(ctx, dial, addrs[i], conf, kind, payload)
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

// askOnce makes one call over a connection of its own.
func askOnce(
	ctx context.Context, dial DialFunc, addr string, conf *tls.Config, kind uint32, payload []byte,
) ([]byte, error) {
	if dial == nil {
		dial = dialTCP
	}
	dialCtx, cancel := context.WithTimeout(ctx, joinDialTimeout)
	defer cancel()
	conn, err := dialTLS(dialCtx, reached(dial), addr, conf, 0)
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
