package vm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

const (
	// Bounds in an emulated machine that others keep busy too: an undisturbed one needs a twentieth.
	copyLimit = 15 * time.Minute
	catchUp   = 10 * time.Minute
	patience  = 10 // times what a node is given on a real machine

	packetBytes = 4096 // the MTU of the device
)

// rdmaDevice is the name of the device to test on.
func rdmaDevice(t testing.TB) string {
	t.Helper()
	name := os.Getenv("RDMCFS_TEST_VERBS")
	if name == "" {
		t.Skip("needs an RDMA device: run the test binary by test/vm/run.sh, as 'make test-rdma' does")
	}
	return name
}

// sentPackets is how many packets the RDMA device has sent, by its own counter.
func sentPackets(t testing.TB, device string) int64 {
	t.Helper()
	return counter(t, device, "sent_pkts")
}

// counter is a number that the RDMA device counts.
func counter(t testing.TB, device, name string) int64 {
	t.Helper()
	for _, dir := range []string{"hw_counters", "ports/1/hw_counters"} {
		text, err := os.ReadFile(filepath.Join("/sys/class/infiniband", device, dir, name))
		if err != nil {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	t.Fatalf("%s has no counter %s", device, name)
	return 0
}

// tcpBytes is what all nodes have sent over their network links.
func tcpBytes(t testing.TB, c *cluster.Cluster) (sum int64) {
	t.Helper()
	for _, n := range c.Nodes {
		var links []struct {
			Name  string `json:"ifname"`
			Stats struct {
				TX struct{ Bytes int64 } `json:"tx"`
			} `json:"stats64"`
		}
		out := n.MustRun("ip", "-s", "-j", "link", "show", "dev", "eth0")
		if err := json.Unmarshal([]byte(out), &links); err != nil || len(links) != 1 {
			t.Fatalf("ip printed %q: %v", out, err)
		}
		sum += links[0].Stats.TX.Bytes
	}
	return sum
}

// traffic is what went over the RDMA device and over TCP.
type traffic struct{ packets, tcp int64 }

func now(t testing.TB, c *cluster.Cluster, device string) traffic {
	t.Helper()
	return traffic{sentPackets(t, device), tcpBytes(t, c)}
}

func (a traffic) since(b traffic) traffic { return traffic{a.packets - b.packets, a.tcp - b.tcp} }

// overVerbs fails the test unless payload bytes were sent in packets of the RDMA device, and few of them over TCP.
func (a traffic) overVerbs(t testing.TB, payload int64) {
	t.Helper()
	t.Logf("%d bytes to deliver: %d packets of the RDMA device, %d bytes over TCP", payload, a.packets, a.tcp)
	if a.packets < payload/packetBytes {
		t.Errorf("%d packets of %d bytes can't have carried %d bytes", a.packets, packetBytes, payload)
	}
	if a.tcp > payload/10 {
		t.Errorf("%d bytes went over TCP", a.tcp)
	}
}

// copying is a cp that runs in the background.
type copying struct {
	t     *testing.T
	start time.Time
	done  chan struct{}
	err   error
}

func startCopy(t *testing.T, src, dst string) *copying {
	t.Helper()
	c := &copying{t: t, start: time.Now(), done: make(chan struct{})}
	cmd := exec.Command("cp", "-r", src, dst)
	var out strings.Builder
	cmd.Stderr = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	go func() {
		defer close(c.done)
		if err := cmd.Wait(); err != nil {
			c.err = fmt.Errorf("cp: %w: %s", err, out.String())
		}
	}()
	return c
}

// wait fails the test unless the copy ends well in time.
func (c *copying) wait() {
	c.t.Helper()
	select {
	case <-c.done:
	case <-time.After(copyLimit):
		c.t.Fatalf("cp still runs after %v", copyLimit)
	}
	if c.err != nil {
		c.t.Fatal(c.err)
	}
	c.t.Logf("the copy took %v", time.Since(c.start).Round(10*time.Millisecond))
}

// awaitMoving waits until all members of the writer's transfer are receiving and have a part of it, and none has all.
// It answers false if the copy has ended before.
func (c *copying) awaitMoving(cl *cluster.Cluster, writer *cluster.Node, part float64) (moving bool) {
	c.t.Helper()
	cl.Await(copyLimit, "transfer under way", func() (bool, string) {
		select {
		case <-c.done:
			return true, ""
		default:
		}
		for _, tr := range writer.Status().Transfers {
			moving = moving || inMiddle(&tr, part)
		}
		return moving, "no transfer in its middle"
	})
	return moving
}

func inMiddle(tr *admin.Transfer, part float64) bool {
	for _, m := range tr.Members {
		if m.Node == tr.Writer {
			continue
		}
		if m.State != "receiving" || float64(m.Bytes) < part*float64(tr.SizeBytes) || m.Bytes >= tr.SizeBytes {
			return false
		}
	}
	return len(tr.Members) > 0
}

// metric is what a node has counted.
func metric(t testing.TB, n *cluster.Node, name string) int {
	t.Helper()
	for _, line := range strings.Split(n.MustCLI("metrics"), "\n") {
		if text, ok := strings.CutPrefix(line, "rdmcfs_"+name+" "); ok {
			count, err := strconv.Atoi(text)
			if err != nil {
				t.Fatalf("metrics printed %q", line)
			}
			return count
		}
	}
	t.Fatalf("%s has no metric %s", n.Name(), name)
	return 0
}

// Metrics of a writer that show what struck its transfers in their middle.
const (
	ejected      = "ejected_total"       // members that left a session before their vote
	epochs       = "epochs_total"        // sessions that went on without one that failed
	pushFailures = "push_failures_total" // sessions that came to nothing
)

// same fails the test unless all running nodes show the bytes of source. Bytes are compared and not digests, which
// take long in an emulated machine.
func same(t *testing.T, c *cluster.Cluster, source, name string) {
	t.Helper()
	for _, n := range c.Nodes {
		if !n.Running() {
			continue
		}
		if err := equal(source, n.Path(name)); err != nil {
			t.Errorf("%s: %v", n.Name(), err)
		}
	}
}

// equal compares two files.
func equal(a, b string) error {
	fa, err := os.Open(a)
	if err != nil {
		return err
	}
	defer fa.Close()
	fb, err := os.Open(b)
	if err != nil {
		return err
	}
	defer fb.Close()
	bufA, bufB := make([]byte, 1<<20), make([]byte, 1<<20)
	for at := int64(0); ; at += int64(len(bufA)) {
		nA, errA := io.ReadFull(fa, bufA)
		nB, errB := io.ReadFull(fb, bufB)
		if !bytes.Equal(bufA[:nA], bufB[:nB]) {
			return fmt.Errorf("%s and %s differ after byte %d: %d and %d bytes there", a, b, at, nA, nB)
		}
		if errA != nil || errB != nil {
			if atEnd(errA) && atEnd(errB) {
				return nil
			}
			return fmt.Errorf("read %s, %s: %w", a, b, errors.Join(errA, errB))
		}
	}
}

func atEnd(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }

// removal deletes the RDMA device in the background: kernels differ in whether the command waits for its users.
func removal(t *testing.T, device string) (wait func()) {
	t.Helper()
	cmd := exec.Command("rdma", "link", "delete", device)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	return func() {
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("rdma link delete: %v: %s", err, out.String())
			}
		case <-time.After(copyLimit):
			t.Error("rdma link delete still runs")
			cmd.Process.Kill()
		}
	}
}
