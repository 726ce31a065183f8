package replicate

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
)

// heldFile finds a file of a content in a node's store.
func heldFile(t *testing.T, n *testNode, id meta.ContentID, suffix string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(n.dir, "held", "*", id.String()+suffix))
	if err != nil || len(found) != 1 {
		t.Fatalf("%v%s: %v, %v", id, suffix, found, err)
	}
	return found[0]
}

// believed reports whether the log believes that a node holds a content.
func believed(t *testing.T, n *testNode, id meta.ContentID) bool {
	t.Helper()
	holds, err := n.db.Holds(n.id, id)
	if err != nil {
		t.Fatal(err)
	}
	return holds
}

// lossy is a cluster with files of several sizes on all nodes.
func lossy(t *testing.T, nodes int) (*cluster, []meta.ContentID, map[meta.ContentID][]byte) {
	c := newCluster(t, nodes, 1)
	files := map[meta.ContentID][]byte{}
	var ids []meta.ContentID
	for _, size := range []int{9_000, 200_000, 300_000, 400_000, 3 << 20} {
		for id, b := range c.writeFiles(1, size) {
			files[id], ids = b, append(ids, id)
		}
	}
	for _, n := range c.all() {
		for _, id := range ids {
			c.eventually("committed", func() bool { return n.heldHere(id) })
		}
	}
	return c, ids, files
}

// A node that starts without some of what the log holds to be there, or with files that are hollow, says so: it is
// owed that, as lost, and stays so over another start until it has it. Then it is brought.
func TestStartComparesStoreAndLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, ids, files := lossy(t, 3)
		n := c.node(2)
		gone, small, noData, cut, large := ids[1], ids[0], ids[2], ids[3], ids[4]
		c.setLeaderless()
		n.stop()
		for _, suffix := range []string{".meta", ".data"} {
			if err := os.Remove(heldFile(t, n, gone, suffix)); err != nil {
				t.Fatal(err)
			}
		}
		for path, size := range map[string]int64{heldFile(t, n, small, ".meta"): 0, heldFile(t, n, cut, ".data"): 4096} {
			if err := os.Truncate(path, size); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Remove(heldFile(t, n, noData, ".data")); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			n.start()
			n.replicator().Settle(t.Context())
			n.replicator().member.reconciler.reconcileOnce(t.Context())
			if !believed(t, n, large) {
				t.Error("what is there whole is not believed to be there")
			}
			owed, err := n.db.OwedTo(2, 0, 10)
			if err != nil || len(owed) != 4 {
				t.Fatalf("owed %v, %v", owed, err)
			}
			for _, o := range owed {
				if o.Reason != meta.OwedLost || believed(t, n, o.Content) {
					t.Errorf("%v: %v, believed to be held: %v", o.Content, o.Reason, believed(t, n, o.Content))
				}
			}
			n.stop()
		}
		n.start()
		c.setLeader()
		c.settled()
		for id, b := range files {
			if !n.heldHere(id) || !believed(t, n, id) {
				t.Errorf("%v: is here: %v, believed: %v", id, n.heldHere(id), believed(t, n, id))
			}
			n.wantBytes(id, b)
		}
	})
}

// All nodes start again, one of them with an empty store.
func TestEmptyStoreAfterAllWereRestarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, ids, files := lossy(t, 3)
		for _, n := range c.all() {
			n.stop()
		}
		n := c.node(3)
		if err := os.RemoveAll(filepath.Join(n.dir, "held")); err != nil {
			t.Fatal(err)
		}
		c.setLeaderless()
		for _, n := range c.all() {
			n.start()
			n.replicator().Settle(t.Context())
		}
		for _, id := range ids {
			holders, err := c.node(1).db.Holders(id)
			if err != nil || !slices.Equal(holders, []meta.NodeID{1, 2}) {
				t.Errorf("%v: holders %v, %v", id, holders, err)
			}
		}
		c.setLeader()
		c.settled()
		for id, b := range files {
			if !n.heldHere(id) {
				t.Errorf("%v is not on node 3", id)
			}
			n.wantBytes(id, b)
		}
	})
}

// The state is replaced by one that holds more to be here: that is compared too.
func TestReplacedStateIsCompared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, ids, _ := lossy(t, 3)
		n := c.node(2)
		n.replicator().Settle(t.Context())
		c.setLeaderless()
		if err := n.store.Delete(storeID(ids[0])); err != nil {
			t.Fatal(err)
		}
		n.replicator().Settle(t.Context())
		if !believed(t, n, ids[0]) {
			t.Fatal("compared without a reason")
		}
		n.replicator().Restored()
		n.replicator().Settle(t.Context())
		if believed(t, n, ids[0]) {
			t.Error("what lacks after the state was replaced is believed to be here")
		}
	})
}

// A report of a loss that waited too long does not take away what has come back meanwhile.
func TestReportOfALossIsDroppedWhenItCameBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, ids, _ := lossy(t, 3)
		n := c.node(2)
		m := n.replicator().member
		m.lost.mu.Lock()
		for _, id := range ids { // as if proposing them had taken long
			m.lost.set[id] = struct{}{}
		}
		m.lost.mu.Unlock()
		if err := n.store.Delete(storeID(ids[0])); err != nil {
			t.Fatal(err)
		}
		if got := m.lost.next(); !slices.Equal(got, ids[:1]) {
			t.Errorf("reported as lost: %v, want %v", got, ids[:1])
		}
	})
}

