package meta

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/format"
)

var (
	first = format.Range{Oldest: format.First, Newest: format.First}
	both  = format.Range{Oldest: format.First, Newest: format.First + 1}
)

// mixed are databases of programs that know different formats, over one log. The first one's program knows most.
type mixed struct {
	t     *testing.T
	dbs   []*DB
	index uint64
}

func newMixed(t *testing.T, known ...format.Range) *mixed {
	m := &mixed{t: t}
	for _, r := range known {
		db, err := openMemory(Options{Formats: r})
		if err != nil {
			t.Fatal(err)
		}
		m.dbs = append(m.dbs, db)
	}
	return m
}

// apply applies an entry to all databases, which must agree. Those whose program stops at the entry are returned.
func (m *mixed) apply(data []byte) (res Result, stopped []*DB) {
	m.t.Helper()
	m.index++
	for i, db := range m.dbs {
		before := db.Index()
		got, _, err := db.Apply(m.index, int64(m.index), data)
		switch {
		case errors.Is(err, format.ErrUnknown) && i > 0:
			if stopped = append(stopped, db); db.Index() != before {
				m.t.Errorf("a program that does not know the format has applied entry %d", m.index)
			}
			continue
		case err != nil:
			m.t.Fatalf("database %d, entry %d: %v", i, m.index, err)
		case i == 0:
			res = got
		case got.Errno != res.Errno:
			m.t.Errorf("entry %d: %v in database %d, %v in the first", m.index, got.Errno, i, res.Errno)
		}
		if _, sum := m.dbs[0].Digest(); i > 0 && sum != second(db.Digest()) {
			m.t.Errorf("entry %d: database %d differs from the first", m.index, i)
		}
	}
	return res, stopped
}

func (m *mixed) do(op Op) Result {
	m.t.Helper()
	res, stopped := m.apply(EncodeEntry(Entry{Generation: FirstGeneration, Op: op}))
	if len(stopped) > 0 {
		m.t.Fatalf("%T: %d programs stop", op, len(stopped))
	}
	return res
}

// join makes a node that knows formats, and boots it.
func (m *mixed) join(name string, known format.Range) NodeID {
	m.t.Helper()
	join := &Join{Name: name, Addr: name + ":1", Program: Program{"v", known}}
	if m.dbs[0].cur.Load().head.LastNode > 0 {
		copy(join.TokenHash[:], "token of "+name)
		m.do(&AddToken{Hash: join.TokenHash, Expires: 1 << 62, Uses: 9})
	} else {
		join.Program.Formats = first // a new cluster uses the newest
	}
	res := m.do(join)
	if res.Errno != 0 {
		m.t.Fatalf("join of %s: %v", name, res.Errno)
	}
	m.boot(res.Node, known)
	return res.Node
}

func (m *mixed) boot(n NodeID, known format.Range) syscall.Errno {
	m.t.Helper()
	return m.do(&Boot{Node: n, Store: [16]byte{byte(n)}, Program: Program{"v", known}}).Errno
}

// The next format is used when each node knows it, also one that is down, and then no other program is let in.
func TestFormatIsRaisedWhenAllNodesKnowIt(t *testing.T) {
	m := newMixed(t, both)
	db := m.dbs[0]
	m.join("new", both)
	old, gone, silent := m.join("old", first), m.join("gone", first), m.join("silent", format.Range{})
	for _, n := range []NodeID{old, gone, silent} {
		m.do(&Down{Node: n, Incarnation: 1})
	}
	raise := func(to uint64) Result { return m.do(&RaiseFormat{To: to}) }
	for _, n := range []NodeID{old, gone, silent} {
		if res := raise(2); res.Errno != syscall.EBUSY || res.Node != n || db.Format() != 1 {
			t.Errorf("before node %d knows it: %v by node %d, format %d", n, res.Errno, res.Node, db.Format())
		}
		if n == gone {
			m.do(&Evict{Node: gone})
			continue
		}
		m.boot(n, both)
		m.do(&Down{Node: n, Incarnation: 2})
	}
	if res := raise(3); res.Errno != syscall.EDOM {
		t.Errorf("two at once: %v", res.Errno)
	}
	if res := raise(2); res.Errno != 0 || res.Existed || db.Format() != 2 {
		t.Errorf("when all know it: %v, format %d", res.Errno, db.Format())
	}
	if res := raise(2); res.Errno != 0 || !res.Existed || db.Format() != 2 {
		t.Errorf("again: %v", res.Errno)
	}
	if errno := m.boot(old, first); errno != syscall.EPROTONOSUPPORT || db.cur.Load().cl.node(old).State == NodeUp {
		t.Errorf("boot of an old program: %v", errno)
	}
	if errno := m.boot(old, both); errno != 0 {
		t.Errorf("boot of a new program: %v", errno)
	}
	m.do(&AddToken{Hash: [32]byte{9}, Expires: 1 << 62})
	join := &Join{Name: "late", TokenHash: [32]byte{9}, Program: Program{"v", first}}
	if res := m.do(join); res.Errno != syscall.EPROTONOSUPPORT {
		t.Errorf("join of an old program: %v", res.Errno)
	}
	join.Program.Formats = both
	if res := m.do(join); res.Errno != 0 {
		t.Errorf("join of a new program with the same token: %v", res.Errno)
	}
}

