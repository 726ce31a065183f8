package vm

import (
	"bytes"
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

var wire = flag.Bool("wire", false, "start the two virtual machines of TestWire")

const wireLimit = 15 * time.Minute // of two emulated machines beside each other, on a busy one

// kernelsOfWire are those of end 1 and end 2: so the kernels are held to each other too.
var kernelsOfWire = [2]string{"6.12", "6.1"}

// TestWire joins two machines by a wire that QEMU records. Their queue pairs exchange messages, writes and reads over
// RoCE, first undisturbed and then with packets lost, and one exchanges messages with a program of rdma-core; see
// TestWireEnd. What went over the wire is read by tshark, which knows nothing of ours.
func TestWire(t *testing.T) {
	if !*wire {
		t.Skip("starts virtual machines: run it with -wire, as 'make test-rdma' does")
	}
	dir, err := os.MkdirTemp("", "rdmcfs-wire") // sockets need a short path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if os.Getenv("RDMCFS_TEST_KEEP") != "" {
			t.Logf("kept %s", dir)
			return
		}
		os.RemoveAll(dir)
	})
	ctx, cancel := context.WithTimeout(t.Context(), wireLimit)
	defer cancel()
	var ends sync.WaitGroup // each is bound to end by ctx
	for i := range kernelsOfWire {
		ends.Go(func() {
			if err := runEnd(ctx, t, dir, i+1); err != nil {
				t.Errorf("end %d: %v", i+1, err)
				cancel()
			}
		})
	}
	ends.Wait()
	if t.Failed() {
		return
	}
	read := readCapture(ctx, t, filepath.Join(dir, "wire.pcap"))
	for _, phase := range phases {
		t.Run(phase, func(t *testing.T) { read.check(t, phase) })
	}
}

// runEnd runs TestWireEnd as one end of the wire, and the other side of the exchange with ibv_rc_pingpong.
func runEnd(ctx context.Context, t *testing.T, dir string, end int) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	n := strconv.Itoa(end)
	cmd := exec.CommandContext(ctx, filepath.Join(cluster.Root(t), "test/vm/run.sh"), "-k", kernelsOfWire[end-1], "-c",
		"1", "-w", n+":"+dir,
		"-t", strconv.Itoa(int(wireLimit.Seconds())), "-e", endVariable, "-e", "RDMCFS_BIN", self, "-test.run",
		"^TestWireEnd$", "-test.v")
	cmd.Env = append(os.Environ(), endVariable+"="+n)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it ends its machine
	cmd.WaitDelay = 20 * time.Second
	err = cmd.Run()
	t.Logf("end %d, Linux %s:\n\t%s", end, kernelsOfWire[end-1],
		strings.ReplaceAll(strings.TrimSpace(out.String()), "\n", "\n\t"))
	return err
}
