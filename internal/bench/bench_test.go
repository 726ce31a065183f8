package bench

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// memberFlag makes the test binary a member process instead of a test run.
const memberFlag = "-bench-member"

func TestMain(m *testing.M) {
	if slices.Contains(os.Args, memberFlag) {
		os.Exit(memberMain())
	}
	if slices.Contains(os.Args, faultFlag) {
		if err := RunFaultMember(context.Background(), os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if slices.Contains(os.Args, pinMemberArg) {
		if err := RunPinMember(context.Background(), os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if slices.Contains(os.Args, childFlag) {
		if err := RunChild(context.Background(), os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func memberMain() int {
	var cfg MemberConfig
	err := json.NewDecoder(os.Stdin).Decode(&cfg)
	if err == nil {
		var r MemberResult
		if r, err = RunMember(context.Background(), cfg); err == nil {
			err = json.NewEncoder(os.Stdout).Encode(r)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

var (
	shaped   = flag.Bool("shaped", false, "measure multicast over shaped links in network namespaces; needs root and iperf3")
	nodes    = flag.Int("nodes", 4, "shaped: number of nodes")
	rate     = flag.String("rate", "200mbit", "shaped: rate of each link")
	sizeMiB  = flag.Int("size", 128, "shaped: MiB per message")
	runs     = flag.Int("runs", 3, "shaped: process groups started, each for -messages")
	messages = flag.Int("messages", 1, "shaped: messages per process group")
	pause    = flag.Duration("pause", 0, "shaped: pause between messages")
	machine  = flag.String("machine-cc", "", "shaped: the nodes' default congestion control")
	blockKiB = flag.Int("block", 256, "shaped: KiB per block")
	settings = flag.String("settings", "{}", "shaped: JSON of a MemberConfig, several separated by ;")
)

// TestShaped prints the time of a multicast as a ratio to iperf3's for the same bytes.
func TestShaped(t *testing.T) {
	if !*shaped {
		t.Skip("needs -shaped")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	links, err := NewLinks(ctx, "../../test/netns/netns.sh", fmt.Sprint("b", os.Getpid()), *nodes, *rate, *machine)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := links.Close(); err != nil {
			t.Error(err)
		}
	}()
	size := uint64(*sizeMiB) << 20
	base, err := Iperf(ctx, links, 0, 1, size, "cubic")
	if err != nil {
		t.Fatal(err)
	}
	own, err := Iperf(ctx, links, 0, 1, size, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("n=%d %s %d MiB: iperf3 cubic %.3f s, machine's default %.3f s", *nodes, *rate, *sizeMiB, base.Seconds(), own.Seconds())
	for _, setting := range strings.Split(*settings, ";") {
		cfg := MemberConfig{Size: size, Messages: *messages, Pause: *pause, BlockSize: *blockKiB << 10}
		if err := json.Unmarshal([]byte(setting), &cfg); err != nil {
			t.Fatal(err)
		}
		measure(ctx, t, links, setting, cfg, base)
	}
}

// idleMin is the idle share below which a run says nothing about links.
const idleMin = 0.10

// tally collects what the runs of one setting measured.
type tally struct {
	ratios    []float64
	void      []float64 // ratios of runs without idle time
	cpu, gb   float64
	spread    float64
	idleLeast float64
}

func (y *tally) add(results []MemberResult, base time.Duration, size uint64) {
	for i, s := range results[0].Seconds {
		if results[0].Idle[i] < idleMin {
			y.void = append(y.void, s/base.Seconds())
			continue
		}
		y.ratios = append(y.ratios, s/base.Seconds())
		y.idleLeast = min(y.idleLeast, results[0].Idle[i])
		first, last := results[1].Seconds[i], results[1].Seconds[i]
		for _, r := range results[1:] {
			first, last = min(first, r.Seconds[i]), max(last, r.Seconds[i])
		}
		y.spread = max(y.spread, last/first-1)
	}
	for _, r := range results {
		y.cpu += r.CPUSeconds
	}
	y.gb += float64(len(results[0].Seconds)) * float64(size) * float64(len(results)-1) / 1e9
}

func (y *tally) String() string {
	if len(y.ratios) == 0 {
		return fmt.Sprintf("no valid run; void %.3f", y.void)
	}
	all := fmt.Sprintf("%.3f", y.ratios)
	slices.Sort(y.ratios)
	return fmt.Sprintf("median %.3f worst %.3f of %d; members within %.1f%%; %.2f CPU-s per GB delivered; idle >= %.0f%%; %s void %.3f",
		y.ratios[len(y.ratios)/2], y.ratios[len(y.ratios)-1], len(y.ratios), 100*y.spread, y.cpu/y.gb, 100*y.idleLeast, all, y.void)
}

func measure(ctx context.Context, t *testing.T, links *Links, setting string, cfg MemberConfig, base time.Duration) {
	t.Helper()
	y := tally{idleLeast: 1}
	for try := 0; try < 4**runs && len(y.ratios) < *runs**messages; try++ {
		results, err := Multicast(ctx, links, []string{os.Args[0], memberFlag}, cfg)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range results {
			if r.Digest != results[0].Digest {
				t.Fatalf("rank %d has other bytes", r.Rank)
			}
		}
		y.add(results, base, cfg.Size)
	}
	t.Logf("%s: %s", setting, &y)
}

func TestProcessorTimes(t *testing.T) {
	a, err := parseProcessorTimes("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 2 3\n")
	if err != nil || a != (ProcessorTimes{Idle: 850, Total: 1000}) {
		t.Fatalf("%+v, %v", a, err)
	}
	b := ProcessorTimes{Idle: 900, Total: 1100}
	if got := b.IdleSince(a); got != 0.5 {
		t.Fatalf("idle %v", got)
	}
	for _, bad := range []string{"", "cpu 1 2", "cpu a b c d e f g h"} {
		if _, err := parseProcessorTimes(bad); err == nil {
			t.Errorf("%q was parsed", bad)
		}
	}
}

// TestMembersInOneProcess runs a small group without namespaces.
func TestMembersInOneProcess(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	const n = 3
	results := make(chan MemberResult, n)
	for rank := range n {
		go func() {
			r, err := RunMember(ctx, MemberConfig{
				Rank: rank, Members: n, Room: "127.0.0.1:47001", Listen: "127.0.0.1:0",
				Size: 3 << 20, Messages: 2, BlockSize: 64 << 10,
			})
			if err != nil {
				t.Errorf("rank %d: %v", rank, err)
			}
			results <- r
		}()
	}
	first := <-results
	for range n - 1 {
		if r := <-results; r.Digest != first.Digest || len(r.Seconds) != 2 {
			t.Fatalf("%+v and %+v", r, first)
		}
	}
}
