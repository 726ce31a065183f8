package meta

// The part of the check that is about contents.

// buckets are the counts of published contents for the indexes that are being looked at.
type buckets struct {
	number uint64
	counts map[PolicyID]bucketRecord
	seen   int // rows that there should be
	rows   int // rows that are there
}

// holdsContent checks the current version of a file.
func (c *checker) holdsContent(s snap, at Fault, i *Inode) error {
	if i.Kind != KindFile {
		return nil
	}
	if i.Content.IsZero() {
		if i.Size != 0 {
			c.fault(at, "it has %d bytes and no content", i.Size)
		}
		return nil
	}
	at.Content = i.Content
	var rec contentRecord
	has, err := c.has(s, keyContent(tableContent, i.Content), &rec)
	switch {
	case err != nil:
		return err
	case !has:
		c.fault(at, "its content %s is not there", i.Content)
	case rec.Ino != i.Ino || rec.State != ContentCurrent:
		c.fault(at, "its content %s belongs to inode %d, or is not current", i.Content, rec.Ino)
	case rec.Size != i.Size || rec.Version != i.Version:
		c.fault(at, "it is version %d of %d bytes, and its content version %d of %d bytes", i.Version, i.Size, rec.Version,
			rec.Size)
	}
	return nil
}

// content checks a content against its file and the lists that it is on.
func (c *checker) content(s snap, key, value []byte) error {
	c.Contents++
	at := Fault{Content: tailContent(key)}
	var rec contentRecord
	if !c.decoded(at, key, value, &rec) {
		return nil
	}
	if at.Ino = rec.Ino; rec.ID != at.Content {
		c.fault(at, "its record is that of content %s", rec.ID)
		return nil
	}
	c.Bytes += uint64(rec.Size)
	if err := c.hasPolicy(s, at, rec.Policy, "the policy %d of its content is not there"); err != nil {
		return err
	}
	if rec.Published > s.head.Index || rec.Size <= 0 || rec.Holes > rec.Size {
		c.fault(at, "its content of %d bytes was published at log index %d, later than now, or has no bytes", rec.Size,
			rec.Published)
	}
	for _, look := range []func(snap, Fault, *contentRecord) error{c.stateOf, c.placeOf, c.owedOf} {
		if err := look(s, at, &rec); err != nil {
			return err
		}
	}
	return nil
}

// stateOf checks why a content is live.
func (c *checker) stateOf(s snap, at Fault, rec *contentRecord) error {
	var i Inode
	has, err := c.has(s, inodeKey(rec.Ino), &i)
	if err != nil {
		return err
	}
	listed, err := s.view.get(versionKey(rec.Ino, rec.ID))
	if err != nil {
		return err
	}
	switch rec.State {
	case ContentCurrent:
		if !has || i.Content != rec.ID || listed != nil {
			c.fault(at, "its content %s is current, and no file has it, or it is listed as an older one too", rec.ID)
		}
		return nil
	case ContentRetained:
		if !has {
			c.fault(at, "a version of it is kept, and the file is not there")
		}
	case ContentRemoved:
		if !c.removedContents[rec.ID] {
			c.fault(at, "its content %s is kept for a removed file that is not there", rec.ID)
		}
	case ContentConflict, ContentOrphan:
	default:
		c.fault(at, "its content %s is in no known state: %d", rec.ID, rec.State)
	}
	if len(listed) != 1 || listed[0] != byte(rec.State) {
		c.fault(at, "its content %s is no current version, and not listed among the others", rec.ID)
	}
	if rec.Expires == 0 {
		return nil
	}
	due, err := s.view.get(keptKey(rec.Expires, rec.ID))
	if err == nil && due == nil {
		c.fault(at, "its content %s would never expire", rec.ID)
	}
	return err
}

// placeOf checks where the bytes of a content are found.
func (c *checker) placeOf(s snap, at Fault, rec *contentRecord) error {
	key := key64(tableIndex, rec.Published)
	if rec.Inline {
		key = keyContent(tableInline, rec.ID)
	}
	raw, err := s.view.get(key)
	switch {
	case err != nil:
		return err
	case rec.Inline && int64(len(raw)) != rec.Size+1:
		c.fault(at, "its content %s has not %d bytes in the state", rec.ID, rec.Size)
	case !rec.Inline && (len(raw) != 16 || ContentIDFromBytes([16]byte(raw)) != rec.ID):
		c.fault(at, "its content %s is not listed at log index %d", rec.ID, rec.Published)
	}
	return nil
}

