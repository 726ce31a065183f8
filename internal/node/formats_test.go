package node

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/format"
	"github.com/rdmcfs/rdmcfs/meta"
)

var (
	firstFormat = format.Range{Oldest: 1, Newest: 1}
	twoFormats  = format.Range{Oldest: 1, Newest: 2}
)

// A data directory says in which format it may be written, before anything else of it is read.
func TestDirectorySaysItsFormat(t *testing.T) {
	d := dataDir(t.TempDir())
	id := identity{Format: 1, Cluster: strings.Repeat("a1", 16), Store: strings.Repeat("b2", 16), Node: 1, Generation: 1}
	if err := d.save(id); err != nil {
		t.Fatal(err)
	}
	for _, known := range []format.Range{firstFormat, twoFormats} {
		if got, err := d.load(known); err != nil || got.Format != 1 {
			t.Errorf("before, %v known: format %d, %v", known, got.Format, err)
		}
	}
	if _, err := d.load(format.Range{Oldest: 2, Newest: 3}); !errors.Is(err, format.ErrUnknown) {
		t.Errorf("before, by a program that is too new: %v", err)
	}
	if err := errors.Join(d.raise(2, twoFormats), d.raise(1, twoFormats)); err != nil {
		t.Fatal(err)
	}
	if got, err := d.load(twoFormats); err != nil || got.Format != 2 || got.Store != id.Store {
		t.Errorf("after: %+v, %v", got, err)
	}
	if _, err := d.load(firstFormat); !errors.Is(err, format.ErrUnknown) || !strings.Contains(err.Error(), "install") {
		t.Errorf("after, by a program that is too old: %v", err)
	}
}

// formatLog applies what is proposed, and keeps the formats of the entries.
type formatLog struct {
	t       *testing.T
	db      *meta.DB
	formats []uint64
}

// Propose implements raftLog.
func (l *formatLog) Propose(_ context.Context, data []byte, _ consensus.ProposeOptions) (consensus.Proposed, error) {
	e, err := meta.DecodeEntry(data)
	if err != nil {
		l.t.Fatal(err)
	}
	l.formats = append(l.formats, e.Format)
	res, _, err := l.db.Apply(l.db.Index()+1, 1, data)
	return consensus.Proposed{Index: res.Index, Result: res}, err
}

func newFormatLog(t *testing.T, known format.Range) *formatLog {
	t.Helper()
	db, err := meta.Open(t.TempDir(), meta.Options{ReserveBytes: -1, Formats: known})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return &formatLog{t: t, db: db}
}

// What a node proposes is in the format that the cluster uses, as soon as the node has applied that.
func TestProposalsAreInTheFormatInUse(t *testing.T) {
	l := newFormatLog(t, twoFormats)
	a := anonymous{node: 1, generation: 1, log: l, format: l.db.Format}
	p := newProposer(t.Context(), l, 1, 1)
	p.format = l.db.Format
	do := func(op meta.Op) meta.Result {
		t.Helper()
		res, err := a.propose(t.Context(), op)
		if err != nil || res.Errno != 0 {
			t.Fatalf("%T: %v %v", op, res.Errno, err)
		}
		return res
	}
	own := meta.Program{Version: "v", Formats: twoFormats}
	do(&meta.Join{Name: "n1", Program: meta.Program{Formats: firstFormat}})
	p.beginIncarnation(do(&meta.Boot{Node: 1, Store: [16]byte{1}, Program: own}).Incarnation)
	write := func() {
		t.Helper()
		if res, err := p.propose(t.Context(), &meta.Expire{}); err != nil || res.Errno != 0 {
			t.Fatalf("%v %v", res.Errno, err)
		}
	}
	write()
	do(&meta.RaiseFormat{To: 2})
	write()
	do(&meta.Expire{})
	if got, want := l.formats, []uint64{1, 1, 1, 1, 2, 2}; len(got) != len(want) || [6]uint64(got) != [6]uint64(want) {
		t.Errorf("formats %d, want %d", got, want)
	}
}

// A cluster that is new uses the newest format of the program that makes it.
func TestNewClusterUsesTheNewestFormat(t *testing.T) {
	l := newFormatLog(t, format.Range{Oldest: 2, Newest: 3})
	a := anonymous{node: 1, generation: 1, log: l, format: l.db.Format}
	join := &meta.Join{Name: "n1", Program: meta.Program{Formats: format.Range{Oldest: 2, Newest: 3}}}
	if res, err := a.propose(t.Context(), join); err != nil || res.Errno != 0 || l.db.Format() != 3 {
		t.Errorf("%v %v: format %d", res.Errno, err, l.db.Format())
	}
}

