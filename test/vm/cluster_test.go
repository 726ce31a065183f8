package vm

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/tools/doctor"
	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

const (
	treeFiles  = 200
	imageBytes = 64 << 20
	smallBytes = 32 << 20 // of images that something happens to
	blowsMax   = 4        // until one hits in mid-transfer
)

// TestCluster runs four nodes with real mounts over libibverbs, through what an evening may bring: files, an image,
// one that is cut on its way, a member that is killed, one that comes back without RDMA, and the loss of the RDMA
// device itself. In an emulated machine with little processor time a member may stall and be left out of a transfer:
// so what is owed is awaited before bytes are counted.
func TestCluster(t *testing.T) {
	device := rdmaDevice(t)
	c := cluster.Start(t, cluster.Options{Nodes: 4, Patience: patience, Env: []string{"RDMCFS_FABRIC=verbs"}})
	small := filepath.Join(c.Dir, "small")
	cluster.Random(t, small, smallBytes, 2)
	for _, step := range []struct {
		name string
		do   func(t *testing.T, c *cluster.Cluster, device, small string)
	}{
		{"Doctor", doctorSays}, {"Control", controlOverRings}, {"Files", files}, {"Image", wholeImage},
		{"GetsShorter", getsShorter}, {"MemberDies", memberDies},
		{"MemberWithoutRDMA", memberWithoutRDMA}, {"DeviceIsLost", deviceIsLost},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.do(t, c, device, small) }) {
			return // the next ones need what this one leaves
		}
	}
}

// doctorSays: passthrough is on in this kernel, and the RDMA device is what would be used.
func doctorSays(t *testing.T, c *cluster.Cluster, device, _ string) {
	n := c.Nodes[0]
	var findings []doctor.Finding
	if err := json.Unmarshal([]byte(n.MustCLI("doctor", "--fabric", "verbs", "--json")), &findings); err != nil {
		t.Fatal(err)
	}
	for topic, want := range map[string]string{
		"passthrough": "on", "fabric": "verbs:" + device, "rdma": "RoCE v2", "locked memory": "enough",
	} {
		found := ""
		for _, f := range findings {
			if f.Topic == topic && f.Level == doctor.OK {
				found += f.Text + "\n"
			}
		}
		if !strings.Contains(found, want) {
			t.Errorf("doctor says %q of %s, want %q in it\n%+v", found, topic, want, findings)
		}
	}
	if st := n.Status(); !st.Passthrough.On || !strings.HasPrefix(st.Fabric, "verbs:"+device) {
		t.Errorf("status says: passthrough %+v, fabric %q", st.Passthrough, st.Fabric)
	}
}

// startsMax is how often a node is started until some of its connections of control go over the device.
const startsMax = 4

// controlOverRings: each node has connections of control that go over the device. A connection whose ends do not agree
// within a second, as on a machine that has much else to do, stays on TCP; so a node that has none over the device is
// started again.
func controlOverRings(t *testing.T, c *cluster.Cluster, device, _ string) {
	for _, n := range c.Nodes {
		for starts := 1; !controlMoves(n); starts++ {
			if starts == startsMax {
				t.Fatalf("no connection of %s goes over %s, after %d starts", n.Name(), device, starts)
			}
			t.Logf("%s is started again", n.Name())
			n.Restart()
			c.AwaitUp(c.Nodes...)
		}
	}
}

// controlMoves reports whether connections of a node's control go over the device, now or soon.
func controlMoves(n *cluster.Node) bool {
	for deadline := time.Now().Add(patience * time.Second); time.Now().Before(deadline); <-time.After(100 *
		time.Millisecond) {
		if n.Status().ControlRings > 0 {
			return true
		}
	}
	return false
}

// files: a tree of 200 files of many sizes, of which the larger ones go by multicast.
func files(t *testing.T, c *cluster.Cluster, device, _ string) {
	tree := filepath.Join(c.Dir, "tree")
	if err := os.Mkdir(tree, 0o755); err != nil {
		t.Fatal(err)
	}
	var large int64
	for i := range treeFiles {
		size := int64(100 + 331*i)
		if i%20 == 0 {
			size = 1<<20 + int64(i)*1009
			large += size
		}
		cluster.Random(t, filepath.Join(tree, fmt.Sprintf("file%d", i)), size, uint64(i+10))
	}
	before := sentPackets(t, device)
	startCopy(t, tree, c.Nodes[1].Path("tree")).wait()
	c.AwaitNothingOwed(catchUp)
	for i := range treeFiles {
		same(t, c, filepath.Join(tree, fmt.Sprintf("file%d", i)), fmt.Sprintf("tree/file%d", i))
	}
	for _, n := range c.Nodes {
		if names, err := os.ReadDir(n.Path("tree")); err != nil || len(names) != treeFiles {
			t.Errorf("%s shows %d files (%v), want %d", n.Name(), len(names), err, treeFiles)
		}
	}
	if packets := sentPackets(t, device) - before; packets < 3*large/packetBytes {
		t.Errorf("%d packets can't have carried the %d bytes of large files to three members", packets, large)
	}
}

