package meta

import (
	"bytes"
	"context"
	"errors"
	"fmt"
)

// Fault is a record that does not fit the others. Apply makes none: it comes from a bug, or from bytes that somebody
// has changed.
type Fault struct {
	Ino     Ino       // what it is about; 0: no inode
	Name    string    // in the directory Ino; "": Ino itself
	Content ContentID // what it is about; zero: no content
	Text    string
}

// Checked is what a check has looked at.
type Checked struct {
	Index    uint64 // of the log: the state at it was checked
	Records  uint64
	Inodes   uint64
	Contents uint64
	Bytes    uint64 // of the contents
}

// Checks looks whether the records of a state fit together: names and inodes in both directions, link counts, sizes
// against contents, all indexes, and the sums in the head. It changes nothing.
type Checks struct{ DB *DB }

// checkPage is how many records are read before others may replace the state.
const checkPage = 256

// Run checks one version while apply goes on. found hears of each fault, and tell how many records were looked at; an
// error of found ends the check. The memory that it takes does not grow with the state.
func (k Checks) Run(ctx context.Context, found func(Fault) error, tell func(records uint64)) (Checked, error) {
	k.DB.life.RLock()
	p, err := pinned(k.DB)
	k.DB.life.RUnlock()
	if err != nil {
		return Checked{}, fmt.Errorf("meta: check: %w", err)
	}
	defer p.Close()
	c := &checker{pin: p, removedInos: map[Ino]uint32{}, removedContents: map[ContentID]bool{}, rooted: map[Ino]bool{}}
	c.Index = p.index()
	if err := c.run(ctx, found, tell); err != nil {
		return c.Checked, fmt.Errorf("meta: check: %w", err)
	}
	return c.Checked, nil
}

// checker is a check under way. It walks over all pairs in key order and looks up what each refers to.
type checker struct {
	Checked
	pin    *pin
	faults []Fault // that nobody has heard of yet

	sum sum128 // of the pairs so far

	removedInos       map[Ino]uint32     // xattrs of removed files that are kept: RemovedMax at most
	removedContents   map[ContentID]bool // their contents
	rooted            map[Ino]bool       // directories that are known to lead to the root: rootedMax at most
	audits, auditRows uint64             // commands in the audit trail as it counts them, and as there are
	listing           listing
	bucket            buckets
}

// rootedMax bounds what the check remembers of directories.
const rootedMax = 1 << 16

func (c *checker) fault(f Fault, format string, args ...any) {
	f.Text = fmt.Sprintf(format, args...)
	c.faults = append(c.faults, f)
}

func (c *checker) run(ctx context.Context, found func(Fault) error, tell func(uint64)) error {
	kept := []byte{tableRemoved}
	if err := c.walk(ctx, kept, c.removed, found, func(uint64) {}); err != nil {
		return err
	}
	c.Records, c.sum = 0, sum128{}
	if err := c.walk(ctx, nil, c.pair, found, tell); err != nil {
		return err
	}
	if err := c.pin.read(c.end); err != nil {
		return err
	}
	return c.flush(found)
}

// walk calls look with the pairs under a prefix, some at a time.
func (c *checker) walk(
	ctx context.Context, prefix []byte, look func(s snap, key, value []byte) error, found func(Fault) error,
	tell func(uint64),
) error {
	for from := prefix; ; {
		var last []byte
		err := c.pin.read(func(s snap) error {
			left := checkPage
			return s.each(prefix, from, func(key, value []byte) (bool, error) {
				c.Records++
				left--
				last = bytes.Clone(key)
				return left > 0, look(s, last, value)
			})
		})
		if err := errors.Join(err, c.flush(found), ctx.Err()); err != nil || last == nil {
			return err
		}
		tell(c.Records)
		from = append(last, 0)
	}
}

// flush hands on what was found.
func (c *checker) flush(found func(Fault) error) error {
	for _, f := range c.faults {
		if err := found(f); err != nil {
			return err
		}
	}
	c.faults = c.faults[:0]
	return nil
}

// removed notes a removed file that is kept.
func (c *checker) removed(_ snap, key, value []byte) error {
	var f removedRecord
	if decodeRecord(value, &f) == nil && len(key) == 9 {
		c.removedInos[f.Inode.Ino] = f.Inode.Xattrs
		c.removedContents[f.Inode.Content] = true
	}
	return nil
}

