package vm

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// shorterCut is what is left of a file of smallBytes: amid a block and a page.
const shorterCut = 9<<20 + 1234

// getsShorter: a file is cut while the device carries it, and another node sends one too. No session ends for that:
// both copies succeed, and all nodes have the shortened file. A cut that came too late is made again.
func getsShorter(t *testing.T, c *cluster.Cluster, device, small string) {
	writer := c.Nodes[0]
	want := filepath.Join(c.Dir, "shorter")
	firstBytes(t, small, want)
	before, failures := now(t, c, device), metric(t, writer, pushFailures)
	for i := 1; ; i++ {
		if i > blowsMax {
			t.Fatalf("%d cuts came too late", blowsMax)
		}
		name, beside := fmt.Sprint("shorter", i), fmt.Sprint("beside", i)
		other := startCopy(t, small, c.Nodes[1].Path(beside))
		cp := startCopy(t, small, writer.Path(name))
		moving := cp.awaitMoving(c, writer, 0.05)
		struck := cutInPlace(t, writer, name) && moving
		cp.wait()
		other.wait()
		c.AwaitNothingOwed(catchUp)
		same(t, c, want, name)
		same(t, c, small, beside)
		if struck {
			break
		}
	}
	if after := metric(t, writer, pushFailures); after != failures {
		t.Errorf("%d pushes failed", after-failures)
	}
	if moved := now(t, c, device).since(before); moved.packets < 3*smallBytes/packetBytes {
		t.Errorf("%d packets can't have carried a file of %d bytes to three members", moved.packets, smallBytes)
	}
}

// cutInPlace cuts a file by a descriptor, which needs no other node, and publishes that by closing it. It reports
// whether the version before was still on its way when the file was cut.
func cutInPlace(t *testing.T, writer *cluster.Node, name string) (struck bool) {
	t.Helper()
	f, err := os.OpenFile(writer.Path(name), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	err = f.Truncate(shorterCut)
	struck = inMidSend(writer)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		t.Fatalf("cut %s: %v", name, err)
	}
	return struck
}

// inMidSend reports whether a version of the length before the cut is still on its way.
func inMidSend(writer *cluster.Node) bool {
	for _, tr := range writer.Status().Transfers {
		if tr.SizeBytes == smallBytes && inMiddle(&tr, 0) {
			return true
		}
	}
	return false
}

// firstBytes makes a file of the first shorterCut bytes of another.
func firstBytes(t *testing.T, source, path string) {
	t.Helper()
	from, err := os.Open(source)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	to, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.CopyN(to, from, shorterCut)
	if closeErr := to.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		t.Fatal(err)
	}
}
