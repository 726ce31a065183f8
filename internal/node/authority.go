package node

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"syscall"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/internal/control"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/credentials"
	"github.com/rdmcfs/rdmcfs/internal/format"
	"github.com/rdmcfs/rdmcfs/meta"
)

// authority is what a member does about the credentials of nodes: it lets machines join, makes tokens, signs
// certificates if it has the key, and has its own certificate renewed in time.
type authority struct {
	id        identity
	formats   formats
	creds     *credentials.Identity
	dir       credentials.Dir
	dial      control.DialFunc // nil is TCP
	key       *signing
	clock     *clock
	db        *meta.DB
	members   *members
	raft      *lateRaft
	lease     func() meta.Lease // this node's
	anonymous anonymous
	// spare waits until the cluster can do without the node of a name, which is to be replaced.
	spare func(ctx context.Context, name string) error
	log   *slog.Logger
}

// serve answers joins, renewals and requests for the signing key.
func (a *authority) serve(port *control.Port, server *control.Server) {
	control.ServeCluster(port, server, control.ClusterConfig{
		Identity: a.creds, Generation: a.id.Generation,
		Authority: a.key.authority.Load,
		Signers:   a.members.addresses,
		Register:  a.register,
		MaySign:   func(node uint32) bool { return a.members.book().nodes[meta.NodeID(node)].Voter },
		Now:       a.tokenTime, Clock: a.clock.now, Log: a.log,
	})
}

// register lets the log decide about a machine that wants to join.
func (a *authority) register(ctx context.Context, r control.Registration) (control.Admission, error) {
	name := r.Name
	if name == "" {
		name = "node-" + hex.EncodeToString(r.KeyHash[:4])
	}
	if r.Replace {
		if err := a.spare(ctx, name); err != nil {
			return control.Admission{}, err
		}
	}
	res, err := a.anonymous.propose(ctx, &meta.Join{Name: name, Addr: r.Addr, Labels: r.Labels, TokenHash: r.SecretHash,
		Replace: r.Replace, KeyHash: r.KeyHash, Program: meta.Program{Version: r.Version, Formats: r.Formats}})
	if err != nil {
		return control.Admission{}, fmt.Errorf("node: join: %w: %w", control.ErrUnavailable, err)
	}
	if err := joinRefused(res.Errno); err != nil {
		return control.Admission{}, a.advised(name, r.Addr, err)
	}
	out := control.Admission{Node: uint32(res.Node), Name: name}
	for node, rec := range a.members.book().nodes {
		if node != res.Node && rec.Addr != "" && rec.Store != ([16]byte{}) {
			out.Peers = append(out.Peers, control.PeerAddr{Node: uint32(node), Addr: rec.Addr,
				Store: hex.EncodeToString(rec.Store[:])})
		}
	}
	return out, nil
}

// advised adds to a refusal which node is in the way.
func (a *authority) advised(name, addr string, err error) error {
	if !errors.Is(err, control.ErrAddrTaken) {
		return a.neverRan(name, err)
	}
	for _, rec := range a.members.book().nodes {
		if rec.State == meta.NodeUp && strings.EqualFold(rec.Addr, addr) && rec.Name != name {
			return fmt.Errorf("%w: %s is at %s", err, rec.Name, rec.Addr)
		}
	}
	return err
}

// neverRan adds advice to the refusal of a name whose machine has joined and never run: most often it is this machine,
// and its data directory was lost. The name can't just be given away: the other machine may be about to start.
func (a *authority) neverRan(name string, err error) error {
	if !errors.Is(err, control.ErrNameTaken) {
		return err
	}
	for _, rec := range a.members.book().nodes {
		if rec.Name == name && rec.State == meta.NodeJoined {
			return fmt.Errorf("%w: %s joined from %s and has never run since; if that was this machine and its data "+
				"directory is lost, "+
				"type 'rdmcfs token --replace %s' on a member and here the line that it prints", err, name, rec.Addr, name)
		}
	}
	return err
}

