package main

import (
	"slices"
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/exitcode"
	"github.com/rdmcfs/rdmcfs/internal/node"
)

func TestFabricFlags(t *testing.T) {
	for _, c := range []struct {
		flags fabricFlags
		want  node.Fabric
		words []string
	}{
		{fabricFlags{rdmaFlags: rdmaFlags{Fabric: "auto"}}, node.Fabric{Mode: node.FabricAuto}, []string{"--fabric=auto"}},
		{fabricFlags{rdmaFlags: rdmaFlags{Fabric: "tcp"}}, node.Fabric{Mode: node.FabricTCP}, []string{"--fabric=tcp"}},
		{fabricFlags{rdmaFlags: rdmaFlags{Fabric: "tcp"}, Registered: "64MiB"},
			node.Fabric{Mode: node.FabricTCP, Registered: 64 << 20}, []string{"--fabric=tcp", "--registered-memory=64MiB"}},
		{fabricFlags{rdmaFlags: rdmaFlags{Fabric: "verbs", RDMADevice: "mlx5_0"}},
			node.Fabric{Mode: node.FabricVerbs, Device: "mlx5_0"},
			[]string{"--fabric=verbs", "--rdma-device=mlx5_0"}},
		{fabricFlags{rdmaFlags: rdmaFlags{Fabric: "auto", RDMADevice: "rxe0/2", RDMAGID: "10.0.0.1"}},
			node.Fabric{Mode: node.FabricAuto, Device: "rxe0", Port: 2, GID: "10.0.0.1"},
			[]string{"--fabric=auto", "--rdma-device=rxe0/2", "--rdma-gid=10.0.0.1"}},
	} {
		got, err := c.flags.fabric()
		if err != nil || got != c.want || !slices.Equal(c.flags.words(), c.words) {
			t.Errorf("%+v: %+v, %v, %q", c.flags, got, err, c.flags.words())
		}
	}
}

func TestFabricFlagsRefused(t *testing.T) {
	for _, device := range []string{"rxe0/", "rxe0/0", "rxe0/x", "/1", "rxe0/256"} {
		expect(t, exitcode.Usage, "NAME/PORT", "doctor", "--rdma-device", device, "--data", dataDir(t))
	}
	for _, gid := range []string{"eth0", "-1", "256", "10.0.0"} {
		expect(t, exitcode.Usage, "an index", "doctor", "--rdma-gid="+gid, "--data", dataDir(t))
	}
	for _, size := range []string{"much", "1KiB", "-1"} {
		expect(t, exitcode.Usage, "at least 8", "doctor", "--registered-memory="+size, "--data", dataDir(t))
	}
	expect(t, exitcode.Usage, "must be one of", "doctor", "--fabric", "udp", "--data", dataDir(t))
	t.Setenv("RDMCFS_FABRIC", "ib")
	expect(t, exitcode.Usage, "must be one of", "doctor", "--data", dataDir(t))
}
