package bench

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

func TestMedianAndQuantile(t *testing.T) {
	for _, c := range []struct {
		values    []float64
		median, q float64
	}{
		{[]float64{3}, 3, 3}, {[]float64{4, 1}, 2.5, 4}, {[]float64{9, 1, 5}, 5, 9}, {[]float64{4, 3, 2, 1}, 2.5, 4},
	} {
		if m, q := Median(c.values), Quantile(c.values, 0.99); m != c.median || q != c.q {
			t.Errorf("%v: median %v, 99%% %v", c.values, m, q)
		}
	}
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(100 - i)
	}
	if q := Quantile(hundred, 0.99); q != 99 || !math.IsNaN(Median(nil)) || !math.IsNaN(Quantile(nil, 0.5)) {
		t.Errorf("99%% of 1..100 is %v", q)
	}
}

// The bounds for 20 pairs are the 6th and the 15th value, with 95.9%: any table of the sign test has them.
func TestParseBlocks(t *testing.T) {
	if got, err := ParseBytes("64 kibble"); !errors.Is(err, ErrUsage) {
		t.Errorf("%d, %v", got, err)
	}
	if got, err := ParseBlocks([]string{"auto", "64KiB"}); err != nil || !slices.Equal(got, []int{0, 65536}) {
		t.Errorf("blocks %v, %v", got, err)
	}
	for _, bad := range []string{"0", "4GiB", "x"} {
		if got, err := ParseBlocks([]string{bad}); !errors.Is(err, ErrUsage) {
			t.Errorf("block %q: %v, %v", bad, got, err)
		}
	}
}

func goodPlan() Plan {
	return Plan{Members: 8, Sizes: []uint64{1, 1 << 20}, BlockSizes: []int{0, 4096}, Algorithms: []string{Auto, "chain"},
		Senders: []string{"one", "half", "all"}, GroupSizes: []int{3, 8}, Rounds: 2, Batch: 5}
}

func TestCases(t *testing.T) {
	cases, err := goodPlan().Cases()
	if err != nil || len(cases) != 2*3*2*2*2 {
		t.Fatalf("%d cases, %v", len(cases), err)
	}
	var senders []int
	for _, c := range cases {
		if !slices.Contains(senders, c.Members*10+c.Senders) {
			senders = append(senders, c.Members*10+c.Senders)
		}
		if c.Depth != 5 || c.Rounds != 2 || c.Batch != 5 || c.Window < 2 || c.BlockSize < 1 {
			t.Errorf("%+v", c)
		}
	}
	if want := []int{31, 32, 33, 81, 84, 88}; !slices.Equal(senders, want) {
		t.Errorf("members and senders %v, want %v", senders, want)
	}
	if n, err := goodPlan().Memory(1); err != nil || n != 8*5<<20 {
		t.Errorf("memory %d, %v", n, err)
	}
	huge := goodPlan()
	huge.Members, huge.GroupSizes, huge.Sizes, huge.BlockSizes, huge.Batch = 1024, nil, []uint64{1 << 48}, []int{1 << 20},
		4000
	if n, err := huge.Memory(1); err != nil || n != math.MaxInt64 {
		t.Errorf("memory of nearly 2^70 bytes: %d, %v", n, err)
	}
	if names := goodPlan().AllAlgorithms(); slices.Contains(names, "hypercube") || !slices.Contains(names, "twin") {
		t.Errorf("all algorithms of 3 and 8: %v", names)
	}
}

func TestUnusablePlans(t *testing.T) {
	for word, spoil := range map[string]func(*Plan){
		"--members": func(p *Plan) { p.Members = 1 },
		"--groups":  func(p *Plan) { p.GroupSizes = []int{9} },
		"--sizes":   func(p *Plan) { p.Sizes = []uint64{0} },
		"--blocks":  func(p *Plan) { p.BlockSizes = []int{65 << 20} },
		"--count":   func(p *Plan) { p.Rounds = 0 },
		"--batch":   func(p *Plan) { p.Batch = 5000 },
		"--depth":   func(p *Plan) { p.Depth = -1 },
		"--window":  func(p *Plan) { p.Window = 1 },
		"all":       func(p *Plan) { p.Senders = []string{"most"} },
		"twin":      func(p *Plan) { p.Algorithms = []string{"hypercube"} }, // for groups of 3
		"circulant": func(p *Plan) { p.Algorithms = []string{"magic"} },
		"larger":    func(p *Plan) { p.Sizes, p.BlockSizes = []uint64{1 << 48}, []int{1} },
		"empty":     func(p *Plan) { p.Sizes = nil },
		"shorter":   func(p *Plan) { p.Sizes = make([]uint64, 2000); fill(p.Sizes) },
	} {
		p := goodPlan()
		spoil(&p)
		if _, err := p.Cases(); !errors.Is(err, ErrUsage) || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v", word, err)
		}
	}
}

