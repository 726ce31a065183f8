package meta_test

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/filelock"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
	"github.com/rdmcfs/rdmcfs/test/codertest"
)

// The entries of a log have the same effects on all nodes, whatever version they run, and on a later start: that is
// what their format means. testdata/log-1.txt has entries of format 1, each with its time, and a part of the digest of
// the state after it. A version that applies an entry in another way does so from the next format on, see
// docs/FORMAT.md#versions. Until the first release of a format, -coder.update writes the digests again; without the
// file, it makes another log.
func TestEntriesKeepTheirEffects(t *testing.T) {
	path := filepath.Join("testdata", "log-1.txt")
	if _, err := os.Stat(path); os.IsNotExist(err) && codertest.Updating() {
		recordLog(t, path)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	codes := map[string]bool{}
	db := meta.OpenMemory()
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	for i, line := range lines {
		var now int64
		var data []byte
		var sum string
		if _, err := fmt.Sscanf(line, "%d %x %s", &now, &data, &sum); err != nil {
			t.Fatalf("%s:%d: %v", path, i+1, err)
		}
		if e, err := meta.DecodeEntry(data); err != nil {
			t.Fatalf("%s:%d: entry %x: %v", path, i+1, data, err)
		} else {
			codes[fmt.Sprintf("%T", e.Op)] = true
		}
		if _, _, err := db.Apply(uint64(i+1), now, data); err != nil {
			t.Fatalf("%s:%d: %v", path, i+1, err)
		}
		_, digest := db.Digest()
		got := fmt.Sprintf("%x", digest[:4])
		fmt.Fprintf(&out, "%d %x %s\n", now, data, got)
		if got != sum && !codertest.Updating() {
			t.Fatalf("%s:%d: entry %x has other effects than before", path, i+1, data)
		}
	}
	if len(codes) < 31 {
		t.Errorf("%d kinds of operations are in the log: %v", len(codes), codes)
	}
	if codertest.Updating() {
		if err := os.WriteFile(path, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// recordLog makes a log with operations of all kinds.
func recordLog(t *testing.T, path string) {
	rec := newRecorder(meta.OpenMemory())
	c := metatest.Over(t, rec, 3)
	locksAndNames(c)
	members(c)
	churn(c, rand.New(rand.NewPCG(1, 52)), 300)
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := bufio.NewWriter(f)
	for _, e := range rec.entries {
		sum := rec.sums[e.index]
		fmt.Fprintf(w, "%d %x %x\n", e.now, e.data, sum[:4])
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
}

// locksAndNames has the operations of locks between nodes and of delegated names.
func locksAndNames(c *metatest.Cluster) {
	dir := c.Do(1, &meta.Create{Parent: meta.RootIno, Name: "dir", Kind: meta.KindDir}).Ino
	file := c.Do(1, &meta.Create{Parent: dir, Name: "file", Kind: meta.KindFile}).Ino
	c.Inline(1, file, []byte("bytes"))
	lock := func(n meta.NodeID, request uint64) meta.LockFile {
		l := c.Lease(n)
		return meta.LockFile{Incarnation: l.Incarnation, Ino: file, Wait: true, Lock: filelock.Lock{First: 1, End: 9,
			Mode: filelock.Exclusive, Owner: filelock.Owner{Node: uint32(n), Incarnation: l.Incarnation, Space: 1, ID: 5},
			Request: request}}
	}
	one, two := lock(1, 1), lock(2, 1)
	c.Propose(1, &one)
	c.Propose(2, &two)
	c.Propose(1, &meta.ReturnLocks{Incarnation: one.Incarnation, Ino: file, Number: c.DB.Index() - 1,
		Held: []filelock.Lock{one.Lock}})
	c.Propose(1, &meta.UnlockFile{Incarnation: one.Incarnation, Ino: file, What: meta.ScopeRange, Lock: one.Lock})
	first := c.Do(1, &meta.DelegateNames{Dir: dir, Numbers: true}).Ino
	c.Do(1, &meta.Publish{Ino: first, Session: c.Session(1), Size: 1, Inline: []byte("a"), LinkParent: dir, LinkName: "a",
		Made: &meta.Made{Mode: 0o644, Policy: 1}})
	c.Do(1, &meta.Reserve{Incarnation: c.Lease(1).Incarnation, Parent: dir, Name: "b", Ino: first + 1,
		Made: meta.Made{Policy: 1}})
	c.Propose(1, &meta.Unlink{Parent: dir, Name: "b", GiveBack: true})
	c.Propose(2, &meta.Create{Parent: dir, Name: "c", Kind: meta.KindFile})
	c.Do(2, &meta.RecallNames{Dir: dir})
	c.Do(1, &meta.ReturnNames{Dirs: []meta.Ino{dir}})
	c.Propose(2, &meta.Create{Parent: dir, Name: "c", Kind: meta.KindFile})
}

// members has the operations on nodes, and on contents that nodes come to hold.
func members(c *metatest.Cluster) {
	four := c.JoinWith("four", map[string]string{"rack": "a"})
	c.Boot(four)
	c.Propose(1, &meta.Down{Node: four, Incarnation: 1, Reason: "silent"})
	c.Propose(1, &meta.Drain{Node: four})
	c.Propose(1, &meta.Drain{Node: four, Undo: true})
	c.Propose(1, &meta.SetVoters{Voters: []meta.NodeID{1, 2, 3}})
	c.Propose(1, &meta.EvictSpare{Node: four, View: c.DB.View(), Checked: c.DB.Index()})
	c.Propose(1, &meta.Evict{Node: c.Join("five"), Reason: "gone"})
	c.Propose(1, &meta.RaiseFormat{To: 2})
	c.Propose(1, &meta.RaiseFormat{To: 3})
	file := c.Do(2, &meta.Create{Parent: meta.RootIno, Name: "held", Kind: meta.KindFile}).Ino
	p := push(c, 2, file, meta.ContentID{}, votes(c, 1, 2))
	c.Do(2, p)
	c.Propose(3, &meta.Held{Node: 3, Contents: []meta.ContentID{p.Session}, View: c.DB.View()})
	c.Propose(3, &meta.Release{Node: 3, Contents: []meta.ContentID{p.Session}})
	c.Inline(2, file, []byte("next"))
	c.Propose(2, &meta.Restore{Ino: file, Content: p.Session})
	c.Propose(2, &meta.Abort{Session: c.Session(2)})
}