// joinRefused turns the log's answer to a join into an error that says what to do.
func joinRefused(errno syscall.Errno) error {
	switch errno {
	case 0:
		return nil
	case syscall.EACCES:
		return fmt.Errorf("node: join: %w", control.ErrTokenUnknown)
	case syscall.EALREADY:
		return fmt.Errorf("node: join: %w", control.ErrTokenUsed)
	case syscall.ETIMEDOUT:
		return fmt.Errorf("node: join: %w", credentials.ErrTokenExpired)
	case syscall.EEXIST:
		return fmt.Errorf("node: join: %w", control.ErrNameTaken)
	case syscall.EADDRINUSE:
		return fmt.Errorf("node: join: %w", control.ErrAddrTaken)
	case syscall.EPERM:
		return fmt.Errorf("node: join: %w", control.ErrNotReplaceable)
	case syscall.EPROTONOSUPPORT:
		return fmt.Errorf("node: join: another format is in use: %w", format.ErrUnknown)
	case syscall.EAGAIN:
		return fmt.Errorf("node: join: without that node the voters that are up are no quorum: %w; see 'rdmcfs status', "+
			"and try again when all "+
			"others are up: the token has not been used", control.ErrUnavailable)
	}
	return fmt.Errorf("node: join: refused: %w", errno)
}

// token makes a join token and puts its hash into the log.
func (a *authority) token(ctx context.Context, req admin.TokenRequest) (admin.Token, error) {
	ttl := orDefault(req.TTL, DefaultTokenTTL)
	if ttl < 0 {
		return admin.Token{}, admin.Errorf(admin.CodeInvalid, "a token can't be good for %v", ttl)
	}
	if req.Replace != "" && !a.members.book().has(req.Replace) {
		return admin.Token{}, admin.Errorf(admin.CodeNotFound, "no node %q to replace: 'rdmcfs status' lists them",
			req.Replace)
	}
	token := credentials.NewToken(a.creds.Name().Cluster, a.creds.AuthorityKeyHash(), a.tokenTime().Add(ttl))
	res, err := a.anonymous.propose(ctx, &meta.AddToken{
		Hash: token.SecretHash(req.Replace), Expires: token.Expires.UnixNano(), Replace: req.Replace != "", Uses: 1,
	})
	if err == nil && res.Errno != 0 {
		err = res.Errno
	}
	if err != nil {
		return admin.Token{}, adminError("make a token", err)
	}
	return admin.Token{Token: token.String(), Expires: token.Expires, Listen: a.id.Advertise}, nil
}

// adminError gives an error of the log the code that shows a script what happened.
func adminError(what string, err error) error {
	if errors.Is(err, consensus.ErrNoQuorum) || errors.Is(err, consensus.ErrUnknown) ||
		errors.Is(err, consensus.ErrReadOnly) {
		e := admin.Errorf(admin.CodeUnavailable, "%s: %v", what, err)
		e.Hint = "see 'rdmcfs status' for the voters that are missing"
		return e
	}
	return fmt.Errorf("%s: %w", what, err)
}

// keepCertificate renews this node's certificate in time.
func (a *authority) keepCertificate(ctx context.Context) {
	control.KeepRenewed(ctx, control.RenewalConfig{Dial: a.dial, Format: a.formats.end,
		Identity: a.creds, Dir: a.dir, Authority: a.key.authority.Load, Addrs: a.members.addresses, Now: a.renewalTime,
		Lost: a.lost, Log: a.log,
	})
}

// tokenTime is the time from which a token and a certificate count: the log decides about a token, and its time may
// be ahead. A certificate that is signed by the later of both has not ended for a node that goes by the other, as
// some do when all clocks were wrong.
func (a *authority) tokenTime() time.Time {
	now := a.clock.now()
	if log := time.Unix(0, a.db.Time()); log.After(now) {
		return log
	}
	return now
}

// renewalTime is the time by which this node's certificate is renewed. While the cluster's time is not known it is the
// later of the log's and the machine's: one renewal too many does no harm.
func (a *authority) renewalTime() time.Time {
	now, wall := a.tokenTime(), a.clock.wall()
	if raft := a.raft.node.Load(); raft != nil && !raft.Clocks().Known && wall.After(now) {
		return wall
	}
	return now
}

// lost reports whether no voter has let this node in since it started, or no voter answers it now. The voters may think
// that its certificate has expired: their time is not always this node's, as when clocks that were wrong were set
// right.
func (a *authority) lost() bool { return a.lease().Incarnation == 0 || a.raft.status().NoQuorum }