// newOpForTest is an operation of format 2, and withField one of format 1 with a field that came in format 2.
type (
	newOpForTest struct{}
	withField    struct{ field uint64 }
)

func (newOpForTest) opcode() uint8 { return 250 }
func (newOpForTest) code(*fields)  {}
func (*withField) opcode() uint8   { return 251 }

func (o *withField) code(c *fields) {
	if c.since(2) {
		c.V64(&o.field)
	}
}

// While a cluster uses a format, an operation or field of the next one has no effect on any node, whatever its program
// knows: states stay equal. When the format is raised, a program that does not know it stops before it applies that.
func TestProgramsOfDifferentFormatsAgree(t *testing.T) {
	opMakers[250], opSince[250] = func() codedOp { return newOpForTest{} }, 2
	opMakers[251] = func() codedOp { return new(withField) }
	defer func() { delete(opMakers, 250); delete(opSince, 250); delete(opMakers, 251) }()
	entry := func(number uint64, op Op) []byte {
		return EncodeEntry(Entry{Generation: FirstGeneration, Format: number, Op: op})
	}
	early := entry(1, newOpForTest{}) // a new operation in an entry of the first format
	if _, err := DecodeEntry(early); err == nil {
		t.Error("an operation is read in a format that it is not in")
	}
	field := entry(2, &withField{field: 7})
	if e, err := DecodeEntry(field); err != nil || e.Op.(*withField).field != 7 || e.Format != 2 {
		t.Errorf("a field of format 2: %v %v", e, err)
	}
	field[0] = 1
	if _, err := DecodeEntry(field); err == nil {
		t.Error("a field is read in a format that it is not in")
	}
	m := newMixed(t, both, first)
	m.join("new", both)
	lies := m.join("lies", first)
	for _, data := range [][]byte{early, field, entry(2, newOpForTest{}), entry(2, &withField{}),
		entry(2, &AddToken{Hash: [32]byte{1}}), entry(3, &AddToken{Hash: [32]byte{1}})} {
		if res, stopped := m.apply(data); res.Errno != syscall.ENOSYS || len(stopped) > 0 {
			t.Errorf("%x: %v, %d stop", data, res.Errno, len(stopped))
		}
	}
	m.boot(lies, both) // and goes on with its old program
	res, stopped := m.apply(entry(1, &RaiseFormat{To: 2}))
	if res.Errno != 0 || !slices.Equal(stopped, m.dbs[1:]) {
		t.Errorf("the format is raised: %v, %d stop", res.Errno, len(stopped))
	}
	m.dbs = m.dbs[:1]
	if res, _ := m.apply(entry(2, &AddToken{Hash: [32]byte{1}})); res.Errno != 0 {
		t.Errorf("an entry of the format in use: %v", res.Errno)
	}
	if res, _ := m.apply(entry(1, &AddToken{Hash: [32]byte{2}})); res.Errno != 0 {
		t.Errorf("an entry of the format before, which was on its way: %v", res.Errno)
	}
}

// A state of a later format is neither opened nor taken from another node by a program that does not know it.
func TestStateOfALaterFormatIsRefused(t *testing.T) {
	dir, raised := t.TempDir(), []uint64(nil)
	refuse := errors.New("the number can't be stored")
	note := func(number uint64) error { raised = append(raised, number); return refuse }
	open := func(dir string, known format.Range) (*DB, error) {
		return Open(dir, Options{ReserveBytes: -1, Formats: known, Raised: note})
	}
	db, err := open(dir, both)
	if err != nil {
		t.Fatal(err)
	}
	m := &mixed{t: t, dbs: []*DB{db}}
	m.join("new", both)
	raise := EncodeEntry(Entry{Generation: FirstGeneration, Op: &RaiseFormat{To: 2}})
	if _, _, err := db.Apply(m.index+1, 1, raise); !errors.Is(err, refuse) || db.Format() != 1 || db.Index() != m.index {
		t.Errorf("the number was not stored: %v, format %d", err, db.Format())
	}
	refuse = nil
	m.apply(raise)
	m.do(&Expire{})
	if !slices.Equal(raised, []uint64{2, 2}) {
		t.Errorf("Raised was called for %d", raised)
	}
	snapshot, _, err := db.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := b.ReadFrom(snapshot); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(snapshot.Close(), db.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := open(dir, first); !errors.Is(err, format.ErrUnknown) || errors.Is(err, ErrDamaged) {
		t.Errorf("open: %v", err)
	}
	for _, known := range []format.Range{first, both} {
		raised = nil
		fresh, err := open(filepath.Join(t.TempDir(), "state"), known)
		if err != nil {
			t.Fatal(err)
		}
		err = fresh.Restore(bytes.NewReader(b.Bytes()))
		if knows := known == both; errors.Is(err, format.ErrUnknown) == knows || (err == nil) != knows ||
			(fresh.Format() == 2) != knows || slices.Equal(raised, []uint64{2}) != knows {
			t.Errorf("a snapshot where %v is known: %v, format %d, raised %d", known, err, fresh.Format(), raised)
		}
		if err := fresh.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if db, err = open(dir, format.Range{Oldest: 2, Newest: 3}); err != nil || db.Format() != 2 {
		t.Fatalf("open by a later program: %v", err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, currentName)); err != nil {
		t.Error(err)
	}
}
