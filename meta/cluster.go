package meta

// cluster is the part of the state that every publish consults, decoded: nodes and policies. A value that
// readers see is never changed; apply works on a copy.
type cluster struct {
	nodes    []*nodeRecord // by number; nil where none is
	policies map[PolicyID]*Policy
	fallback PolicyID // the cluster's default
}

func (c *cluster) clone() *cluster {
	out := &cluster{nodes: append([]*nodeRecord(nil), c.nodes...), policies: make(map[PolicyID]*Policy, len(c.policies)+1),
		fallback: c.fallback}
	for id, p := range c.policies {
		out.policies[id] = p
	}
	return out
}

func (c *cluster) node(id NodeID) *nodeRecord {
	if int(id) >= len(c.nodes) {
		return nil
	}
	return c.nodes[id]
}

func (c *cluster) setNode(n *nodeRecord) {
	for int(n.ID) >= len(c.nodes) {
		c.nodes = append(c.nodes, nil)
	}
	c.nodes[n.ID] = n
}

// policy resolves 0 to the default.
func (c *cluster) policy(id PolicyID) *Policy {
	if id == 0 {
		id = c.fallback
	}
	return c.policies[id]
}

// alive reports whether the lease is of an incarnation that is neither fenced nor succeeded.
func (c *cluster) alive(l Lease) bool {
	n := c.node(l.Node)
	return n != nil && n.State == NodeUp && n.Incarnation == l.Incarnation
}

// loadCluster decodes nodes and policies of a view.
func loadCluster(v kvView, fallback PolicyID) (*cluster, error) {
	c := &cluster{policies: map[PolicyID]*Policy{}, fallback: fallback}
	err := eachRecord(v, []byte{tableNode}, func() record { return new(nodeRecord) }, func(r record) {
		c.setNode(r.(*nodeRecord))
	})
	if err != nil {
		return nil, err
	}
	err = eachRecord(v, []byte{tablePolicy}, func() record { return new(Policy) }, func(r record) {
		p := r.(*Policy)
		c.policies[p.ID] = p
	})
	return c, err
}

func eachRecord(v kvView, prefix []byte, mk func() record, fn func(record)) error {
	cur := v.scan(prefix, prefix)
	defer cur.close()
	for cur.next() {
		raw, err := cur.value()
		if err != nil {
			return err
		}
		r := mk()
		if err := decodeRecord(raw, r); err != nil {
			return err
		}
		fn(r)
	}
	return cur.sure()
}
