package meta

import (
	"cmp"
	"sync"
	"time"
	_ "unsafe" // for go:linkname

	"github.com/dgraph-io/badger/v4"
)

// compactionRest is how long nothing is committed, with no table to compact, before the compactors end.
const compactionRest = 3 * time.Second

// compaction lets badger's compactors run only while there is something to do: each of them looks 20 times a second.
// They run from a commit on until nothing was committed for a while and no level has too much. A memtable that is
// flushed after that does not wait for them: level zero has room for all memtables then. The next commit starts them.
type compaction struct {
	db     *badger.DB
	rest   time.Duration
	commit chan struct{} // holds one if something was committed
	end    chan struct{}
	ended  sync.WaitGroup
}

// newCompaction takes over the compactors of a database that has just been opened: they run. A rest of 0 is
// compactionRest.
func newCompaction(db *badger.DB, rest time.Duration) *compaction {
	c := &compaction{db: db, rest: cmp.Or(rest, compactionRest), commit: make(chan struct{}, 1), end: make(chan struct{})}
	c.ended.Go(c.run)
	return c
}

// committed says that there may be something to compact soon. It does not wait.
func (c *compaction) committed() {
	if c == nil {
		return
	}
	select {
	case c.commit <- struct{}{}:
	default:
	}
}

// close leaves the compactors as they are: the database ends them.
func (c *compaction) close() {
	if c != nil {
		close(c.end)
		c.ended.Wait()
	}
}

func (c *compaction) run() {
	for c.restless() {
		stopCompactions(c.db)
		select {
		case <-c.end:
			return
		case <-c.commit:
		}
		startCompactions(c.db)
	}
}

// restless returns when the compactors have nothing to do, or false if the database is closed before.
func (c *compaction) restless() bool {
	look := time.NewTicker(c.rest)
	defer look.Stop()
	for {
		select {
		case <-c.end:
			return false
		case <-look.C:
		}
		select {
		case <-c.commit:
		default:
			if !due(c.db.Levels()) {
				return true
			}
		}
	}
}

// due reports whether a compactor would find something to do.
func due(levels []badger.LevelInfo) bool {
	for _, l := range levels {
		if l.Adjusted >= 1 || l.Level == 0 && l.Score >= 1 {
			return true
		}
	}
	return false
}

// What badger does by itself around DropPrefix and Flatten. Nothing else here uses those.

//go:linkname stopCompactions github.com/dgraph-io/badger/v4.(*DB).stopCompactions
func stopCompactions(db *badger.DB)

//go:linkname startCompactions github.com/dgraph-io/badger/v4.(*DB).startCompactions
func startCompactions(db *badger.DB)
