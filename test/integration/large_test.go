package integration

import (
	"bufio"
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// residentMax is what a daemon may keep in memory of its own.
const residentMax = 512 << 20

// A file of three times the daemon's memory copies in, and no daemon grows.
func TestFileLargerThanMemory(t *testing.T) {
	t.Parallel()
	limit := size(int64(384<<20), int64(1<<30))
	c := start(t, cluster.Options{Nodes: 3, MemoryMax: limit})
	src := filepath.Join(c.Dir, "large")
	cluster.Random(t, src, 3*limit, 1)
	watch := watchMemory(c)
	begin := time.Now()
	run(t, "cp", src, c.Nodes[0].Path("large"))
	t.Logf("%d MiB copied to %d nodes with %d MiB of memory each: %.1f s", 3*limit>>20, len(c.Nodes), limit>>20,
		time.Since(begin).Seconds())
	sameEverywhere(t, c, src, "large")
	for i, peak := range watch() {
		n := c.Nodes[i]
		t.Logf("%s: at most %d MiB resident", n.Name(), peak>>20)
		if peak == 0 || peak > min(residentMax, limit) {
			t.Errorf("%s: %d MiB resident, want below %d", n.Name(), peak>>20, min(residentMax, limit)>>20)
		}
		if kills := cluster.CgroupKills(t, n); strings.Contains(kills, "oom_kill ") &&
			!strings.Contains(kills, "oom_kill 0") {
			t.Errorf("%s: %s", n.Name(), kills)
		}
	}
}

// watchMemory samples what the daemons have resident that is not page cache; the function it returns ends that and
// gives the largest of each.
func watchMemory(c *cluster.Cluster) (stop func() []int64) {
	peaks := make([]int64, len(c.Nodes))
	end := make(chan struct{})
	var work sync.WaitGroup
	work.Go(func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			for i, n := range c.Nodes {
				peaks[i] = max(peaks[i], resident(n.Pid()))
			}
			select {
			case <-end:
				return
			case <-tick.C:
			}
		}
	})
	return func() []int64 {
		close(end)
		work.Wait()
		return peaks
	}
}

// resident is RssAnon + RssShmem of a process.
func resident(pid int) (total int64) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(raw)) {
		fields := strings.Fields(line)
		if len(fields) == 3 && (fields[0] == "RssAnon:" || fields[0] == "RssShmem:") {
			kib, _ := strconv.ParseInt(fields[1], 10, 64)
			total += kib << 10
		}
	}
	return total
}

// imagePage is what the tests of an image write at once.
const imagePage = 4096

// image is a large, mostly sparse file on the mount of the first node, and its twin outside.
type image struct {
	t       *testing.T
	c       *cluster.Cluster
	size    int64
	twin    *os.File
	file    *os.File
	rng     *rand.Rand
	members int64 // nodes that bytes have to go to
}

func newImage(t *testing.T, nodes int) *image {
	t.Helper()
	m := &image{t: t, c: start(t, cluster.Options{Nodes: nodes}), size: size(int64(1<<30), 8<<30),
		rng: rand.New(rand.NewPCG(1, 2)), members: int64(nodes - 1)}
	twin, err := os.Create(filepath.Join(m.c.Dir, "twin"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { twin.Close() })
	if err := twin.Truncate(m.size); err != nil {
		t.Fatal(err)
	}
	m.twin = twin
	part := make([]byte, 1<<20)
	for off := int64(0); off < m.size; off += m.size / 256 {
		m.fill(part)
		if _, err := twin.WriteAt(part, off); err != nil {
			t.Fatal(err)
		}
	}
	run(t, "cp", "--sparse=always", twin.Name(), m.c.Nodes[0].Path("image"))
	return m
}

func (m *image) fill(p []byte) {
	for i := 0; i < len(p); i += 8 {
		v := m.rng.Uint64()
		for k := range 8 {
			p[i+k] = byte(v >> (8 * k))
		}
	}
}

// open opens the image for reading and writing. Its data, 256 MiB and more, are not touched: that is why it takes no
// time.
func (m *image) open() {
	m.t.Helper()
	moved := ioBytes(m.t, m.c.Nodes[0])
	begin := time.Now()
	f, err := os.OpenFile(m.c.Nodes[0].Path("image"), os.O_RDWR, 0)
	took := time.Since(begin)
	if err != nil {
		m.t.Fatal(err)
	}
	m.file = f
	moved = ioBytes(m.t, m.c.Nodes[0]) - moved
	m.t.Logf("open O_RDWR of %d MiB: %v, %d bytes read and written", m.size>>20, took, moved)
	if moved > openMax {
		m.t.Errorf("open read and wrote %d bytes, want at most %d", moved, openMax)
	}
}

// openMax is what a daemon may read and write while an image is opened, whatever else it does then.
const openMax = 4 << 20

// ioBytes is what the process of a node has read and written by system calls.
func ioBytes(t *testing.T, n *cluster.Node) (total int64) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", n.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	var read, wrote int64
	if _, err := fmt.Sscanf(string(text), "rchar: %d\nwchar: %d\n", &read, &wrote); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return read + wrote
}

func (m *image) close() {
	m.t.Helper()
	if err := m.file.Close(); err != nil {
		m.t.Fatal(err)
	}
}

// write changes one page of the image and its twin, at random.
func (m *image) write() {
	m.t.Helper()
	var page [imagePage]byte
	m.fill(page[:])
	off := m.rng.Int64N(m.size/imagePage) * imagePage
	for _, f := range []*os.File{m.file, m.twin} {
		if _, err := f.WriteAt(page[:], off); err != nil {
			m.t.Fatal(err)
		}
	}
}

