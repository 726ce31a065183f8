package node

import "time"

// overtakenTwice bounds the time between two incarnations that overtake a process: if both come within it, the process
// shares its name with one that lives.
const overtakenTwice = 10 * time.Second

// Overtaken judges incarnations that a process did not ask for. One may come from a call of the previous process, which
// was under way when that process was killed and reaches the log late. A second one soon after comes from a process
// that lives.
type Overtaken struct{ last time.Time }

// Cloned notes that the log has an incarnation which is not this process's, and reports whether another process runs
// as this node. If not, this one is to ask for an incarnation again.
func (o *Overtaken) Cloned(now time.Time) bool {
	twice := !o.last.IsZero() && now.Sub(o.last) < overtakenTwice
	o.last = now
	return twice
}
