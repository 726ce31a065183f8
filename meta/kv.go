package meta

// kvStore is the ordered, versioned store below apply: badger for real, a persistent tree in memory for the
// simulator. An index names a version of the whole store. One goroutine commits; any read.
type kvStore interface {
	// view opens the version at an index that is not below the oldest kept one.
	view(index uint64) kvView
	// commit makes all writes visible at index, at once, and durable with the next sync.
	commit(index uint64, writes []kvWrite) error
	// sync makes everything committed at or below index survive power loss, and remembers index as the
	// version that openings begin from.
	sync(index uint64) error
	// keepFrom lets versions below index go.
	keepFrom(index uint64)
	// beyond reports whether there are versions above index: a crash leaves versions that were not synced, and they
	// show through what is committed above them.
	beyond(index uint64) bool
	close() error
}

// kvView is one version of a store, read only.
type kvView interface {
	// get returns the value, or nil when there is none. The value is the caller's to read while the view is open.
	get(key []byte) ([]byte, error)
	// scan walks in order over the keys that begin with prefix, from `from` on.
	scan(prefix, from []byte) kvCursor
	close()
}

// kvCursor stands before its first pair until next is called. At the end next is false, also when called again. What it
// gave, and its end, is to be believed only when sure has returned nil after that.
type kvCursor interface {
	next() bool
	key() []byte // valid until next
	value() ([]byte, error)
	// sure checks what next has given so far, and that nothing is missing there.
	sure() error
	close()
}

// kvWrite sets a key, or deletes it when value is nil.
type kvWrite struct{ key, value []byte }
