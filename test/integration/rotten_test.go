package integration

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// Damage in the state database: one bit flips in a table of a stopped node, of a voter and of an observer. No name
// vanishes and no size is wrong at any moment, the node takes the state of another by itself, status says so, and all
// nodes agree.
func TestRottenState(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 4})
	want := map[string]int64{}
	for i := range 120 {
		name := fmt.Sprintf("file%03d", i)
		want[name] = int64(100 + 75*i)
		cluster.Random(t, c.Nodes[i%4].Path(name), want[name], uint64(i))
	}
	c.AwaitNothingOwed(60 * time.Second)
	for round, i := range []int{1, 3} {
		victim := c.Nodes[i]
		victim.Stop()
		tables := filesUnder(t, filepath.Join(victim.Data, "state"), ".sst")
		if len(tables) == 0 {
			t.Fatal("no tables")
		}
		for _, table := range tables {
			flipName(t, table)
		}
		late := fmt.Sprintf("late%d", round)
		want[late] = 3000
		cluster.Random(t, c.Nodes[0].Path(late), want[late], uint64(200+round))
		victim.Start()
		c.AwaitUp(victim)
		allNames(t, victim, want)
		if text := strings.Join(victim.Status().Warnings, "\n"); !strings.Contains(text, "state was damaged") ||
			!strings.Contains(text, "rebuilt") {
			t.Errorf("status of %s says nothing of the damage: %q", victim.Name(), text)
		}
		own := fmt.Sprintf("own%d", round)
		want[own] = 9000
		cluster.Random(t, victim.Path(own), want[own], uint64(300+round))
	}
	rotWhileRunning(t, c, c.Nodes[1], want)
	c.AwaitNothingOwed(60 * time.Second)
	c.AwaitAgreement(60 * time.Second)
	for _, n := range c.Nodes {
		allNames(t, n, want)
		n.Restart() // what was rebuilt is there for good
	}
	for _, n := range c.Nodes {
		allNames(t, n, want)
		if text := strings.Join(n.Status().Warnings, "\n"); strings.Contains(text, "damaged") {
			t.Errorf("%s after another start: %q", n.Name(), text)
		}
	}
}

// rotWhileRunning damages the tables of a running node, and changes what is in them: the node differs from the others
// from then on, finds that out by itself, and takes another's state while its mount stays.
func rotWhileRunning(t *testing.T, c *cluster.Cluster, victim *cluster.Node, want map[string]int64) {
	t.Helper()
	victim.Restart() // its state is in tables then
	c.AwaitUp(victim)
	for _, table := range filesUnder(t, filepath.Join(victim.Data, "state"), ".sst") {
		flipName(t, table)
	}
	for name, size := range maps.Clone(want) {
		must(t, os.Rename(c.Nodes[0].Path(name), c.Nodes[0].Path("renamed-"+name)))
		delete(want, name)
		want["renamed-"+name] = size
	}
	c.Await(60*time.Second, "the damage is found and mended", func() (bool, string) {
		st := victim.Status()
		text := strings.Join(st.Warnings, "\n")
		return st.State == "serving" && strings.Contains(text, "rebuilt"), st.State + text
	})
	allNames(t, victim, want)
}

