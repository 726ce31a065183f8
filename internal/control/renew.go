package control

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/credentials"
	"github.com/rdmcfs/rdmcfs/internal/format"
)

const (
	renewCheck = 5 * time.Second  // between looks at the clock: the cluster's time jumps when wrong clocks are set right
	renewRetry = 10 * time.Minute // after renewals that failed, at most, and after one that changed nothing
)

// RenewalConfig is what keeps a node's certificate fresh. All fields except Dial and Lost must be set.
type RenewalConfig struct {
	Identity  *credentials.Identity
	Dir       credentials.Dir
	Authority func() *credentials.Authority // nil value where this node does not sign
	Addrs     func() []string               // of nodes to ask, signers first
	Now       func() time.Time
	// no peer talks to this node: it may be that its certificate is over and its clock does not say so; nil = never
	Lost func() bool
	Dial DialFunc // nil = plain TCP
	// Format is what this node says of its format, as in PortConfig.
	Format func() format.End
	Log    *slog.Logger
}

// Renew gets a new certificate for a new key, stores it, and swaps it in.
func Renew(ctx context.Context, cfg RenewalConfig) error {
	req, err := credentials.NewRequest()
	if err != nil {
		return err
	}
	leaf, err := renewedLeaf(ctx, cfg, req)
	if err != nil {
		return fmt.Errorf("control: renew certificate: %w", err)
	}
	if _, err := credentials.IdentityFromRequest(cfg.Identity.AuthorityDER(), leaf, req, cfg.Now); err != nil {
		return fmt.Errorf("control: renew certificate: %w", err)
	}
	if err := cfg.Dir.SaveIdentity(cfg.Identity.AuthorityDER(), leaf, req); err != nil {
		return err
	}
	return cfg.Identity.Install(leaf, req)
}

func renewedLeaf(ctx context.Context, cfg RenewalConfig, req *credentials.Request) ([]byte, error) {
	if authority := cfg.Authority(); authority != nil {
		return authority.Sign(req.DER(), cfg.Identity.Name().Node, cfg.Now())
	}
	payload, err := json.Marshal(renewCall{Request: req.DER()})
	if err != nil {
		return nil, err
	}
	conf := cfg.Identity.ClientConfig(0, ProtocolRenew)
	reply, err := askSigners(ctx, caller{cfg.Dial, conf, endOf(cfg.Format)}, cfg.Addrs(), kindRenew, payload,
		renewReply.signers)
	return reply.Certificate, err
}

// KeepRenewed renews the certificate when it is time, until the context ends. Its owner waits for it.
func KeepRenewed(ctx context.Context, cfg RenewalConfig) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var r renewals
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		due := func() bool { return cfg.Identity.RenewDue(cfg.Now()) }
		if r.wanted(time.Now(), due(), cfg.Lost != nil && cfg.Lost()) {
			err := Renew(ctx, cfg)
			if err != nil && ctx.Err() == nil {
				cfg.Log.Warn("control: certificate not renewed; trying again", "expires", cfg.Identity.Expires(), "err", err)
			}
			r.tried(time.Now(), err == nil, due())
		}
		timer.Reset(renewCheck)
	}
}

// renewals decides when a certificate is renewed. The zero value has tried nothing.
type renewals struct {
	pause   time.Duration // after a try that failed, or one while no peer talks to this node
	again   time.Time     // no try before, if the last one failed or left the certificate due
	forLost time.Time     // no try before for the reason alone that no peer talks to this node
}

// wanted says whether to try now.
func (r *renewals) wanted(now time.Time, due, lost bool) bool {
	if !lost && !due {
		r.pause, r.forLost = 0, time.Time{}
	}
	return due && !now.Before(r.again) || lost && !now.Before(r.forLost)
}

// tried takes how a try went, and whether a renewal is due after it.
func (r *renewals) tried(now time.Time, renewed, due bool) {
	r.pause = min(max(2*r.pause, renewCheck), renewRetry)
	r.again, r.forLost = now.Add(r.pause), now.Add(r.pause)
	if renewed && !due {
		r.again = time.Time{}
	}
}
