package node

import (
	"context"
	"log/slog"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
)

// auditEndTime bounds how long the end of a command waits for the log. Its row says that it has not ended otherwise.
const auditEndTime = 5 * time.Second

// auditor notes the commands of this node that change the cluster, before they change anything, and how they ended.
type auditor struct {
	db      *meta.DB
	members *members
	log     *slog.Logger
	// propose brings an operation into the log: proposer.request.
	propose func(context.Context, meta.Op) (meta.Result, error)
}

// begin notes who asks for what. The function that it returns notes how that ended. A command is not refused because it
// can't be noted: on a node that the cluster has not let in, an eviction may be the way out.
func (a *auditor) begin(ctx context.Context) (end func(error)) {
	who := admin.CallerOf(ctx)
	op := &meta.Audit{UID: who.UID, Login: who.Login, Command: meta.AuditText(who.Command)}
	res, err := a.propose(ctx, op)
	if err == nil && res.Errno != 0 {
		err = res.Errno
	}
	if err != nil {
		a.log.Warn("a command is not in the audit trail", "command", op.Command, "uid", who.UID, "err", err)
		return func(error) {}
	}
	return func(outcome error) {
		end := &meta.Audit{Of: res.Index}
		if outcome != nil {
			end.Outcome = meta.AuditText(outcome.Error())
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), auditEndTime)
		defer cancel()
		if _, err := a.propose(ctx, end); err != nil {
			a.log.Warn("the audit trail lacks how a command ended", "command", op.Command, "err", err)
		}
	}
}

// audited is a handler whose requests are noted if they change something.
func audited[Req, Res any](
	a *auditor, changes func(Req) bool, do func(context.Context, Req) (Res, error),
) func(context.Context, Req) (Res, error) {
	return func(ctx context.Context, req Req) (Res, error) {
		if !changes(req) {
			return do(ctx, req)
		}
		end := a.begin(ctx)
		res, err := do(ctx, req)
		end(err)
		return res, err
	}
}

// always is for requests that always change something.
func always[Req any](Req) bool { return true }

// list is the audit trail.
func (a *auditor) list(context.Context) ([]admin.AuditRow, error) {
	rows, err := meta.AuditTrail{DB: a.db}.Rows()
	if err != nil {
		return nil, err
	}
	out := make([]admin.AuditRow, 0, len(rows))
	for _, r := range rows {
		out = append(out, admin.AuditRow{Index: r.Index, Time: time.Unix(0, r.Time), Node: uint32(r.Node),
			NodeName: a.members.name(r.Node), UID: knownUser(r.UID), Login: knownUser(r.Login), Command: r.Command,
			Ended: r.Ended, Error: r.Outcome})
	}
	return out, nil
}

// knownUser is nil for a user who is not known.
func knownUser(id uint32) *uint32 {
	if id == meta.NoLogin {
		return nil
	}
	return &id
}
