package node

import (
	"slices"
	"sync"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
)

// nowhereMost is how many contents that no node has are looked for.
const nowhereMost = 1000

// lostLookShare is the part of the time that looks at all contents take at most: one is good for this many times as
// long as it took, and for as long as no node comes or goes.
const lostLookShare = 10

// lostLooks finds the contents that no node has any more. Those whose holders lost them are owed, and found at once.
// Those that went with an evicted node may be owed to nobody: once a node was evicted, all contents are looked at.
type lostLooks struct {
	mu   sync.Mutex
	view uint64
	list []meta.Content
	more bool // there were more than were listed
	next time.Time
}

// of lists contents that no node has any more, at most nowhereMost.
func (l *lostLooks) of(db *meta.DB) ([]meta.Content, error) {
	out, err := meta.Losses{DB: db}.Nowhere(nowhereMost)
	if err != nil {
		return nil, err
	}
	evicted, err := l.ofEvicted(db)
	if err != nil {
		return nil, err
	}
	for _, c := range evicted {
		if len(out) == nowhereMost {
			break
		}
		if !slices.ContainsFunc(out, func(x meta.Content) bool { return x.ID == c.ID }) {
			out = append(out, c)
		}
	}
	return out, nil
}

// ofEvicted lists what nobody holds, as of the last look and still now; nothing if no node was ever evicted.
func (l *lostLooks) ofEvicted(db *meta.DB) ([]meta.Content, error) {
	if !(meta.Losses{DB: db}).HasEvicted() {
		return nil, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	short := l.more && len(l.list) < nowhereMost // some were removed since
	if view, began := db.View(), time.Now(); (view != l.view || short) && !began.Before(l.next) {
		list, err := meta.Losses{DB: db}.HeldByNobody(nowhereMost)
		if err != nil {
			return nil, err
		}
		now := time.Now()
		l.view, l.list, l.more, l.next = view, list, len(list) == nowhereMost, now.Add(lostLookShare*now.Sub(began))
	}
	l.list = slices.DeleteFunc(l.list, func(c meta.Content) bool {
		now, err := db.Content(c.ID)
		if err != nil || now.State == meta.ContentRetired {
			return true
		}
		holders, err := db.Holders(c.ID)
		return err == nil && len(holders) > 0
	})
	return slices.Clone(l.list), nil
}
