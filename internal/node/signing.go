package node

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/internal/control"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/credentials"
	"github.com/rdmcfs/rdmcfs/meta"
)

// signing is the cluster's signing key, if this node holds it.
type signing struct {
	dir       credentials.Dir
	authority atomic.Pointer[credentials.Authority]
	look      chan struct{} // buffered 1: the members have changed
	saving    sync.Mutex    // held to store the key
}

func loadSigning(dir credentials.Dir) (*signing, error) {
	s := &signing{dir: dir, look: make(chan struct{}, 1)}
	authority, err := dir.LoadAuthority()
	switch {
	case errors.Is(err, os.ErrNotExist):
		return s, nil
	case err != nil:
		return nil, err
	}
	s.authority.Store(authority)
	return s, nil
}

// signingCheck is how often a voter that lacks the signing key asks for it again.
const signingCheck = 2 * time.Second

// keepSigning gets the signing key as soon as this node votes, so that any voter can take nodes in: as long as only one
// node has the key, no other machine can ever join if its disk is lost.
func (n *node) keepSigning(ctx context.Context) {
	again := time.NewTicker(signingCheck)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.signing.look:
		case <-again.C:
		}
		if rec := n.members.book().nodes[n.id.Node]; rec.Voter && n.signing.authority.Load() == nil {
			n.fetchSigning(ctx)
		}
	}
}

// fetchSigning asks the others for the key, voters first: a node that alone had it may have lost its vote.
func (n *node) fetchSigning(ctx context.Context) {
	var voters, others []meta.NodeID
	for node, rec := range n.members.book().nodes {
		switch {
		case node == n.id.Node:
		case rec.Voter:
			voters = append(voters, node)
		case rec.State == meta.NodeUp:
			others = append(others, node)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, signingCheck)
	defer cancel()
	for _, node := range append(voters, others...) {
		if err := fetchSigningOf(ctx, n, node); err == nil {
			return
		}
	}
}

// fetchSigningOf asks a node for the key, and keeps it.
func fetchSigningOf(ctx context.Context, n *node, node meta.NodeID) error {
	authority, err := control.FetchAuthority(ctx, n.peers, uint32(node))
	if err != nil {
		n.log.Debug("signing key", "from", node, "err", err)
		return err
	}
	if err := n.signing.keep(authority); err != nil {
		n.log.Error("keep the signing key", "err", err)
		return err
	}
	return nil
}

// keep stores the key, durably, unless it is here already.
func (s *signing) keep(authority *credentials.Authority) error {
	s.saving.Lock()
	defer s.saving.Unlock()
	if s.authority.Load() != nil {
		return nil
	}
	if err := s.dir.SaveAuthority(authority); err != nil {
		return err
	}
	s.authority.Store(authority)
	return nil
}

// keepCertificate renews this node's certificate in time.
func (n *node) keepCertificate(ctx context.Context) {
	control.KeepRenewed(ctx, control.RenewalConfig{Dial: n.cfg.Host.Dial,
		Identity: n.creds, Dir: n.dir.tls(), Authority: n.signing.authority.Load, Addrs: n.addresses, Now: n.renewalTime,
		Lost: n.lost, Log: n.log,
	})
}

// addresses lists the other members, voters first.
func (n *node) addresses() []string {
	var voters, others []string
	for node, rec := range n.members.book().nodes {
		switch {
		case node == n.id.Node || rec.Addr == "":
		case rec.Voter:
			voters = append(voters, rec.Addr)
		default:
			others = append(others, rec.Addr)
		}
	}
	return append(voters, others...)
}

// serveCluster answers joins, renewals and requests for the signing key.
func (n *node) serveCluster() {
	control.ServeCluster(n.port, n.server, control.ClusterConfig{
		Identity: n.creds, Generation: n.id.Generation,
		Authority: n.signing.authority.Load,
		Signers:   n.addresses,
		Register:  n.register,
		MaySign:   func(node uint32) bool { return n.members.book().nodes[meta.NodeID(node)].Voter },
		Now:       n.tokenTime, Clock: n.now, Log: n.log,
	})
}

// register lets the log decide about a machine that wants to join.
func (n *node) register(ctx context.Context, r control.Registration) (control.Admission, error) {
	name := r.Name
	if name == "" {
		name = "node-" + hex.EncodeToString(r.KeyHash[:4])
	}
	if r.Replace {
		if err := spareReplaced(ctx, n, name); err != nil {
			return control.Admission{}, err
		}
	}
	res, err := n.proposeAnonymous(ctx, &meta.Join{Name: name, Addr: r.Addr, Labels: r.Labels, TokenHash: r.SecretHash,
		Replace: r.Replace, KeyHash: r.KeyHash})
	if err != nil {
		return control.Admission{}, fmt.Errorf("node: join: %w: %w", control.ErrUnavailable, err)
	}
	if err := joinRefused(res.Errno); err != nil {
		return control.Admission{}, n.neverRan(name, err)
	}
	out := control.Admission{Node: uint32(res.Node), Name: name}
	for node, rec := range n.members.book().nodes {
		if node != res.Node && rec.Addr != "" && rec.Store != ([16]byte{}) {
			out.Peers = append(out.Peers, control.PeerAddr{Node: uint32(node), Addr: rec.Addr,
				Store: hex.EncodeToString(rec.Store[:])})
		}
	}
	return out, nil
}

// neverRan adds advice to the refusal of a name whose machine has joined and never run: most often it is this machine,
// and its data directory was lost. The name can't just be given away: the other machine may be about to start.
func (n *node) neverRan(name string, err error) error {
	if !errors.Is(err, control.ErrNameTaken) {
		return err
	}
	for _, rec := range n.members.book().nodes {
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
	case syscall.EPERM:
		return fmt.Errorf("node: join: %w", control.ErrNotReplaceable)
	case syscall.EAGAIN:
		return fmt.Errorf("node: join: without that node the voters that are up are no quorum: %w; see 'rdmcfs status', "+
			"and try again when all "+
			"others are up: the token has not been used", control.ErrUnavailable)
	}
	return fmt.Errorf("node: join: refused: %w", errno)
}

// token makes a join token and puts its hash into the log.
func (n *node) token(ctx context.Context, req admin.TokenRequest) (admin.Token, error) {
	ttl := orDefault(req.TTL, DefaultTokenTTL)
	if ttl < 0 {
		return admin.Token{}, admin.Errorf(admin.CodeInvalid, "a token can't be good for %v", ttl)
	}
	if req.Replace != "" && !n.members.book().has(req.Replace) {
		return admin.Token{}, admin.Errorf(admin.CodeNotFound, "no node %q to replace: 'rdmcfs status' lists them",
			req.Replace)
	}
	token := credentials.NewToken(n.creds.Name().Cluster, n.creds.AuthorityKeyHash(), n.tokenTime().Add(ttl))
	res, err := n.proposeAnonymous(ctx, &meta.AddToken{
		Hash: token.SecretHash(req.Replace), Expires: token.Expires.UnixNano(), Replace: req.Replace != "", Uses: 1,
	})
	if err == nil && res.Errno != 0 {
		err = res.Errno
	}
	if err != nil {
		return admin.Token{}, adminError("make a token", err)
	}
	return admin.Token{Token: token.String(), Expires: token.Expires, Listen: n.id.Advertise}, nil
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
