package meta

import (
	"strings"
	"syscall"
	"unicode/utf8"
)

// The audit trail says who changed what in the cluster by a command: rows of tableAudit, by the log index of the entry
// that made them. The key without an index has how many there are.

// Bounds of the audit trail.
const (
	// AuditKept is how many rows are kept; the oldest go first.
	AuditKept = 1 << 12
	// AuditTextMax bounds the command and the outcome of a row, in bytes each.
	AuditTextMax = 512
)

// NoLogin stands for a user who is not known, as in /proc/PID/loginuid.
const NoLogin = ^uint32(0)

// auditRecord is what is stored of a row; the index is in its key.
type auditRecord struct{ AuditRow }

func (r *auditRecord) code(c *fields) {
	c.I64(&r.Time)
	c.node(&r.Node)
	c.V32(&r.UID)
	c.V32(&r.Login)
	c.str(&r.Command)
	c.Flag(&r.Ended)
	c.str(&r.Outcome)
}

// auditCount is the record of how many rows there are.
type auditCount struct{ Rows uint64 }

func (r *auditCount) code(c *fields) { c.V64(&r.Rows) }

var auditCountKey = []byte{tableAudit}

func auditKey(index uint64) []byte { return key64(tableAudit, index) }

// auditTrail is the part of apply that keeps the audit trail.
type auditTrail struct{ *tx }

// note makes a row, or says how the command of an earlier row of this node has ended. ENOENT: that row is gone.
func (a auditTrail) note(o *Audit) (Result, syscall.Errno) {
	if len(o.Command) > AuditTextMax || len(o.Outcome) > AuditTextMax ||
		!utf8.ValidString(o.Command) || !utf8.ValidString(o.Outcome) {
		return Result{}, syscall.EINVAL
	}
	if o.Of == 0 {
		a.add(auditRecord{AuditRow{Time: a.now, Node: a.entry.Node, UID: o.UID, Login: o.Login, Command: o.Command}})
		return Result{}, ok
	}
	var r auditRecord
	if !a.load(auditKey(o.Of), &r) || r.Node != a.entry.Node || r.Ended {
		return Result{}, syscall.ENOENT
	}
	r.Ended, r.Outcome = true, o.Outcome
	a.save(auditKey(o.Of), &r)
	return Result{}, ok
}

// add makes the row of this entry, and drops the oldest if there are too many.
func (a auditTrail) add(r auditRecord) {
	var count auditCount
	a.load(auditCountKey, &count)
	if count.Rows < AuditKept {
		count.Rows++
		a.save(auditCountKey, &count)
	} else {
		a.scanFrom(auditCountKey, auditKey(0), func(key, _ []byte) bool {
			a.del(key)
			return false
		})
	}
	a.save(auditKey(a.head.Index), &r)
}

// AuditText makes a text fit for the audit trail: UTF-8, of at most AuditTextMax bytes.
func AuditText(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= AuditTextMax {
		return s
	}
	const more = "..."
	return strings.ToValidUTF8(s[:AuditTextMax-len(more)], "") + more
}
