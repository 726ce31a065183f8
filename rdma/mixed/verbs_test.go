//go:build linux && (amd64 || arm64) && !nordma

package mixed

import (
	"os"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/rdmatest"
	"github.com/rdmcfs/rdmcfs/rdma/verbs"
)

// verbsTcp is a device of verbs, at one of the VM's addresses, and tcp.
func verbsTcp(t testing.TB, gid string) *Device {
	t.Helper()
	name := os.Getenv("RDMCFS_TEST_VERBS")
	if name == "" {
		t.Skip("needs an RDMA device: run the test binary by test/vm/run.sh")
	}
	v, err := verbs.Open(verbs.Config{Device: name, GID: gid, PeerTimeout: time.Second, ReceiverTimeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("RDMCFS_TEST_ORDERED") != "" {
		v = rdmatest.Ordered{Device: v}
	}
	return newMixed(t, devices(v, tcpDevice(t)))
}

func TestVerbsConformance(t *testing.T) {
	rdmatest.Run(t, func(t testing.TB) rdmatest.Pair {
		a, b := verbsTcp(t, "10.77.0.1"), verbsTcp(t, "10.77.0.2")
		return rdmatest.Pair{Devices: []rdma.Device{a, b}, Patience: 30 * time.Second}
	})
}

// TestVerbsCarries: verbs is what two devices that have it choose, with keys of later regions too.
func TestVerbsCarries(t *testing.T) {
	a, b := link(t, verbsTcp(t, "10.77.0.1"), verbsTcp(t, "10.77.0.2"), 16)
	if got := carrierOf(a.qp); got != "verbs:rxe0/1" {
		t.Errorf("carried by %q", got)
	}
	later, err := b.dev.AllocRegion(4096, rdma.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	*wordAt(a.mem, 0) = 5
	wr := rdma.SendWR{Op: rdma.OpWrite, List: a.list(0, 8), RemoteKey: later.Key(), RemoteAddr: 64, Unsignaled: true}
	if err := a.qp.PostSend(wr); err != nil {
		t.Fatal(err)
	}
	awaitWord(t, later, 64, 5)
}

func TestVerbsMulticastInMixedCluster(t *testing.T) {
	all := []*Device{verbsTcp(t, "10.77.0.1"), verbsTcp(t, "10.77.0.2"),
		newMixed(t, devices(tcpDevice(t))), newMixed(t, devices(tcpDevice(t)))}
	groups, err := formGroup(t, newEngines(t, all), 1, 3*patience)
	if err != nil {
		t.Fatal(err)
	}
	carriesBoth(t, all)
	multicast(t, groups)
}
