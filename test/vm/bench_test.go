package vm

import (
	"context"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/tools/bench"
	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// TestBench measures the multicast over libibverbs: the result says so, and the device's counters agree.
func TestBench(t *testing.T) {
	const size, rounds, members = 4 << 20, 2, 3
	device := rdmaDevice(t)
	before := sentPackets(t, device)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, cluster.Binary(t), "bench", "multicast", "--fabric", "verbs", "--members", "3",
		"--sizes", "4MiB", "--count", "2", "--json").Output()
	var r bench.Result
	if err == nil {
		err = json.Unmarshal(out, &r)
	}
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if !strings.HasPrefix(r.Fabric, "verbs:"+device) || len(r.Seconds) != rounds || r.Members != members {
		t.Errorf("%+v", r)
	}
	if packets := sentPackets(t, device) - before; packets < (members-1)*rounds*size/packetBytes {
		t.Errorf("%d packets can't have carried %d messages of %d bytes to %d members", packets, rounds, size, members-1)
	}
}