// An upgrade is finished when all nodes know the next format, and otherwise says which nodes hold it back.
func TestUpgradeSaysWhoHoldsItBack(t *testing.T) {
	l := newFormatLog(t, format.Range{Oldest: 1, Newest: 3})
	u := &upgrades{db: l.db, anonymous: anonymous{node: 1, generation: 1, log: l, format: l.db.Format}}
	boot := func(name string, known format.Range) {
		t.Helper()
		token := [32]byte{9}
		for _, op := range []meta.Op{&meta.AddToken{Hash: token, Expires: 1 << 62, Uses: 99},
			&meta.Join{Name: name, Addr: name, TokenHash: token, Program: meta.Program{Formats: firstFormat}}} {
			if _, err := u.anonymous.propose(t.Context(), op); err != nil {
				t.Fatal(err)
			}
		}
		nodes, err := l.db.Nodes()
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range nodes {
			if n.Name == name {
				op := &meta.Boot{Node: n.ID, Store: [16]byte{byte(n.ID)},
					Program: meta.Program{Version: "of " + name, Formats: known}}
				if res, err := u.anonymous.propose(t.Context(), op); err != nil || res.Errno != 0 {
					t.Fatal(res.Errno, err)
				}
			}
		}
	}
	if _, err := u.anonymous.propose(t.Context(), &meta.Join{Name: "n1"}); err != nil {
		t.Fatal(err)
	}
	finish := func(format, common, newest uint64, errors ...string) {
		t.Helper()
		st, err := u.upgrade(t.Context(), admin.UpgradeRequest{Finish: true})
		if (err != nil) != (len(errors) > 0) || st.Format != format || st.Common != common || st.Newest != newest {
			t.Errorf("%+v, %v", st, err)
		}
		for _, want := range errors {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q is not in: %v", want, err)
			}
		}
	}
	boot("n2", firstFormat)
	boot("n3", firstFormat)
	finish(1, 1, 1)
	boot("n1", format.Range{Oldest: 1, Newest: 3})
	finish(1, 1, 3, "n2, n3", "format 2 can't be used")
	boot("n2", twoFormats)
	finish(1, 1, 3, "on n3 does not know it: install")
	boot("n3", format.Range{Oldest: 1, Newest: 3})
	finish(2, 2, 3)
	finish(2, 2, 3, "on n2 does not", "format 3 can't be used")
	boot("n2", format.Range{Oldest: 2, Newest: 3})
	finish(3, 3, 3)
	finish(3, 3, 3)
	st, err := u.upgrade(t.Context(), admin.UpgradeRequest{})
	if err != nil || len(st.Nodes) != 3 || st.Nodes[1].Version != "of n2" || st.Nodes[1].OldestFormat != 2 ||
		st.Nodes[1].NewestFormat != 3 || st.Nodes[1].State != "up" {
		t.Errorf("%+v, %v", st, err)
	}
}

// A node that was down when the format was raised, and starts with an older program then, ends and says why: the others
// refuse it. It has written nothing, so the right program starts.
func TestProgramThatWasLeftBehindEnds(t *testing.T) {
	t.Parallel() // it waits more than it works
	c := threeVoters(t)
	for _, name := range []string{"n3", "n2", "n1"} {
		c.stop(name)
		c.nodes[name].knows = twoFormats
		c.start(name)
		c.until(name, "serving", serving)
	}
	c.stop("n3")
	if st, err := c.nodes["n1"].admin.Upgrade(t.Context(), admin.UpgradeRequest{Finish: true}); err != nil ||
		st.Format != 2 {
		t.Fatalf("%+v, %v", st, err)
	}
	behind := c.nodes["n3"]
	ends := func(says string) {
		t.Helper()
		behind.knows = firstFormat
		c.start("n3")
		ended := make(chan struct{})
		go func() { behind.done.Wait(); close(ended) }()
		select {
		case <-ended:
		case <-time.After(time.Minute):
			t.Errorf("it goes on")
			c.stop("n3")
		}
		if !errors.Is(behind.err, format.ErrUnknown) || !strings.Contains(behind.err.Error(), says) {
			t.Errorf("it ended with %v, want %q", behind.err, says)
		}
		behind.knows = twoFormats
		c.start("n3")
		c.until("n3", "serving in format 2", func(st admin.Status) bool { return serving(st) && st.Format == 2 })
	}
	ends("format 2 is in use, and this version knows format 1")
	c.stop("n3")
	ends("node.json")
}