func fill(sizes []uint64) {
	for i := range sizes {
		sizes[i] = uint64(i + 1)
	}
}

// TestChoices holds what is chosen to what rdmc takes, and to the reasons that are given.
func TestChoices(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := uint64(1) << rapid.IntRange(0, 47).Draw(t, "log")
		p := goodPlan()
		p.Members, p.GroupSizes = rapid.IntRange(2, 300).Draw(t, "n"), nil
		p.Sizes, p.LinkRate = []uint64{size + rapid.Uint64Range(0, size-1).Draw(t, "more")},
			rapid.Float64Range(0, 1e11).Draw(t, "link")
		cases, err := p.Cases()
		if size > 1<<43 && err != nil {
			return // too many blocks of 4 KiB
		}
		if err != nil {
			t.Fatal(err)
		}
		for i, c := range cases {
			if c.BlockSize < 1 || c.BlockSize > rdmc.MaxBlockSize || c.Window < 2 || len(c.Reasons) != 3 {
				t.Fatalf("%+v", c)
			}
			if named := i%4 >= 2; named != (c.Asked.Algorithm != 0) || named && c.Small ||
				!named && c.Small != (c.Size <= rdmc.DefaultSmallBytes) {
				t.Fatalf("%+v", c)
			}
			if c.measuresLinks() && (p.LinkRate != 0 || c.Asked.BlockSize != 0 && c.Asked.Algorithm != 0) {
				t.Fatalf("%+v is measured although all is told", c)
			}
		}
	})
}

func TestBurstPace(t *testing.T) {
	start := time.Now()
	// at marks chunks at some milliseconds, of which the process ran half.
	at := func(millis ...int) (b burst) {
		for _, ms := range millis {
			b.marks = append(b.marks, burstMark{start.Add(time.Duration(ms) * time.Millisecond), float64(ms) / 2e3})
		}
		return b
	}
	for _, c := range []struct {
		burst burst
		want  LinkPace
	}{
		{at(0), LinkPace{}}, {at(5, 5), LinkPace{}}, {at(0, 10), LinkPace{burstChunk / 0.010, 0.5}},
		{at(0, 0, 0, 10, 20), LinkPace{2 * burstChunk / 0.020, 0.5}},
	} {
		if got := c.burst.pace(); math.Abs(got.Rate-c.want.Rate) > 1 || math.Abs(got.Busy-c.want.Busy) > 1e-6 {
			t.Errorf("%v: %v, want %v", c.burst, got, c.want)
		}
	}
}

