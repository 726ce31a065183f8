package node

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
)

// A command is in the trail before it changes anything, also one that fails; a look is not.
func TestCommandsAreNoted(t *testing.T) {
	db := meta.OpenMemory()
	c := metatest.Over(t, db, 2)
	m, err := newMembers(db, identity{Node: 1}, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	trail := &auditor{db: db, members: m, log: slog.New(slog.NewTextHandler(&log, nil)),
		propose: func(_ context.Context, op meta.Op) (meta.Result, error) { return c.Propose(2, op), nil }}
	last := func() (row admin.AuditRow) {
		rows, err := trail.list(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(rows) > 0 {
			row = rows[len(rows)-1]
		}
		return row
	}
	var during admin.AuditRow
	drain := audited(trail, func(req admin.DrainRequest) bool { return !req.Look },
		func(_ context.Context, req admin.DrainRequest) (admin.DrainState, error) {
			if during = last(); req.Node == 9 {
				return admin.DrainState{}, errors.New("there is no node 9")
			}
			return admin.DrainState{Node: req.Node}, nil
		})
	if _, err := drain(t.Context(), admin.DrainRequest{Node: 2, Look: true}); err != nil ||
		last() != (admin.AuditRow{}) {
		t.Errorf("a look: %v, %+v", err, last())
	}
	if st, err := drain(t.Context(), admin.DrainRequest{Node: 2}); err != nil || st.Node != 2 {
		t.Errorf("%+v, %v", st, err)
	}
	if during.Ended || during.Index == 0 || during.Node != 2 || during.NodeName != "node2" || during.UID != nil {
		t.Errorf("while it ran: %+v", during)
	}
	if row := last(); !row.Ended || row.Error != "" || row.Index != during.Index || row.Time.IsZero() {
		t.Errorf("when it had ended: %+v", row)
	}
	if _, err := drain(t.Context(), admin.DrainRequest{Node: 9}); err == nil || last().Error != err.Error() {
		t.Errorf("%v, %+v", err, last())
	}

	before := last()
	for _, no := range []func(context.Context, meta.Op) (meta.Result, error){
		func(context.Context, meta.Op) (meta.Result, error) { return meta.Result{}, errors.New("no quorum") },
		func(context.Context, meta.Op) (meta.Result, error) { return meta.Result{Errno: syscall.ESTALE}, nil },
	} {
		log.Reset()
		trail.propose = no
		if st, err := drain(t.Context(), admin.DrainRequest{Node: 2}); err != nil || st.Node != 2 ||
			!strings.Contains(log.String(), "not in the audit trail") {
			t.Errorf("a command that can't be noted: %+v, %v, %s", st, err, log.String())
		}
	}
	if last() != before {
		t.Errorf("%+v, want %+v", last(), before)
	}
}
