package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/internal/exitcode"
	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// flip inverts bytes in the middle of a file, and returns how many bytes the file has.
func flip(t *testing.T, path string, bytes int64) int64 {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	bytes = min(bytes, st.Size()/2)
	off := (st.Size() - bytes) / 2
	buf := make([]byte, bytes)
	if _, err := f.ReadAt(buf, off); err != nil {
		t.Fatal(err)
	}
	for i := range buf {
		buf[i] ^= 0xff
	}
	if _, err := f.WriteAt(buf, off); err != nil {
		t.Fatal(err)
	}
	return st.Size()
}

// filesUnder lists the regular files of a directory tree whose names end so.
func filesUnder(t *testing.T, dir, suffix string) (out []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && strings.HasSuffix(path, suffix) {
			out = append(out, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// A damaged content file. No node gives wrong bytes, and the damage is mended from the others.
func TestDamagedContent(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3})
	victim := c.Nodes[1]
	sources := map[string]string{}
	for i, bytes := range []int64{70_000, 1 << 20, 5<<20 + 17} {
		name := fmt.Sprintf("file%d", i)
		sources[name] = filepath.Join(c.Dir, name)
		cluster.Random(t, sources[name], bytes, uint64(i))
		run(t, "cp", sources[name], c.Nodes[0].Path(name))
	}
	check := func() {
		t.Helper()
		for name, src := range sources {
			sameEverywhere(t, c, src, name)
		}
	}
	check()
	held := filepath.Join(victim.Data, "content", "held")
	before := contentDigests(t, held)
	victim.Stop()
	for _, path := range filesUnder(t, held, ".data") {
		flip(t, path, 5000)
	}
	if files := filesUnder(t, held, ".meta"); len(files) > 0 {
		flip(t, files[0], 40)
	}
	victim.Start()
	check()
	c.Await(60*time.Second, "damage mended", func() (bool, string) {
		for name, src := range sources {
			sum, err := cluster.Digest(src)
			if got, err2 := cluster.Digest(victim.Path(name)); err != nil || err2 != nil || got != sum {
				return false, fmt.Sprintf("%s: %s, %v", name, got, err2)
			}
		}
		now := contentDigests(t, held)
		for path, sum := range before {
			if now[path] != sum {
				return false, path + " is still damaged"
			}
		}
		return true, ""
	})
	c.AwaitNothingOwed(60 * time.Second)
	check()
	want := map[string]string{}
	for name, src := range sources {
		want[name], _ = cluster.Digest(src)
	}
	heldByEach(t, c, want)
}

// The file of a content is changed on the disk of a running node, which the kernel reads without the daemon. Whoever
// opens the content afterwards reads right bytes, and the file is mended.
func TestContentChangedUnderARunningNode(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 2})
	victim := c.Nodes[1]
	held := filepath.Join(victim.Data, "content", "held")
	src := filepath.Join(c.Dir, "src")
	cluster.Random(t, src, 5<<20+17, 1)
	run(t, "cp", src, c.Nodes[0].Path("file"))
	c.AwaitNothingOwed(60 * time.Second)
	sameEverywhere(t, c, src, "file")
	before := contentDigests(t, held)
	if len(before) != 1 {
		t.Fatalf("data files: %v", before)
	}
	for round := range 3 {
		for path := range before {
			flip(t, path, 5000)
		}
		sameEverywhere(t, c, src, "file")
		c.Await(60*time.Second, "change mended", func() (bool, string) {
			now := contentDigests(t, held)
			return maps.Equal(now, before), fmt.Sprintf("round %d: %v, and not %v", round, now, before)
		})
	}
	sameEverywhere(t, c, src, "file")
}

// Readers of a content that is damaged in each block have the machine to themselves. Each block comes over the link
// once, though the kernel asks for many pieces of it at once, and the node mends it meanwhile.
func TestDamagedBlocksComeOnce(t *testing.T) {
	length := size[int64](16<<20, 64<<20)
	c := start(t, cluster.Options{Nodes: 2, Rate: "100mbit"})
	victim := c.Nodes[1]
	src := filepath.Join(c.Dir, "src")
	cluster.Random(t, src, length, 1)
	run(t, "cp", src, c.Nodes[0].Path("file"))
	c.AwaitNothingOwed(60 * time.Second)
	victim.Stop()
	for _, path := range filesUnder(t, filepath.Join(victim.Data, "content", "held"), ".data") {
		flipChunks(t, path)
	}
	victim.Start()
	c.AwaitUp(c.Nodes...)
	before, began := receivedBytes(t, victim), time.Now()
	samePieces(t, src, victim.Path("file"))
	came := receivedBytes(t, victim) - before
	t.Logf("%d bytes, each 64 KiB damaged: read in %v, %d bytes came", length, time.Since(began), came)
	if came > length*5/4 {
		t.Errorf("%d bytes came for a file of %d", came, length)
	}
}

