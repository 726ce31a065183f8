package meta

import "fmt"

// AuditRow is a command that changed the cluster, or tried to.
type AuditRow struct {
	Index      uint64 // of the log; it names the row
	Time       int64
	Node       NodeID // on which it was typed
	UID, Login uint32 // whose it is, and who had logged in; NoLogin if not known
	Command    string
	Ended      bool // false: it still runs, or its node ended before it did
	Outcome    string
}

// AuditTrail answers which commands have changed the cluster.
type AuditTrail struct{ DB *DB }

// Rows lists them, oldest first, at most AuditKept.
func (a AuditTrail) Rows() ([]AuditRow, error) {
	var out []AuditRow
	err := a.DB.read(func(s snap) error {
		out = nil
		return s.each(auditCountKey, auditKey(0), func(key, value []byte) (bool, error) {
			var r auditRecord
			if err := decodeRecord(value, &r); err != nil {
				return false, fmt.Errorf("meta: record %x: %w", key, err)
			}
			r.Index = keyNumber(key, 1)
			out = append(out, r.AuditRow)
			return true, nil
		})
	})
	return out, err
}
