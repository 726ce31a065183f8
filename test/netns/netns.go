// Package netns makes hosts out of network namespaces: N namespaces on one bridge, each link shaped full
// duplex. The bridge lives in a namespace of its own, so no route leads out.
//
// Shaping is a token bucket on both ends of each link. The queue of a switch port is a byte FIFO with tail
// drop, as on a switch.
package netns

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
)

// Net is a set of connected namespaces.
type Net struct {
	tb     testing.TB
	prefix string
	hosts  int
}

const (
	queueMillis   = 20        // of a port's queue at its rate
	burstBytesMin = 128 << 10 // two 64 KiB segments that the kernel hands over as one
	hostsMax      = 250
)

var made atomic.Int32

// New makes n hosts with links of the given rate in tc(8) syntax, "" for unshaped. It needs root. The test's
// cleanup removes them with all processes inside.
func New(tb testing.TB, n int, rate string) *Net {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Fatal("network namespaces need root")
	}
	if n < 1 || n > hostsMax {
		tb.Fatalf("netns: %d hosts: want 1 to %d", n, hostsMax)
	}
	net := &Net{tb: tb, prefix: fmt.Sprintf("rt%d-%d-", os.Getpid(), made.Add(1)), hosts: n}
	tb.Cleanup(net.remove)
	sw := net.prefix + "sw"
	net.ip("netns", "add", sw)
	net.ip("-n", sw, "link", "add", "br0", "type", "bridge", "mcast_snooping", "0", "stp_state", "0")
	net.ip("-n", sw, "link", "set", "br0", "up")
	for i := range n {
		net.addHost(sw, i, rate)
	}
	return net
}

func (net *Net) addHost(sw string, i int, rate string) {
	net.tb.Helper()
	ns, port := net.Name(i), fmt.Sprintf("p%d", i)
	net.ip("netns", "add", ns)
	net.ip("-n", ns, "link", "set", "lo", "up")
	net.ip("-n", ns, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", sw)
	net.ip("-n", ns, "addr", "add", net.IP(i)+"/24", "dev", "eth0")
	net.ip("-n", ns, "link", "set", "eth0", "up")
	net.ip("-n", sw, "link", "set", port, "master", "br0", "up")
	if rate != "" {
		net.Shape(i, rate)
	}
}

// Shape sets the rate of host i's link, both ways.
func (net *Net) Shape(i int, rate string) {
	net.tb.Helper()
	bytesPerSec := rateBytes(net.tb, rate)
	burst := max(burstBytesMin, bytesPerSec/500)
	limit := burst + bytesPerSec*queueMillis/1000
	args := []string{"root", "handle", "1:", "tbf", "rate", rate, "burst", strconv.Itoa(burst), "limit",
		strconv.Itoa(limit)}
	net.tc(net.Name(i), append([]string{"qdisc", "replace", "dev", "eth0"}, args...)...)
	net.tc(net.prefix+"sw", append([]string{"qdisc", "replace", "dev", fmt.Sprintf("p%d", i)}, args...)...)
}

// Cut takes host i's link down (or up again).
func (net *Net) Cut(i int, down bool) {
	net.tb.Helper()
	state := "up"
	if down {
		state = "down"
	}
	net.ip("-n", net.prefix+"sw", "link", "set", fmt.Sprintf("p%d", i), state)
}

// Drop loses the packets that host i sends ("output") or that come to it ("input"), or no longer. The link stays up.
func (net *Net) Drop(i int, hook string, on bool) {
	net.tb.Helper()
	table := "inet drop_" + hook
	rules := "delete table " + table
	if on {
		dev := map[string]string{"output": "oifname", "input": "iifname"}[hook]
		rules = fmt.Sprintf("add table %s; add chain %s c { type filter hook %s priority 0; }; add rule %s c %s eth0 drop",
			table, table, hook, table, dev)
	}
	net.ip("netns", "exec", net.Name(i), "nft", rules)
}

// DropTo loses packets that host i sends to host j: all of them, or what goes beyond perSec a second if that is not
// 0. Undrop ends it.
func (net *Net) DropTo(i, j, perSec int) {
	net.tb.Helper()
	limit := ""
	if perSec > 0 {
		limit = fmt.Sprintf("limit rate over %d/second ", perSec)
	}
	net.ip("netns", "exec", net.Name(i), "nft",
		"add table ip drop_to; add chain ip drop_to c { type filter hook output priority 0; }; "+
			fmt.Sprintf("add rule ip drop_to c ip daddr %s %sdrop", net.IP(j), limit))
}

// Undrop ends DropTo of host i.
func (net *Net) Undrop(i int) {
	net.tb.Helper()
	net.ip("netns", "exec", net.Name(i), "nft", "delete table ip drop_to")
}

// Name is the namespace of host i.
func (net *Net) Name(i int) string { return fmt.Sprintf("%s%d", net.prefix, i) }

// IP is the address of host i.
func (net *Net) IP(i int) string { return fmt.Sprintf("10.99.0.%d", i+1) }

// Wrap makes argv run on host i. Mounts stay those of the caller.
func (net *Net) Wrap(i int, argv []string) []string {
	return append([]string{"nsenter", "--net=/run/netns/" + net.Name(i), "--"}, argv...)
}

// Command prepares a command on host i.
func (net *Net) Command(i int, name string, args ...string) *exec.Cmd {
	argv := net.Wrap(i, append([]string{name}, args...))
	return exec.Command(argv[0], argv[1:]...)
}

func (net *Net) remove() {
	names := []string{net.prefix + "sw"}
	for i := range net.hosts {
		names = append(names, net.Name(i))
	}
	for _, name := range names {
		out, err := exec.Command("ip", "netns", "pids", name).Output()
		if err != nil {
			continue
		}
		for _, pid := range strings.Fields(string(out)) {
			exec.Command("kill", "-9", pid).Run()
		}
		exec.Command("ip", "netns", "del", name).Run()
	}
}

func (net *Net) ip(args ...string) {
	net.tb.Helper()
	net.run("ip", args...)
}

func (net *Net) tc(ns string, args ...string) {
	net.tb.Helper()
	net.run("ip", append([]string{"netns", "exec", ns, "tc"}, args...)...)
}

func (net *Net) run(name string, args ...string) {
	net.tb.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		net.tb.Fatalf("netns: %s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
}

// rateBytes turns "200mbit" into bytes a second.
func rateBytes(tb testing.TB, rate string) int {
	tb.Helper()
	for suffix, scale := range map[string]float64{"kbit": 1e3, "mbit": 1e6, "gbit": 1e9} {
		if digits, ok := strings.CutSuffix(rate, suffix); ok {
			n, err := strconv.ParseFloat(digits, 64)
			if err == nil && n > 0 {
				return int(n * scale / 8)
			}
		}
	}
	tb.Fatalf("netns: rate %q: want a number with kbit, mbit or gbit", rate)
	return 0
}
