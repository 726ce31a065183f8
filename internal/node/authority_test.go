package node

import (
	"context"
	"encoding/hex"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/internal/control"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
)

// answering is a log that answers each proposal with one result.
type answering struct{ result any }

// Propose implements raftLog.
func (l answering) Propose(context.Context, []byte, consensus.ProposeOptions) (consensus.Proposed, error) {
	return consensus.Proposed{Result: l.result}, nil
}

// membersOf are the members of a cluster, as node 1 knows them.
func membersOf(t *testing.T, c *metatest.Cluster) *members {
	t.Helper()
	rec, err := c.DB.Node(1)
	if err != nil {
		t.Fatal(err)
	}
	m, err := newMembers(c.DB, identity{Node: 1, Store: hex.EncodeToString(rec.Store[:])}, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// A machine whose name is taken by one that joined and never ran is told how to take its place. A machine whose name
// is that of a node that runs is not.
func TestJoinUnderATakenName(t *testing.T) {
	c := metatest.New(t, 2)
	c.Join("silent")
	taken := answering{meta.Result{Errno: syscall.EEXIST}}
	a := &authority{members: membersOf(t, c), anonymous: anonymous{node: 1, log: taken}}
	for name, advice := range map[string]bool{"silent": true, "node2": false} {
		_, err := a.register(t.Context(), control.Registration{Name: name})
		if !errors.Is(err, control.ErrNameTaken) || strings.Contains(err.Error(), "token --replace "+name) != advice {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A machine that says the address of a node that is up is told which node that is.
func TestJoinAtATakenAddress(t *testing.T) {
	c := metatest.New(t, 2)
	a := &authority{members: membersOf(t, c),
		anonymous: anonymous{node: 1, log: answering{meta.Result{Errno: syscall.EADDRINUSE}}}}
	_, err := a.register(t.Context(), control.Registration{Name: "new", Addr: "NODE2:7400"})
	if !errors.Is(err, control.ErrAddrTaken) || !strings.HasSuffix(err.Error(), "node2 is at node2:7400") {
		t.Error(err)
	}
}

// A join that replaces a node waits until the cluster can do without it, and asks the log only then.
func TestJoinWaitsForWhatItReplaces(t *testing.T) {
	refused := errors.New("not yet")
	a := &authority{spare: func(_ context.Context, name string) error {
		if name != "node2" {
			t.Errorf("waits for %q", name)
		}
		return refused
	}}
	if _, err := a.register(t.Context(), control.Registration{Name: "node2", Replace: true}); !errors.Is(err, refused) {
		t.Error(err)
	}
}

// A token that could not be good for anything is not made.
func TestTokenIsRefused(t *testing.T) {
	a := &authority{members: membersOf(t, metatest.New(t, 1))}
	for code, req := range map[admin.Code]admin.TokenRequest{admin.CodeInvalid: {TTL: -1},
		admin.CodeNotFound: {Replace: "none"}} {
		if _, err := a.token(t.Context(), req); admin.CodeOf(err) != code {
			t.Errorf("%+v: %v", req, err)
		}
	}
}

// Without a result the outcome of a proposal is unknown.
func TestAnonymousProposalWithoutAResult(t *testing.T) {
	a := anonymous{node: 1, log: answering{}}
	if _, err := a.propose(t.Context(), &meta.Expire{}); !errors.Is(err, consensus.ErrUnknown) {
		t.Error(err)
	}
	a.log = answering{meta.Result{Retired: 3}}
	if res, err := a.propose(t.Context(), &meta.Expire{}); err != nil || res.Retired != 3 {
		t.Errorf("%+v, %v", res, err)
	}
}
