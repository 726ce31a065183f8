package control

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/credentials"
)

const (
	renewCheck = time.Hour        // between looks at the clock
	renewRetry = 10 * time.Minute // after a renewal that failed
)

// RenewalConfig is what keeps a node's certificate fresh. All but Dial and Lost must be set.
type RenewalConfig struct {
	Identity  *credentials.Identity
	Dir       credentials.Dir
	Authority func() *credentials.Authority // nil value where this node does not sign
	Addrs     func() []string               // of nodes to ask, signers first
	Now       func() time.Time
	Lost      func() bool // no peer talks to this node: it may be that its certificate is over and its clock does not say so; nil = never
	Dial      DialFunc    // nil = plain TCP
	Log       *slog.Logger
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
	reply, err := askSigners(ctx, cfg.Dial, cfg.Addrs(), conf, kindRenew, payload, func(r renewReply) []string { return r.Redirect })
	return reply.Certificate, err
}

// KeepRenewed renews the certificate when it is time, until the context ends. Its owner waits for it.
func KeepRenewed(ctx context.Context, cfg RenewalConfig) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		wait := renewCheck
		lost := cfg.Lost != nil && cfg.Lost()
		if lost {
			wait = renewRetry
		}
		if lost || cfg.Identity.RenewDue(cfg.Now()) {
			if err := Renew(ctx, cfg); err != nil {
				cfg.Log.Warn("control: certificate not renewed; trying again", "expires", cfg.Identity.Expires(), "err", err)
				wait = renewRetry
			}
		}
		timer.Reset(wait)
	}
}
