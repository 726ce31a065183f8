package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/bench"
	"github.com/rdmcfs/rdmcfs/internal/exitcode"
)

// TestBenchFault strikes nodes on this machine, as a user would.
func TestBenchFault(t *testing.T) {
	small := strings.Fields("bench multicast --members 4 --sizes 2MiB")
	expect(t, exitcode.OK, "verified     all bytes, at ranks [0", append(small, "--fault", "kill")...)
	expect(t, exitcode.OK, "out          nobody", append(small, "--fault", "none", "--count", "3")...)
	out := expect(t, exitcode.OK, "", append(small, "--fault", "stop", "--victim", "relay", "--detect", "5s", "--at", "30", "--json")...)
	var r bench.FaultResult
	if err := json.Unmarshal([]byte(out), &r); err != nil || r.VictimRank < 1 || r.At != 0.3 || len(r.Verified) != 3 || len(r.Out) != 1 {
		t.Errorf("%s: %v", out, err)
	}
}

func TestBenchFaultRefuses(t *testing.T) {
	for _, c := range []struct{ text, args string }{
		{"kill, stop, cut or none", "--fault bribe"},
		{"leaf, relay or root", "--fault kill --victim mayor"},
		{"like 50%", "--fault kill --at noon"},
		{"0% to 100%", "--fault kill --at 150%"},
		{"--detect", "--fault kill --detect 1ms"},
		{"chooses by itself", "--fault kill --blocks 1KiB"},
		{"chooses by itself", "--fault kill --algorithms chain"},
		{"one case", "--fault kill --sizes 2MiB,3MiB"},
		{"one case", "--fault kill --senders all"},
		{"one file at a time", "--fault kill --batch 2"},
		{"one file at a time", "--fault kill --depth 1"},
		{"for one machine", "--fault kill --rank 0 --room 10.0.0.1:7500 --listen 10.0.0.1:0"},
		{"--csv", "--fault kill --csv"},
	} {
		expect(t, exitcode.Usage, c.text, append([]string{"bench", "multicast", "--sizes", "2MiB"}, strings.Fields(c.args)...)...)
	}
	expect(t, exitcode.Usage, "above 1MiB", "bench", "multicast", "--sizes", "1MiB", "--fault", "kill")
}

func TestBenchFaultInNamespaces(t *testing.T) {
	prefix := fmt.Sprint("bf", os.Getpid()) // nobody else's
	line := strings.Fields("bench multicast --namespaces " + prefix + " --rate 200mbit --script ../../test/netns/netns.sh --members 4 --sizes 32MiB --at 20% --fault cut")
	if os.Geteuid() != 0 {
		expect(t, exitcode.Denied, "sudo", line...)
		return
	}
	expect(t, exitcode.OK, "verified     all bytes", line...)
	if _, err := os.Stat("/run/netns/" + prefix + "-0"); err == nil {
		t.Error("the namespaces are still there")
	}
}
