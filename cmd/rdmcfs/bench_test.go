package main

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/exitcode"
	"github.com/rdmcfs/rdmcfs/internal/tools/bench"
)

func TestBenchMulticastHere(t *testing.T) {
	for rate, algorithm := range map[string]string{"100MB": "binomial-pipeline", "5GB": "chain"} {
		out := expect(t, exitcode.OK, "algorithm", "bench", "multicast", "--members", "3", "--sizes", "3MiB", "--count", "2",
			"--link-rate", rate)
		if lines := strings.Split(strings.TrimSpace(out), "\n"); len(lines) != 2 || !strings.Contains(lines[1], algorithm) {
			t.Errorf("links of %s a second: printed\n%s", rate, out)
		}
	}
	out := expect(t, exitcode.OK, "", "bench", "multicast", "--members", "3", "--sizes", "1,10KB", "--senders",
		"one,half,all",
		"--count", "1", "--batch", "20", "--algorithms", "all", "--csv")
	rows, err := csv.NewReader(strings.NewReader(out)).ReadAll()
	if want := 1 + 2*3*6; err != nil || len(rows) != want { // all except the hypercube
		t.Errorf("%d rows, want %d: %v", len(rows), want, err)
	}
}

// TestBenchMulticastOnSeveralMachines types the same line three times, except for rank and address.
func TestBenchMulticastOnSeveralMachines(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	room := listener.Addr().String()
	listener.Close() // free now; nobody else has been given it lately
	outs := make([]string, 3)
	var wg sync.WaitGroup
	for rank := range outs {
		wg.Go(func() {
			outs[rank] = expect(t, exitcode.OK, "", "bench", "multicast", "--members", "3", "--rank", string(rune('0'+rank)),
				"--room", room,
				"--listen", "127.0.0.1:0", "--sizes", "100KiB", "--count", "2", "--json")
		})
	}
	wg.Wait()
	var r bench.Result
	if err := json.Unmarshal([]byte(outs[0]), &r); err != nil || r.Members != 3 || r.Size != 100<<10 ||
		len(r.Seconds) != 2 {
		t.Errorf("rank 0 printed %q: %v", outs[0], err)
	}
	if outs[1]+outs[2] != "" {
		t.Errorf("the others printed %q", outs[1]+outs[2])
	}
}