// samePieces compares two files, of which eight readers read each MiB at once.
func samePieces(t *testing.T, want, got string) {
	t.Helper()
	src, err := os.Open(want)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	f, err := os.Open(got)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const pieces, length = 8, 1 << 17
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM) // no reading ahead of the readers
	for block, more := int64(0), true; more; block += pieces * length {
		var all sync.WaitGroup
		for i := range int64(pieces) {
			all.Go(func() {
				a, b := make([]byte, length), make([]byte, length)
				n, err := src.ReadAt(a, block+i*length)
				m, err2 := f.ReadAt(b, block+i*length)
				if n != m || !bytes.Equal(a[:n], b[:m]) || err != err2 {
					t.Errorf("piece %d at %d: %d bytes (%v), want %d (%v)", i, block, m, err2, n, err)
				}
			})
		}
		all.Wait()
		st, err := src.Stat()
		more = err == nil && block+pieces*length < st.Size()
	}
}

// receivedBytes is what came over the link of a node.
func receivedBytes(t *testing.T, n *cluster.Node) int64 {
	t.Helper()
	for line := range strings.Lines(n.MustRun("cat", "/proc/net/dev")) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "eth0:" {
			count, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return count
		}
	}
	t.Fatal("no eth0")
	return 0
}

// flipChunks inverts a byte of each 64 KiB of a file: no part of it has the right checksum.
func flipChunks(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	for off := int64(1000); ; off += 1 << 16 {
		if _, err := f.ReadAt(b[:], off); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte{^b[0]}, off); err != nil {
			t.Fatal(err)
		}
	}
}

// A large file that is damaged here can be read and written while it is open for writing, and every node gets the
// right bytes.
func TestWriteOverDamagedContent(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3})
	victim := c.Nodes[1]
	src := filepath.Join(c.Dir, "src")
	cluster.Random(t, src, 40<<20, 1)
	run(t, "cp", src, c.Nodes[0].Path("file"))
	c.AwaitNothingOwed(60 * time.Second)
	victim.Stop()
	for _, path := range filesUnder(t, filepath.Join(victim.Data, "content", "held"), ".data") {
		flip(t, path, 3<<20)
	}
	victim.Start()
	c.AwaitUp(c.Nodes...)
	for _, name := range []string{src, victim.Path("file")} {
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		for i := range int64(6) {
			if _, err := f.WriteAt([]byte("changed"), 19<<20+i*345_678); err != nil {
				t.Errorf("write to %s: %v", name, err)
			}
		}
		if err := f.Close(); err != nil {
			t.Errorf("close of %s: %v", name, err)
		}
	}
	sameEverywhere(t, c, src, "file")
	c.AwaitNothingOwed(60 * time.Second)
	sameEverywhere(t, c, src, "file")
}

// contentDigests are the digests of the data files, by path.
func contentDigests(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, path := range filesUnder(t, dir, ".data") {
		sum, err := cluster.Digest(path)
		if err == nil {
			out[path] = sum
		}
	}
	return out
}

// A damaged, missing or shortened raft log never votes again; the node comes back as a new one.
func TestDamagedRaftLog(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3})
	seed, victim := c.Nodes[0], c.Nodes[2]
	raft := filepath.Join(victim.Data, "raft")
	src := filepath.Join(c.Dir, "src")
	cluster.Random(t, src, 2<<20, 1)
	run(t, "cp", src, seed.Path("before"))
	for _, harm := range []struct {
		name, says string
		do         func()
	}{
		{"damaged", "join", func() {
			for _, path := range filesUnder(t, raft, ".raftlog") {
				damageFrames(t, path)
			}
		}},
		{"missing", "join", func() {
			if err := os.RemoveAll(raft); err != nil {
				t.Fatal(err)
			}
		}},
		{"short", "join", func() {
			run(t, "cp", "-a", raft, raft+".old")
			c.AwaitUp(seed, c.Nodes[1])
			for i := range 5 {
				run(t, "cp", src, seed.Path(fmt.Sprintf("meanwhile%d", i)))
			}
			victim.Start()
			c.AwaitUp(c.Nodes...)
			victim.Stop()
			run(t, "rm", "-rf", raft)
			run(t, "mv", raft+".old", raft)
		}},
	} {
		t.Log(harm.name)
		victim.Stop()
		harm.do()
		victim.Launch()
		diesSaying(t, victim, 60*time.Second, exitcode.Failure, harm.says)
		worksEverywhere(t, c, harm.name)
		rejoin(t, c, seed, victim)
		c.AwaitNothingOwed(60 * time.Second)
		c.AwaitAgreement(60 * time.Second)
		sameEverywhere(t, c, src, "before")
		worksEverywhere(t, c, harm.name+"-after")
	}
}