// Bits flip in the tables of a running node. From then on no name is missing on it: a read is right or fails. What it
// acknowledges is kept, and a name that exists is not made again. It says what happened, and serves again by itself.
func TestRotUnderARunningNode(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3})
	want := map[string]int64{}
	for i := range 90 {
		name := fmt.Sprintf("file%03d", i)
		want[name] = int64(100 + 75*i)
		cluster.Random(t, c.Nodes[i%3].Path(name), want[name], uint64(i))
	}
	c.AwaitNothingOwed(60 * time.Second)
	victim := c.Nodes[1]
	victim.Restart() // its state is in tables then, and the kernel knows no names
	c.AwaitUp(c.Nodes...)
	for _, table := range filesUnder(t, filepath.Join(victim.Data, "state"), ".sst") {
		flipNames(t, table)
	}
	refused := 0
	for i := range 90 {
		name := fmt.Sprintf("file%03d", i)
		path := victim.Path(name)
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is not there", name)
		} else if err != nil {
			refused++
		}
		size := int64(20_000 + i)
		if err := tryWrite(path, os.O_CREATE|os.O_EXCL, size); err == nil {
			t.Errorf("%s was made again", name)
		}
		if err := tryWrite(path, os.O_TRUNC, size); err == nil {
			want[name] = size
		} else if errors.Is(err, os.ErrNotExist) {
			t.Errorf("write to %s: it is not there", name)
		}
		fresh := fmt.Sprintf("new%03d", i)
		if err := tryWrite(victim.Path(fresh), os.O_CREATE|os.O_EXCL, size); err == nil {
			want[fresh] = size
		}
	}
	if refused == 0 {
		t.Error("no read has met the damage")
	}
	c.Await(60*time.Second, "the damage is found and mended", func() (bool, string) {
		st := victim.Status()
		text := strings.Join(st.Warnings, "\n")
		return st.State == "serving" && strings.Contains(text, "rebuilt"), st.State + text
	})
	c.AwaitNothingOwed(60 * time.Second)
	c.AwaitAgreement(60 * time.Second)
	for _, n := range c.Nodes {
		keptNames(t, n, want)
	}
}

// tryWrite writes a file of zeros.
func tryWrite(path string, flag int, size int64) error {
	f, err := os.OpenFile(path, os.O_WRONLY|flag, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, size))
	return errors.Join(err, f.Close())
}

// keptNames looks for what was acknowledged. A new file whose close has failed may be there too.
func keptNames(t *testing.T, n *cluster.Node, want map[string]int64) {
	t.Helper()
	for name, size := range want {
		st, err := os.Stat(n.Path(name))
		if err != nil || st.Size() != size && (st.Size() < 20_000 || size > 20_000) {
			t.Errorf("%s: %s: %v, want %d bytes: %v", n.Name(), name, st, size, err)
		}
	}
}

// flipNames inverts one bit in each name of a file that a table spells out.
func flipNames(t *testing.T, table string) {
	t.Helper()
	raw, err := os.ReadFile(table)
	must(t, err)
	f, err := os.OpenFile(table, os.O_WRONLY, 0)
	must(t, err)
	defer f.Close()
	for at := 0; ; at += 4 {
		next := bytes.Index(raw[at:], []byte("file"))
		if next < 0 {
			return
		}
		at += next
		_, err = f.WriteAt([]byte{raw[at] ^ 1}, int64(at))
		must(t, err)
	}
}

// flipName inverts one bit in the first name that a table spells out.
func flipName(t *testing.T, table string) {
	t.Helper()
	raw, err := os.ReadFile(table)
	must(t, err)
	at := bytes.Index(raw, []byte("file"))
	if at < 0 {
		flip(t, table, 1)
		return
	}
	f, err := os.OpenFile(table, os.O_WRONLY, 0) // in place: a running node has it mapped
	must(t, err)
	_, err = f.WriteAt([]byte{raw[at] ^ 1}, int64(at))
	must(t, errors.Join(err, f.Close()))
}

// allNames holds the listing of a node against the names and sizes that were closed.
func allNames(t *testing.T, n *cluster.Node, want map[string]int64) {
	t.Helper()
	entries, err := os.ReadDir(n.Mount)
	must(t, err)
	if len(entries) != len(want) {
		t.Errorf("%s lists %d names, want %d", n.Name(), len(entries), len(want))
	}
	for name, size := range want {
		if st, err := os.Stat(n.Path(name)); err != nil || st.Size() != size {
			t.Errorf("%s: %s: %v, want %d bytes: %v", n.Name(), name, st, size, err)
		}
	}
}