func TestBenchExplain(t *testing.T) {
	out := expect(t, exitcode.OK, "step 0:  0 -b0-> 1", "bench", "multicast", "--members", "5", "--sizes", "1MiB,64",
		"--explain")
	for _, want := range []string{"circulant graph, 5 being no power of two", "small message: 64 bytes", "window of",
		"--link-rate tells it"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	expect(t, exitcode.OK, "blocks of 1024 KiB", "bench", "multicast", "--sizes", "1GiB", "--link-rate", "3GB",
		"--explain")
	for fabric, algorithm := range map[string]string{"tcp": "chain: ", "verbs": "binomial-pipeline as a hypercube"} {
		expect(t, exitcode.OK, algorithm, "bench", "multicast", "--sizes", "1GiB", "--link-rate", "5GB", "--explain",
			"--fabric", fabric)
	}
	expect(t, exitcode.OK, "blocks of 64 KiB: links of 25 MB/s are slow", "bench", "multicast", "--sizes", "1GiB",
		"--link-rate", "25MB", "--explain")
}

func TestBenchRefuses(t *testing.T) {
	for _, c := range []struct {
		code int
		text string
		args string
	}{
		{exitcode.Usage, "--members 2 to", "--members 1"},
		{exitcode.Usage, "like 64KiB", "--sizes 12parsec"},
		{exitcode.Usage, "or auto", "--blocks 0"},
		{exitcode.Usage, "like 64KiB", "--link-rate fast"},
		{exitcode.Usage, "binomial-tree", "--algorithms carousel"},
		{exitcode.Usage, "binomial-tree", "--algorithms all,carousel"},
		{exitcode.Usage, "--window", "--window 100000000000"},
		{exitcode.Usage, "--sends", "--sends 16385"},
		{exitcode.Usage, "power of two", "--members 5 --algorithms hypercube"},
		{exitcode.Usage, "racks of the members", "--members 4 --algorithms hybrid"},
		{exitcode.Usage, "one, half or all", "--senders some"},
		{exitcode.Usage, "--groups 2 to 4", "--groups 5"},
		{exitcode.Usage, "--batch", "--batch 100000"},
		{exitcode.Usage, "--rank 0 to 3", "--room 10.0.0.1:7500"},
		{exitcode.Usage, "--listen", "--rank 0 --room 10.0.0.1:7500"},
		{exitcode.Usage, "an address of this host", "--rank 1 --room 127.0.0.1:1 --listen 0.0.0.0:0 --wait 50ms"},
		{exitcode.Usage, "an address of this host", "--rank 1 --room 127.0.0.1:1 --listen [::]:7501 --wait 50ms"},
		{exitcode.Usage, "an address of this host", "--rank 1 --room 127.0.0.1:1 --listen :7501 --wait 50ms"},
		{exitcode.Usage, "give HOST:PORT", "--rank 1 --room nonsense --listen 127.0.0.1:0"},
		{exitcode.Usage, "give HOST:PORT", "--rank 1 --room 127.0.0.1:65536 --listen 127.0.0.1:0"},
		{exitcode.Usage, "give IP:PORT", "--rank 1 --room 127.0.0.1:1 --listen 127.0.0.1"},
		{exitcode.Usage, "--script makes", "--script /nowhere"},
		{exitcode.Usage, "give 0 to 3", "--rank 4 --room 10.0.0.1:7500 --listen 10.0.0.1:0"},
		{exitcode.Usage, "give one of them", "--csv --json"},
		{exitcode.Usage, "prints text", "--explain --json"},
		{exitcode.Usage, "prints text", "--explain --csv"},
		{exitcode.Usage, "above 0", "--wait 0s"},
		{exitcode.Usage, "for one machine", "--rank 0 --room 10.0.0.1:7500 --listen 10.0.0.1:0 --namespaces x"},
		{exitcode.Usage, "give 0 to 3", "--rank=-2"},
		{exitcode.Usage, "give these too", "--rate 10mbit"},
		{exitcode.Usage, "tcp_available_congestion_control", "--congestion carousel"},
		{exitcode.Full, "smaller --sizes", "--sizes 1TiB"},
		{exitcode.Full, "smaller --sizes", "--sizes 256TiB --batch 2048 --members 32"}, // 2^64 bytes in all
		{exitcode.Full, "fewer --senders or --members", "--members 1024 --batch 4000 --sizes 256KiB"},
		{exitcode.NotFound, "netns.sh", "--namespaces x --script /nowhere"},
		{exitcode.Timeout, "ranks [1 2 3] did not come", "--rank 0 --room 127.0.0.1:0 --listen 127.0.0.1:0 --wait 50ms"},
		{exitcode.Timeout, "rank 0 does not answer", "--rank 1 --room 127.0.0.1:1 --listen 127.0.0.1:0 --wait 50ms"},
		{exitcode.Failure, "give a free address", "--rank 1 --room 127.0.0.1:1 --listen 192.0.2.1:0"},
	} {
		expect(t, c.code, c.text, append([]string{"bench", "multicast", "--sizes", "1KiB"}, strings.Fields(c.args)...)...)
	}
}

func TestTooLittleMemory(t *testing.T) {
	if err := fits(1<<60, "smaller"); codeOf(err) != exitcode.Full {
		t.Error(err)
	}
}

func TestBenchInNamespaces(t *testing.T) {
	prefix := fmt.Sprint("bt", os.Getpid()) // nobody else's
	if os.Geteuid() != 0 {
		expect(t, exitcode.Denied, "sudo", "bench", "multicast", "--namespaces", prefix, "--script",
			"../../test/netns/netns.sh")
		return
	}
	expect(t, exitcode.OK, "64KiB", "bench", "multicast", "--namespaces", prefix, "--rate", "1gbit", "--script",
		"../../test/netns/netns.sh",
		"--members", "3", "--sizes", "1MiB", "--count", "1")
	if _, err := os.Stat("/run/netns/" + prefix + "-0"); err == nil {
		t.Error("the namespaces are still there")
	}
}