// damageFrames inverts bytes near the beginning of a segment, behind its head.
func damageFrames(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	buf := make([]byte, 64)
	const off = 600
	if _, err := f.ReadAt(buf, off); err != nil {
		t.Fatal(err)
	}
	for i := range buf {
		buf[i] ^= 0xff
	}
	if _, err := f.WriteAt(buf, off); err != nil {
		t.Fatal(err)
	}
}

// rejoin brings a lost node back under its name with a new data directory.
func rejoin(t *testing.T, c *cluster.Cluster, seed, lost *cluster.Node) {
	t.Helper()
	if err := os.RemoveAll(lost.Data); err != nil {
		t.Fatal(err)
	}
	token := newToken(t, seed, "--replace", lost.Name())
	lost.MustCLI(joinArgs(lost, seed, token, "--replace")...)
	lost.Start()
	c.AwaitUp(c.Nodes...)
}

// The old data directory of a node that was replaced is started. Its status says why it stays cut off.
func TestOldDirectoryOfAReplacedNode(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3})
	one, two := c.Nodes[0], c.Nodes[1]
	old, young := filepath.Join(c.Dir, "old"), filepath.Join(c.Dir, "young")
	move := func(from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	two.Stop()
	move(two.Data, old)
	rejoin(t, c, one, two)
	two.Stop()
	move(two.Data, young)
	move(old, two.Data)
	two.Launch()
	c.Await(60*time.Second, "the old directory says why it is cut off", func() (bool, string) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		st, err := two.Admin().Status(ctx)
		if err != nil {
			return false, err.Error()
		}
		says := strings.Join(st.Warnings, "\n")
		return st.State == "cut-off" && strings.Contains(says, "refused by") &&
			strings.Contains(says, "another data directory"), st.State + ": " + says
	})
	two.Kill()
	move(two.Data, old)
	move(young, two.Data)
	two.Start()
	c.AwaitUp(c.Nodes...)
}

// A copied data directory started beside the original. The copy ends and says why; nothing is lost.
func TestCopiedDataDirectory(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 4, Manual: true})
	for i, n := range c.Nodes[:3] {
		if i == 0 {
			n.Init()
		} else {
			n.Join()
		}
		n.Start()
	}
	original, clone := c.Nodes[1], c.Nodes[3]
	c.AwaitUp(c.Nodes[:3]...)
	src := filepath.Join(c.Dir, "src")
	cluster.Random(t, src, 2<<20, 1)
	run(t, "cp", src, original.Path("before"))
	original.Stop()
	run(t, "cp", "-a", original.Data, clone.Data)
	original.Start()
	c.AwaitUp(c.Nodes[:3]...)

	clone.Launch() // as it was copied: the address is not this machine's
	diesSaying(t, clone, 60*time.Second, exitcode.Failure, "address")
	moveTo(t, clone)
	run(t, "cp", src, original.Path("meanwhile"))
	clone.Launch()
	diesSaying(t, clone, 60*time.Second, exitcode.Denied, "copy of its data directory")
	c.AwaitUp(c.Nodes[:3]...)
	worksEverywhere(t, c, "beside")

	original.Stop() // a directory that has moved is no copy
	run(t, "rm", "-rf", clone.Data)
	run(t, "mv", original.Data, clone.Data)
	moveTo(t, clone)
	clone.Start()
	c.AwaitUp(c.Nodes[:3]...)
	c.AwaitNothingOwed(60 * time.Second)
	c.AwaitAgreement(60 * time.Second)
	sameEverywhere(t, c, src, "before")
	sameEverywhere(t, c, src, "meanwhile")
	worksEverywhere(t, c, "moved")
}

// moveTo gives a copied data directory the address of the machine that it is on now.
func moveTo(t *testing.T, n *cluster.Node) {
	t.Helper()
	path := filepath.Join(n.Data, "node.json")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var id map[string]any
	dec := json.NewDecoder(strings.NewReader(string(raw)))
	dec.UseNumber()
	if err := dec.Decode(&id); err != nil {
		t.Fatal(err)
	}
	id["listen"], id["advertise"] = n.Addr, n.Addr
	if raw, err = json.Marshal(id); err == nil {
		err = os.WriteFile(path, raw, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
