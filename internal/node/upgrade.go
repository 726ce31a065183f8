package node

import (
	"context"
	"fmt"
	"strings"
	"syscall"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/format"
	"github.com/rdmcfs/rdmcfs/meta"
)

// upgrades looks how far an upgrade of the cluster is, and ends it.
type upgrades struct {
	db        *meta.DB
	anonymous anonymous
}

// upgrade returns which versions the nodes run. To finish, the format is raised to the newest that all nodes know.
func (u *upgrades) upgrade(ctx context.Context, req admin.UpgradeRequest) (admin.Upgrade, error) {
	st, err := u.look()
	if err != nil || !req.Finish {
		return st, err
	}
	if st.Common <= st.Format && st.Format < st.Newest {
		return st, heldBack(st)
	}
	for st.Format < st.Common {
		res, err := u.anonymous.propose(ctx, &meta.RaiseFormat{To: st.Format + 1})
		switch {
		case err != nil:
			return st, adminError("finish the upgrade", err)
		case res.Errno == syscall.EBUSY: // a node has booted with an older version since
			return st, fmt.Errorf("format %d can't be used: %w", st.Format+1, heldBackBy(u.name(res.Node)))
		case res.Errno != 0 && res.Errno != syscall.EDOM: // EDOM: somebody else has raised it
			return st, fmt.Errorf("finish the upgrade: %w", res.Errno)
		}
		if st, err = u.look(); err != nil {
			return st, err
		}
	}
	return st, nil
}

// look reads what each node said at its last boot.
func (u *upgrades) look() (admin.Upgrade, error) {
	nodes, err := u.db.Nodes()
	st := admin.Upgrade{Format: u.db.Format()}
	for i, n := range nodes {
		known := n.Program.Formats.Said()
		if i == 0 || known.Newest < st.Common {
			st.Common = known.Newest
		}
		st.Newest = max(st.Newest, known.Newest)
		st.Nodes = append(st.Nodes, admin.UpgradeNode{ID: uint32(n.ID), Name: n.Name, State: stateWords[n.State],
			Version: n.Program.Version, OldestFormat: known.Oldest, NewestFormat: known.Newest})
	}
	return st, err
}

func (u *upgrades) name(id meta.NodeID) string {
	if n, err := u.db.Node(id); err == nil {
		return n.Name
	}
	return fmt.Sprintf("node %d", id)
}

// heldBack is why the next format can't be used.
func heldBack(st admin.Upgrade) error {
	var names []string
	for _, n := range st.Nodes {
		if n.NewestFormat <= st.Format {
			names = append(names, n.Name)
		}
	}
	return fmt.Errorf("format %d can't be used: %w", st.Format+1, heldBackBy(strings.Join(names, ", ")))
}

func heldBackBy(names string) error {
	return admin.Errorf(admin.CodeFailed, "the version on %s does not know it: %v, or evict a node that is gone for good",
		names, format.ErrPeer)
}
