package node

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control"
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

// keyFetch gets the signing key from other nodes.
type keyFetch struct {
	self    meta.NodeID
	key     *signing
	members *members
	peers   *control.Peers
	log     *slog.Logger
}

// signingCheck is how often a voter that lacks the signing key asks for it again.
const signingCheck = 2 * time.Second

// run gets the signing key as soon as this node votes, so that any voter can take nodes in: as long as only one
// node has the key, no other machine can ever join if its disk is lost.
func (f *keyFetch) run(ctx context.Context) {
	again := time.NewTicker(signingCheck)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.key.look:
		case <-again.C:
		}
		if rec := f.members.book().nodes[f.self]; rec.Voter && f.key.authority.Load() == nil {
			f.fetch(ctx)
		}
	}
}

// fetch asks the others for the key, voters first: a node that alone had it may have lost its vote.
func (f *keyFetch) fetch(ctx context.Context) {
	var voters, others []meta.NodeID
	for node, rec := range f.members.book().nodes {
		switch {
		case node == f.self:
		case rec.Voter:
			voters = append(voters, node)
		case rec.State == meta.NodeUp:
			others = append(others, node)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, signingCheck)
	defer cancel()
	for _, node := range append(voters, others...) {
		if err := f.from(ctx, node); err == nil {
			return
		}
	}
}

// from asks a node for the key, and keeps it.
func (f *keyFetch) from(ctx context.Context, node meta.NodeID) error {
	authority, err := control.FetchAuthority(ctx, f.peers, uint32(node))
	if err != nil {
		f.log.Debug("signing key", "from", node, "err", err)
		return err
	}
	if err := f.key.keep(authority); err != nil {
		f.log.Error("keep the signing key", "err", err)
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
