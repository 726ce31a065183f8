package meta

// dependingPage is how many contents one look at what depends on a node covers under one snapshot.
const dependingPage = 4096

// Depending is what would be lost, or have too few copies, without a node.
type Depending struct {
	Contents int
	Bytes    int64
	// Stuck of them may be on no other node by their policy.
	Stuck int
	// List holds the first of them.
	List []Content
	// Checked and View say as of when: they go into EvictSpare. View is 0 when it changed while the contents were
	// looked through.
	Checked, View uint64
}

// DependOn finds the live contents that make a drained node needed still, listing at most limit: contents of which no
// other node that is up has a copy, or which a member that is up lacks. It looks at every content that is not inline.
func (db *DB) DependOn(node NodeID, limit int) (Depending, error) {
	return db.depending(node, 0, limit, (*cluster).needs)
}

// OnlyOn finds the live contents published after an index that no other node that is up is believed to hold, listing
// at most limit: what an eviction would lose.
func (db *DB) OnlyOn(node NodeID, after uint64, limit int) (Depending, error) {
	return db.depending(node, after, limit, (*cluster).onlyCopy)
}

// NowhereElse finds the live contents that no other node, up or not, is believed to hold, and that are here according
// to has, listing at most limit: what may be lost with the store of a node that was evicted.
func (db *DB) NowhereElse(node NodeID, limit int, has func(ContentID) bool) (Depending, error) {
	return db.depending(node, 0, limit, func(c *cluster, id NodeID, rec *contentRecord) bool {
		for _, n := range c.nodes {
			if n != nil && n.ID != id && c.believes(n, rec) {
				return false
			}
		}
		return has(rec.ID)
	})
}

// UnderPolicy counts the live contents that are placed by a policy. It looks at every content that is not inline.
func (db *DB) UnderPolicy(id PolicyID) (int, error) {
	d, err := db.depending(0, 0, 0, func(_ *cluster, _ NodeID, rec *contentRecord) bool { return rec.Policy == id })
	return d.Contents, err
}

// depending looks through the contents page by page: one snapshot of all would keep older versions in the store.
func (db *DB) depending(
	node NodeID, after uint64, limit int, depends func(*cluster, NodeID, *contentRecord) bool,
) (Depending, error) {
	h := db.cur.Load().head
	out := Depending{Checked: h.Index, View: h.View}
	for after < out.Checked {
		page, last, err := db.dependingPage(node, IndexRange{after, out.Checked}, depends)
		if err != nil {
			return out, err
		}
		for _, c := range page {
			out.Contents++
			out.Bytes += c.Size
			if c.stuck {
				out.Stuck++
			}
			if len(out.List) < limit {
				out.List = append(out.List, c.Content)
			}
		}
		after = last
	}
	if db.View() != out.View {
		out.View = 0
	}
	return out, nil
}

type dependent struct {
	Content
	stuck bool
}

// dependingPage looks at the first contents of a range and says up to where.
func (db *DB) dependingPage(
	node NodeID, r IndexRange, depends func(*cluster, NodeID, *contentRecord) bool,
) (out []dependent, last uint64, err error) {
	err = db.read(func(s snap) error {
		out, last = nil, r.Hi
		seen := 0
		return s.published(r, func(rec *contentRecord) bool {
			if depends(s.cl, node, rec) {
				out = append(out, dependent{rec.Content, !s.cl.elsewhere(node, rec)})
			}
			if seen++; seen == dependingPage {
				last = rec.Published
			}
			return seen < dependingPage
		})
	})
	return out, last, err
}

// onlyCopy reports whether a node is believed to hold a content, and no other one that is up.
func (c *cluster) onlyCopy(id NodeID, rec *contentRecord) bool {
	if !c.believes(c.node(id), rec) {
		return false
	}
	for _, n := range c.nodes {
		if n != nil && n.ID != id && n.State == NodeUp && c.believes(n, rec) {
			return false
		}
	}
	return true
}

// needs reports whether a content depends on a node that is draining: it is the only copy, or a member that is up still
// lacks it.
func (c *cluster) needs(id NodeID, rec *contentRecord) bool {
	if !c.believes(c.node(id), rec) {
		return false
	}
	p := c.policy(rec.Policy)
	for _, m := range c.members(p, rec.Ino) {
		if n := c.node(m); m != id && n.State == NodeUp && !c.believes(n, rec) {
			return true
		}
	}
	return c.onlyCopy(id, rec)
}

// elsewhere reports whether the policy of a content lets another node take it.
func (c *cluster) elsewhere(id NodeID, rec *contentRecord) bool {
	p := c.policy(rec.Policy)
	for _, n := range c.nodes {
		if p.eligible(n) && n.ID != id && !n.draining() {
			return true
		}
	}
	return false
}