// owedOf checks that nodes are owed what a content says.
func (c *checker) owedOf(s snap, at Fault, rec *contentRecord) error {
	for _, n := range rec.Owed {
		var row owedRecord
		has, err := c.has(s, owedKey(n, rec.Published), &row)
		if err != nil {
			return err
		}
		if !has || row.Content != rec.ID || row.Size != rec.Size {
			c.fault(at, "its content %s is owed to node %d, and there is no record of that", rec.ID, n)
		}
	}
	return nil
}

// owed checks a record of what is owed.
func (c *checker) owed(s snap, key, value []byte) error {
	var row owedRecord
	if !c.decoded(Fault{}, key, value, &row) {
		return nil
	}
	node, published := NodeID(keyNumber(key[:9], 1)>>32), keyNumber(key, 5)
	at := Fault{Content: row.Content}
	var rec contentRecord
	has, err := c.has(s, keyContent(tableContent, row.Content), &rec)
	if err == nil && (!has || rec.Published != published || !contains(rec.Owed, node) || s.cl.node(node) == nil) {
		at.Ino = rec.Ino
		c.fault(at, "a record says that content %s is owed to node %d, and the content does not", row.Content, node)
	}
	return err
}

// inline checks that bytes in the state belong to a content.
func (c *checker) inline(s snap, key, _ []byte) error {
	id := tailContent(key)
	var rec contentRecord
	has, err := c.has(s, keyContent(tableContent, id), &rec)
	if err == nil && (!has || !rec.Inline) {
		c.fault(Fault{Content: id, Ino: rec.Ino}, "the state has bytes of content %s, which does not need them", id)
	}
	return err
}

// published checks the list of contents by log index, and counts them.
func (c *checker) published(s snap, key, value []byte) error {
	index := keyNumber(key, 1)
	if bucket := index >> bucketBits; bucket != c.bucket.number {
		if err := c.endBucket(s); err != nil {
			return err
		}
		c.bucket.number = bucket
	}
	if len(value) != 16 {
		c.fault(Fault{}, "the record under key %x can't be read", key)
		return nil
	}
	id := ContentIDFromBytes([16]byte(value))
	var rec contentRecord
	has, err := c.has(s, keyContent(tableContent, id), &rec)
	if err != nil || !has || rec.Published != index || rec.Inline {
		c.faultUnless(err, Fault{Content: id, Ino: rec.Ino}, "content %s is listed at log index %d and is not of it", id,
			index)
		return err
	}
	if c.bucket.counts == nil {
		c.bucket.counts = map[PolicyID]bucketRecord{}
	}
	b := c.bucket.counts[rec.Policy]
	c.bucket.counts[rec.Policy] = bucketRecord{b.Contents + 1, b.Bytes + uint64(rec.Size)}
	return nil
}

// endBucket checks the counts for the indexes that were looked at.
func (c *checker) endBucket(s snap) error {
	for policy, want := range c.bucket.counts {
		c.bucket.seen++
		var have bucketRecord
		if _, err := c.has(s, bucketKey(policy, c.bucket.number), &have); err != nil {
			return err
		}
		if have != want {
			c.fault(Fault{}, "from log index %d on, %d contents of policy %d are counted, and there are %d",
				c.bucket.number<<bucketBits, have.Contents, policy, want.Contents)
		}
	}
	clear(c.bucket.counts)
	return nil
}

// counted counts the counts: those that should be there were compared.
func (c *checker) counted(snap, []byte, []byte) error {
	c.bucket.rows++
	return nil
}

// version checks the list of versions that are not current.
func (c *checker) version(s snap, key, value []byte) error {
	ino, id := Ino(keyNumber(key, 1)), tailContent(key)
	var rec contentRecord
	has, err := c.has(s, keyContent(tableContent, id), &rec)
	if err == nil && (!has || rec.Ino != ino || len(value) != 1 || value[0] != byte(rec.State)) {
		c.fault(Fault{Ino: ino, Content: id}, "content %s is listed as a version of it and is not", id)
	}
	return err
}

// kept checks the list of what is kept until a time.
func (c *checker) kept(s snap, key, _ []byte) error {
	expires, id := int64(keyNumber(key, 1)), tailContent(key)
	if ofRemoved(id) {
		var f removedRecord
		has, err := c.has(s, removedKey(id.Seq), &f)
		if err == nil && (!has || f.Expires != expires) {
			c.fault(Fault{}, "what was removed at log index %d is to expire, and is not kept until then", id.Seq)
		}
		return err
	}
	var rec contentRecord
	has, err := c.has(s, keyContent(tableContent, id), &rec)
	if err == nil && (!has || rec.Expires != expires) {
		c.fault(Fault{Content: id, Ino: rec.Ino}, "content %s is to expire, and is not kept until then", id)
	}
	return err
}