func (m *image) sync() time.Duration {
	m.t.Helper()
	begin := time.Now()
	if err := m.file.Sync(); err != nil {
		m.t.Fatal(err)
	}
	return time.Since(begin)
}

// sent is what all nodes have sent: each byte on the network counts once.
func (m *image) sent() (total int64) {
	m.t.Helper()
	for _, n := range m.c.Nodes {
		total += sent(m.t, n)
	}
	return total
}

// sent is what a node has sent, as its network device counts: with the headers of Ethernet, IP and TCP.
func sent(t *testing.T, n *cluster.Node) int64 {
	t.Helper()
	out, err := n.Command("cat", "/proc/self/net/dev").Output()
	if err != nil {
		t.Fatal(err)
	}
	scan := bufio.NewScanner(bytes.NewReader(out))
	for scan.Scan() {
		name, rest, _ := strings.Cut(strings.TrimSpace(scan.Text()), ":")
		fields := strings.Fields(rest)
		if name == "eth0" && len(fields) > 8 {
			v, err := strconv.ParseInt(fields[8], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	t.Fatalf("no eth0 in %s", out)
	return 0
}

// Writing here and there in a large image moves only what changed.
func TestRandomWritesInALargeImage(t *testing.T) {
	m := newImage(t, 3)
	m.open()
	writes := size(200, 1000)
	before := m.sent()
	for range writes {
		m.write()
	}
	took := m.sync()
	bytesSent, dirty := m.sent()-before, int64(writes)*imagePage*m.members
	t.Logf("%d writes of 4 KiB, one fsync: %v; %d bytes sent for %d dirty bytes and %d members: %.3f times",
		writes, took, bytesSent, dirty/m.members, m.members, float64(bytesSent)/float64(dirty))
	if limit := dirty*11/10 + 64<<10; bytesSent > limit {
		t.Errorf("%d bytes sent, want at most %d", bytesSent, limit)
	}
	before = m.sent()
	times := make([]time.Duration, writes)
	for i := range writes {
		m.write()
		times[i] = m.sync()
	}
	bytesSent = m.sent() - before
	slices.Sort(times)
	t.Logf("%d times a write of 4 KiB and fsync: median %v, 90%% %v, worst %v; %d bytes sent for each: %.3f times the "+
		"dirty bytes, %d beyond them for each member",
		writes, times[writes/2], times[writes*9/10], times[writes-1], bytesSent/int64(writes),
		float64(bytesSent)/float64(dirty), (bytesSent-dirty)/int64(writes)/m.members)
	if limit := dirty*11/10 + int64(writes)*m.members*perPublishMax; bytesSent > limit {
		t.Errorf("%d bytes sent, want at most %d", bytesSent, limit)
	}
	m.close()
	sameEverywhere(t, m.c, m.twin.Name(), "image")
	for _, n := range m.c.Nodes {
		n.Restart()
	}
	m.c.AwaitUp(m.c.Nodes...)
	sameEverywhere(t, m.c, m.twin.Name(), "image")
}

// perPublishMax is what a publish may cost at each member in addition to its bytes: announcement, answers, log entries,
// reports.
const perPublishMax = 4096

// Deltas above each other are merged, also when nodes die meanwhile: the length of a chain has no end in
// sight.
func TestManyFsyncsInARow(t *testing.T) {
	t.Parallel()
	m := newImage(t, 3)
	m.open()
	rounds := size(4, 10)
	for round := range rounds {
		var worst time.Duration
		for range 100 {
			m.write()
			worst = max(worst, m.sync())
		}
		t.Logf("round %d: worst fsync %v", round, worst)
		m.c.AwaitNothingOwed(60 * time.Second) // the one that stays up has to have all that the next is made from
		victim := m.c.Nodes[1+round%2]
		victim.Kill()
		for range 10 {
			m.write()
			m.sync()
		}
		victim.Start()
		m.c.AwaitUp(m.c.Nodes...)
	}
	m.close()
	m.c.AwaitNothingOwed(60 * time.Second)
	sameEverywhere(t, m.c, m.twin.Name(), "image")
}

// A store through a mapping reaches every node, also when it comes after a close.
func TestStoreAfterCloseOfADup(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3})
	writer := c.Nodes[0]
	if err := os.WriteFile(writer.Path("mapped"), bytes.Repeat([]byte{'a'}, 2*imagePage), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(writer.Path("mapped"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, 2*imagePage, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	dup, err := syscall.Dup(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	mem[0] = '1'
	if err := syscall.Close(dup); err != nil {
		t.Fatal(err)
	}
	mem[imagePage] = '2' // after the first close
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	for _, n := range c.Nodes {
		expect(t, c, n, "1a", "2a")
	}
	mem[1], mem[imagePage+1] = '3', '4' // no descriptor is left
	for _, n := range c.Nodes {
		expect(t, c, n, "13", "24")
	}
	if err := unix.Munmap(mem); err != nil {
		t.Fatal(err)
	}
}

// expect waits until the two pages of the file begin so on a node.
func expect(t *testing.T, c *cluster.Cluster, n *cluster.Node, first, second string) {
	t.Helper()
	c.Await(60*time.Second, n.Name()+" shows the stores", func() (bool, string) {
		got, err := os.ReadFile(n.Path("mapped"))
		if err != nil || len(got) != 2*imagePage {
			return false, fmt.Sprintf("%d bytes, %v", len(got), err)
		}
		a, b := string(got[:2]), string(got[imagePage:imagePage+2])
		return a == first && b == second, a + " " + b
	})
}