func TestExplain(t *testing.T) {
	p := Plan{Members: 4, Sizes: []uint64{100}, BlockSizes: []int{40}, Algorithms: []string{"binomial-pipeline"},
		Senders: []string{"one"}, Rounds: 1, Batch: 1}
	cases, err := p.Cases()
	if err != nil {
		t.Fatal(err)
	}
	text := Explain(cases[0])
	for _, want := range []string{"as asked for", "window of", "blocks: 3, steps: 4; no schedule has fewer than 4",
		"step 0:  0 -b0-> 1\n", "step 3:"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	p.Members, p.Sizes = 40, []uint64{1 << 20}
	if cases, err = p.Cases(); err != nil || strings.Contains(Explain(cases[0]), "step 0") {
		t.Errorf("%v: a schedule of 40 members is shown", err)
	}
}

func sampleReports() (Case, []report) {
	c := Case{Members: 3, Senders: 2, Size: 1e6, Choice: schedule.Choice{Algorithm: schedule.Chain, BlockSize: 1000,
		Window: 4}, Rounds: 2, Batch: 2, Depth: 2}
	return c, []report{
		{Done: []float64{2, 4}, Stored: []float64{1, 3}, CPUSeconds: 1, Idle: 0.5, Latency: 1, LatencyHigh: 2,
			RoundTrips: []float64{0.0005, 0.0015}},
		{Done: []float64{1, 5}, Stored: []float64{1.5, 4}, CPUSeconds: 2, Idle: 0.25, Latency: 1.5},
		{Stored: []float64{2, 3}, CPUSeconds: 1, Idle: 1},
	}
}

func TestSummarize(t *testing.T) {
	c, reports := sampleReports()
	perSec := 4 / Median([]float64{2, 5})
	want := Result{Case: c, Seconds: []float64{2, 5}, Median: 3.5, Worst: 5, MessagesPerSec: perSec,
		BytesPerSec: perSec * 1e6,
		Latency:     1.5, LatencyHigh: 2, RoundTrip: 0.001, RoundTripLow: 0.0005, Spread: 0.5, Shares: (2 + 1.25) / 2,
		SenderSeconds: []float64{3, 3}, CPUPerGB: 4 / (8e6 * 2 / 1e9), Idle: 0.25}
	if diff := cmp.Diff(want, summarize(c, reports)); diff != "" {
		t.Error(diff)
	}
}

// TestOfLinks: in the least time each member's link has brought in all messages of the others.
func TestOfLinks(t *testing.T) {
	for _, c := range []struct{ senders, copies int }{{1, 1}, {2, 2}, {3, 2}} {
		sample, reports := sampleReports()
		sample.LinkRate, sample.Senders = 1e6, c.senders
		reports[2].Done = []float64{4, 4}
		r := summarize(sample, reports)
		if want := float64(c.copies) * 2 / r.Median; math.Abs(r.OfLinks-want) > 1e-9 {
			t.Errorf("%d senders: %v of the links, want %v", c.senders, r.OfLinks, want)
		}
	}
}

func TestParseIperf(t *testing.T) {
	r, err := parseIperf([]byte(`{"end":{"sum_received":{"seconds":2,"bytes":2000000,"bits_per_second":8e6},
		"cpu_utilization_percent":{"host_total":12.5,"host_user":1,"remote_total":75}}}`))
	if err != nil || r.BitsPerSec != 8e6 || r.Busy != 0.75 || r.Seconds != 2 || r.Bytes != 2_000_000 {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := parseIperf([]byte("iperf3: error")); err == nil {
		t.Error("rubbish was read")
	}
}

func TestPrinter(t *testing.T) {
	r := func() Result { c, reports := sampleReports(); return summarize(c, reports) }()
	print := func(f Format) string {
		var b bytes.Buffer
		p := NewPrinter(&b, f)
		for range 2 {
			if err := p.Print(r); err != nil {
				t.Fatal(err)
			}
		}
		return b.String()
	}
	lines := strings.Split(strings.TrimSuffix(print(Table), "\n"), "\n")
	if len(lines) != 3 || len(lines[0]) != len(lines[1]) || !strings.Contains(lines[1], "3.500 s") ||
		!strings.Contains(lines[1], "1.14 MB/s") {
		t.Errorf("table:\n%s", strings.Join(lines, "\n"))
	}
	rows, err := csv.NewReader(strings.NewReader(print(CSV))).ReadAll()
	if err != nil || len(rows) != 3 || rows[0][0] != "members" || rows[1][0] != "3" ||
		rows[2][slices.Index(rows[0], "median_seconds")] != "3.5" {
		t.Errorf("CSV: %v, %v", rows, err)
	}
	decoder := json.NewDecoder(strings.NewReader(print(JSON)))
	for range 2 {
		var got Result
		if err := decoder.Decode(&got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(r, got); diff != "" {
			t.Error(diff)
		}
	}
}

func TestTexts(t *testing.T) {
	for got, want := range map[string]string{
		cpuText(0.421): "0.42", cpuText(1e5): "-", percentText(0.0123): "1.2%",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestFreeMemory(t *testing.T) {
	if n, err := parseFreeMemory("MemTotal: 9 kB\nMemAvailable:   2048 kB\n"); err != nil || n != 2<<20 {
		t.Errorf("%d, %v", n, err)
	}
	for _, bad := range []string{"", "MemAvailable: x kB\n"} {
		if _, err := parseFreeMemory(bad); err == nil {
			t.Errorf("%q was parsed", bad)
		}
	}
	if n, err := FreeMemory(); err != nil || n == 0 {
		t.Errorf("%d, %v", n, err)
	}
}