// What the last holder lost is listed as such, and the log keeps it.
func TestLostByTheLastHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, ids, _ := lossy(t, 2)
		c.setLeaderless()
		for _, n := range c.all() {
			n.stop()
			if err := os.Remove(heldFile(t, n, ids[1], ".data")); err != nil {
				t.Fatal(err)
			}
		}
		for _, n := range c.all() {
			n.start()
			n.replicator().Settle(t.Context())
		}
		list, err := meta.Losses{DB: c.node(1).db}.Nowhere(10)
		if err != nil || len(list) != 1 || list[0].ID != ids[1] {
			t.Errorf("on no node: %v, %v", list, err)
		}
		if _, err := c.node(1).db.Content(ids[1]); err != nil {
			t.Errorf("the log has forgotten it: %v", err)
		}
	})
}

// BenchmarkBelieved reads the 10,000 contents that the log believes to be here.
func BenchmarkBelieved(b *testing.B) {
	const contents = 10_000
	db := owedState(b, contents)
	for b.Loop() {
		got := 0
		for after := (meta.ContentID{}); ; {
			page, next, err := db.Believed(1, after, comparePage)
			if err != nil {
				b.Fatal(err)
			}
			got += len(page)
			if after = next; next.IsZero() {
				break
			}
		}
		if got != contents {
			b.Fatal(got)
		}
	}
}

// manyNames believes this node to hold made-up contents; manyStore has all of them except one in a thousand.
type manyNames struct {
	meta.Reader
	contents uint64
}

func (n manyNames) Node(id meta.NodeID) (meta.Node, error) {
	return meta.Node{ID: id, State: meta.NodeUp, Incarnation: 1}, nil
}

func (n manyNames) Believed(
	_ meta.NodeID, after meta.ContentID, limit int,
) (list []meta.Content, next meta.ContentID, err error) {
	for seq := after.Seq + 1; seq <= n.contents && len(list) < limit; seq++ {
		list = append(list, meta.Content{ID: meta.ContentID{Node: 1, Incarnation: 1, Seq: seq}, Size: 100_000})
	}
	if last := list[len(list)-1].ID; last.Seq < n.contents {
		next = last
	}
	return list, next, nil
}

type manyStore struct {
	Store
	contents uint64
	wait     func()
}

func (s *manyStore) List(content.State) (list []content.ID) {
	for seq := s.contents; seq > 0; seq-- {
		list = append(list, storeID(meta.ContentID{Node: 1, Incarnation: 1, Seq: seq}))
	}
	return list
}

func (s *manyStore) Whole(id content.ID, _ int64) bool {
	s.wait()
	return metaID(id).Seq%1000 != 0
}

func compareMany(contents uint64, wait func()) *Member {
	m := newMember(Config{Names: manyNames{contents: contents}, Store: &manyStore{contents: contents, wait: wait},
		Logger: slog.New(slog.DiscardHandler),
		Self:   func() meta.Lease { return meta.Lease{Node: 1, Incarnation: 1} }}, nil)
	m.reconciler.compare(context.Background())
	return m
}

// The look at the store at a start has many files under way at once, and finds what lacks among many pages.
func TestStartLooksAtManyContentsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		const contents = 20_000
		m := compareMany(contents, func() { <-time.After(time.Millisecond) }) // as long as a disk takes
		if lost := len(m.lost.set); lost != contents/1000 || m.reconciler.compared.done == 0 {
			t.Fatalf("%d lost", lost)
		}
		if took := time.Since(began); took > contents*time.Millisecond/10 {
			t.Errorf("took %v", took)
		}
		m.stop()
	})
}

// BenchmarkCompare measures the comparison of a million contents, without the disk.
func BenchmarkCompare(b *testing.B) {
	for b.Loop() {
		compareMany(1_000_000, func() {})
	}
}

var compareContents = flag.Int("compare.contents", 20_000, "contents of BenchmarkStart")

// BenchmarkStart is the comparison of store and log at a start, with the state in badger and two files for each
// content. With TMPDIR on tmpfs it shows what the processor needs. The opening of the store, which reads the names of
// all files, is counted apart.
func BenchmarkStart(b *testing.B) {
	db, dir := owedState(b, *compareContents), b.TempDir()
	var page []meta.Content
	for after := (meta.ContentID{}); ; {
		list, next, err := db.Believed(1, after, comparePage)
		if err != nil {
			b.Fatal(err)
		}
		page = append(page, list...)
		if after = next; next.IsZero() {
			break
		}
	}
	for _, c := range page { // names and lengths are all that is looked at
		id := storeID(c.ID)
		path := filepath.Join(dir, "held", fmt.Sprintf("%02x", content.Checksum(id[:len(id)-1])%256), id.String())
		err := os.MkdirAll(filepath.Dir(path), 0o700)
		for suffix, bytes := range map[string]int64{".meta": 1000, ".data": c.Size} {
			err = errors.Join(err, os.WriteFile(path+suffix, nil, 0o600), os.Truncate(path+suffix, bytes))
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	var opened, compared time.Duration
	for b.Loop() {
		began := time.Now()
		store, err := content.Open(dir, content.Options{})
		if err != nil {
			b.Fatal(err)
		}
		opened += time.Since(began)
		began = time.Now()
		m := newMember(Config{Names: db, Store: store, Logger: slog.New(slog.DiscardHandler),
			Self: func() meta.Lease { return meta.Lease{Node: 1, Incarnation: 1} }}, nil)
		m.reconciler.compare(b.Context())
		compared += time.Since(began)
		if m.reconciler.compared.done == 0 || len(m.lost.set) != 0 || len(page) != *compareContents {
			b.Fatalf("of %d contents %d are missing", len(page), len(m.lost.set))
		}
		m.stop()
		if err := store.Close(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(opened.Seconds()/float64(b.N), "s-to-open")
	b.ReportMetric(compared.Seconds()/float64(b.N), "s-to-compare")
}