// check is how the records of a table are checked: the bytes of a key at least, and what is done with each.
type check struct {
	key  int
	look func(c *checker, s snap, key, value []byte) error
}

// checkOf has the check of each table. The records of some are checked by those that refer to them, or by nothing.
var checkOf = map[byte]check{
	tableInode: {9, (*checker).inode}, tableDirent: {10, (*checker).dirent}, tableName: {18, (*checker).name},
	tableXattr: {10, (*checker).xattr}, tableContent: {17, (*checker).content}, tableInline: {17, (*checker).inline},
	tableIndex: {9, (*checker).published}, tableBucket: {13, (*checker).counted}, tableVersion: {25, (*checker).version},
	tableKept: {25, (*checker).kept}, tableRemoved: {9, (*checker).removedFile}, tableOwed: {13, (*checker).owed},
	tableReserved: {17, (*checker).reserved}, tableNames: {9, (*checker).delegated},
	tableNamesOf: {17, (*checker).delegatedTo},
	tableHead:    {}, tableFree: {}, tableNode: {}, tableFormer: {}, tableProgress: {}, tableResult: {}, tablePolicy: {},
	tableToken: {}, tableVoters: {}, tableLocks: {}, tableLocked: {}, tableWaits: {}, tableAudit: {1, (*checker).audited},
}

// pair checks one pair.
func (c *checker) pair(s snap, key, value []byte) error {
	if !bytes.Equal(key, headKey) {
		c.sum.add(hashPair(key, value))
	}
	if err := c.leaveTable(s, key); err != nil {
		return err
	}
	check, known := checkOf[key[0]]
	switch {
	case !known || len(key) < check.key:
		c.fault(Fault{}, "a record of no known table, or with too short a key: %x", key)
	case check.look != nil:
		return check.look(c, s, key, value)
	}
	return nil
}

// audited counts the commands of the audit trail, and reads how many it says there are.
func (c *checker) audited(_ snap, key, value []byte) error {
	if !bytes.Equal(key, auditCountKey) {
		c.auditRows++
		c.decoded(Fault{}, key, value, new(auditRecord))
		return nil
	}
	var count auditCount
	c.decoded(Fault{}, key, value, &count)
	c.audits = count.Rows
	return nil
}

// decoded reads a record; a fault is noted if it can't be read.
func (c *checker) decoded(f Fault, key, value []byte, r record) bool {
	err := decodeRecord(value, r)
	if err != nil {
		c.fault(f, "the record under key %x can't be read: %v", key, err)
	}
	return err == nil
}

// has loads what another record refers to. It reports false if that is not there, or can't be read: which is a fault of
// its own where it stands.
func (c *checker) has(s snap, key []byte, r record) (bool, error) {
	raw, err := s.view.get(key)
	if err != nil {
		return false, fmt.Errorf("read key %x: %w", key, err)
	}
	return raw != nil && decodeRecord(raw, r) == nil, nil
}

// leaveTable ends what runs over several records, when a key of another table has come.
func (c *checker) leaveTable(s snap, key []byte) error {
	if key[0] != tableDirent {
		if err := c.endListing(s); err != nil {
			return err
		}
	}
	if key[0] != tableIndex {
		return c.endBucket(s)
	}
	return nil
}

// end checks what is known only after all pairs.
func (c *checker) end(s snap) error {
	if err := errors.Join(c.endListing(s), c.endBucket(s)); err != nil {
		return err
	}
	h := s.head
	if h.Files != c.Inodes {
		c.fault(Fault{}, "the head counts %d inodes, and there are %d", h.Files, c.Inodes)
	}
	if h.Bytes != c.Bytes {
		c.fault(Fault{}, "the head counts %d bytes of contents, and there are %d", h.Bytes, c.Bytes)
	}
	if kept := uint64(len(c.removedInos)); h.Removed != kept {
		c.fault(Fault{}, "the head counts %d removed files that are kept, and there are %d", h.Removed, kept)
	}
	if c.audits != c.auditRows {
		c.fault(Fault{}, "the audit trail counts %d commands, and there are %d", c.audits, c.auditRows)
	}
	if c.bucket.rows != c.bucket.seen {
		c.fault(Fault{}, "%d counts of contents by policy, and there should be %d", c.bucket.rows, c.bucket.seen)
	}
	if h.Sum != c.sum {
		c.fault(Fault{}, "the records do not add up to their digest")
	}
	return nil
}