// wholeImage: an image goes over the RDMA device, by its counters, and hardly a byte over TCP.
func wholeImage(t *testing.T, c *cluster.Cluster, device, _ string) {
	image := filepath.Join(c.Dir, "image")
	cluster.Random(t, image, imageBytes, 1)
	before := now(t, c, device)
	startCopy(t, image, c.Nodes[0].Path("image")).wait()
	c.AwaitNothingOwed(catchUp)
	now(t, c, device).since(before).overVerbs(t, 3*imageBytes)
	same(t, c, image, "image")
}

// memberDies: a member is killed in mid-transfer; the others get the file, it is owed, and it gets it when it is back.
// It comes back without RDMA. A blow that came too late, by the writer's counters, is dealt again.
func memberDies(t *testing.T, c *cluster.Cluster, _, small string) {
	writer, victim := c.Nodes[0], c.Nodes[3]
	for i := 1; ; i++ {
		if i > blowsMax {
			t.Fatalf("%d blows came too late", blowsMax)
		}
		name, before := fmt.Sprint("second", i), metric(t, writer, ejected)
		cp := startCopy(t, small, writer.Path(name))
		moving := cp.awaitMoving(c, writer, 0.05)
		victim.Kill()
		cp.wait()
		same(t, c, small, name)
		struck := moving && metric(t, writer, ejected) > before
		if struck {
			if owed := owedTo(writer, victim); owed == 0 {
				t.Errorf("nothing is owed to %s", victim.Name())
			}
			victim.Env = []string{"RDMCFS_FABRIC=tcp"}
		}
		victim.Start()
		c.AwaitUp(c.Nodes...)
		c.AwaitNothingOwed(catchUp)
		same(t, c, small, name)
		if struck {
			return
		}
	}
}

func owedTo(seer, n *cluster.Node) (owed int) {
	for _, have := range seer.Status().Nodes {
		if have.Name == n.Name() {
			owed = have.OwedCount
		}
	}
	return owed
}

// memberWithoutRDMA: each pair of nodes uses the best transport that both have; a node that has only TCP gets the file
// too.
func memberWithoutRDMA(t *testing.T, c *cluster.Cluster, device, small string) {
	if got := c.Nodes[3].Status().Fabric; !strings.HasPrefix(got, "tcp") {
		t.Fatalf("fabric of the node without RDMA: %q", got)
	}
	if rings := c.Nodes[3].Status().ControlRings; rings != 0 {
		t.Errorf("%d connections of the node without RDMA go over it", rings)
	}
	before := now(t, c, device)
	startCopy(t, small, c.Nodes[1].Path("third")).wait()
	c.AwaitNothingOwed(catchUp)
	moved := now(t, c, device).since(before)
	t.Logf("%+v", moved)
	if moved.packets < smallBytes/packetBytes || moved.tcp < smallBytes {
		t.Errorf("not both have carried the image: %+v", moved)
	}
	same(t, c, small, "third")
}

// deviceIsLost: all nodes are on RDMA again, and the device is removed in mid-transfer. The nodes say so, the
// transfer is finished over TCP, and who was suspected and left out has the file soon.
func deviceIsLost(t *testing.T, c *cluster.Cluster, device, _ string) {
	writer, last, image := c.Nodes[0], c.Nodes[3], filepath.Join(c.Dir, "image")
	last.Env = nil
	last.Restart()
	c.AwaitUp(c.Nodes...)
	epochsBefore, before := metric(t, writer, epochs), now(t, c, device)
	cp := startCopy(t, image, writer.Path("fourth"))
	if !cp.awaitMoving(c, writer, 0.05) {
		t.Fatal("the copy ended before anything was seen of it")
	}
	if packets := sentPackets(t, device) - before.packets; packets < 3*imageBytes/20/packetBytes {
		t.Errorf("%d packets can't have carried a twentieth to three members", packets)
	}
	wait := removal(t, device)
	cp.wait()
	if metric(t, writer, epochs) == epochsBefore {
		t.Error("the device was not lost in mid-transfer")
	}
	c.AwaitNothingOwed(catchUp)
	same(t, c, image, "fourth")
	if moved := tcpBytes(t, c) - before.tcp; moved < imageBytes {
		t.Errorf("only %d bytes went over TCP", moved)
	}
	for _, n := range c.Nodes {
		if got := n.Status().Fabric; !strings.Contains(got, "device gone") {
			t.Errorf("%s does not tell that its device is gone: %q", n.Name(), got)
		}
		if rings := n.Status().ControlRings; rings != 0 {
			t.Errorf("%d connections of %s go over a device that is gone", rings, n.Name())
		}
	}
	began := time.Now()
	for _, n := range c.Nodes {
		n.Stop()
	}
	stopped := time.Now()
	wait()
	t.Logf("the nodes ended in %v, the removal %v later", stopped.Sub(began), time.Since(stopped))
}
