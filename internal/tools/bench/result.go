package bench

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/rdmcfs/rdmcfs/internal/units"
)

// Result is what was measured of a case.
type Result struct {
	Case
	// Fabric is "tcp", or the devices of rank 0, the RDMA device first, if all members have one.
	Fabric string `json:"fabric"`
	// Seconds are, by round, the time from the sends until every member has every message of every sender.
	Seconds []float64 `json:"seconds"`
	Median  float64   `json:"median_seconds"`
	Worst   float64   `json:"worst_seconds"`
	// BytesPerSec is the rate of all senders together in the median round: bytes of messages, each counted once;
	// MessagesPerSec counts messages.
	BytesPerSec    float64 `json:"bytes_per_second"`
	MessagesPerSec float64 `json:"messages_per_second"`
	// Latency is the median, LatencyHigh the 99th percentile of the seconds from the send of a message until every
	// member has it, at the slowest sender; with a depth above 1 messages wait for each other.
	Latency     float64 `json:"latency_seconds"`
	LatencyHigh float64 `json:"latency_99_seconds"`
	// RoundTrip is the mean of the members' round trips: the median for each, of some before each round, of 64 bytes
	// there and back by TCP between rank 0 and the member. RoundTripLow is the lowest of them.
	RoundTrip    float64 `json:"tcp_round_trip_seconds"`
	RoundTripLow float64 `json:"tcp_round_trip_lowest_seconds"`
	// Spread is the worst round's (last member's end - first member's end) / last member's end.
	Spread float64 `json:"spread"`
	// Shares is the median round's time of the slowest sender over the fastest's; 1 if all have the same share of the
	// links.
	Shares float64 `json:"slowest_to_fastest_sender"`
	// SenderSeconds are the median times by sender, until all members have its messages.
	SenderSeconds []float64 `json:"sender_seconds"`
	// OfLinks is the time that the busiest link needs at least over the median, 0 if the rate of the links is not
	// known: 1 is as fast as they can be.
	OfLinks float64 `json:"of_links,omitempty"`
	// CPUPerGB are the processor seconds of all members for 1e9 bytes that reached a member.
	CPUPerGB float64 `json:"cpu_seconds_per_gb"`
	// Idle is the least idle share of processor time of a member's machine, over all rounds. Below a tenth the figures
	// say nothing about links.
	Idle float64 `json:"idle"`
}

// summarize makes a result of what the members of a case report.
func summarize(c Case, reports []report) Result {
	r := Result{Case: c, Idle: 1}
	var shares []float64
	for i := range c.Rounds {
		first, last := reports[0].Done[i], reports[0].Done[i]
		for _, m := range reports[1:c.Senders] {
			first, last = min(first, m.Done[i]), max(last, m.Done[i])
		}
		r.Seconds = append(r.Seconds, last)
		shares = append(shares, last/first)
		r.Spread = max(r.Spread, spread(reports[:c.Members], i))
	}
	for _, m := range reports[:c.Senders] {
		r.SenderSeconds = append(r.SenderSeconds, Median(m.Done))
	}
	cpu := 0.0
	for _, m := range reports {
		cpu += m.CPUSeconds
		r.Idle = min(r.Idle, m.Idle)
		r.Latency, r.LatencyHigh = max(r.Latency, m.Latency), max(r.LatencyHigh, m.LatencyHigh)
	}
	r.RoundTrip, r.RoundTripLow = mean(reports[0].RoundTrips), slices.Min(reports[0].RoundTrips)
	messages := float64(c.Senders) * float64(c.Batch)
	r.Median, r.Worst, r.Shares = Median(r.Seconds), slices.Max(r.Seconds), Median(shares)
	r.MessagesPerSec = messages / r.Median
	if c.LinkRate > 0 {
		r.OfLinks = c.linkBytes() / c.LinkRate / r.Median
	}
	r.BytesPerSec = r.MessagesPerSec * float64(c.Size)
	r.CPUPerGB = cpu / (messages * float64(c.Rounds) * float64(c.Size) * float64(c.Members-1) / 1e9)
	return r
}

// linkBytes is what the busiest direction of a link carries in a round at least. A member takes in the messages of all
// senders except itself, so a member that sends nothing is the busiest if there is one. What goes out need not be more:
// senders*(members-1) copies, shared out evenly, are less than that for each member.
func (c Case) linkBytes() float64 {
	messages := c.Batch * min(c.Senders, c.Members-1)
	return float64(messages) * float64(c.Size)
}

// spread is how far apart the receivers' ends of a round are.
func spread(reports []report, round int) float64 {
	first, last := 0.0, 0.0
	for _, m := range reports {
		if round >= len(m.Stored) {
			continue // the only sender
		}
		if first == 0 || m.Stored[round] < first {
			first = m.Stored[round]
		}
		last = max(last, m.Stored[round])
	}
	if last == 0 {
		return 0
	}
	return (last - first) / last
}

// Format is how results are printed.
type Format int

// The formats.
const (
	Table Format = iota
	CSV
	JSON
)

// column is one column of tables and CSV.
type column struct {
	table, csv string // names; an empty one is left out
	width      int    // in the table; negative: to the left
	text       func(*Result) string
	value      func(*Result) string // in CSV; nil: as in the table
}

var columns = []column{
	{"n", "members", 4, func(r *Result) string { return strconv.Itoa(r.Members) }, nil},
	{"senders", "senders", 7, func(r *Result) string { return strconv.Itoa(r.Senders) }, nil},
	{"size", "message_bytes", 8, func(r *Result) string { return units.Exact(r.Size) },
		func(r *Result) string { return strconv.FormatUint(r.Size, 10) }},
	{"block", "block_bytes", 8, func(r *Result) string { return units.Exact(uint64(r.BlockSize)) },
		func(r *Result) string { return strconv.Itoa(r.BlockSize) }},
	{"algorithm", "algorithm", -17, algorithmText, nil},
	{"", "window", 0, nil, func(r *Result) string { return strconv.Itoa(r.Window) }},
	{"rounds", "rounds", 6, func(r *Result) string { return strconv.Itoa(r.Rounds) }, nil},
	{"batch", "batch", 5, func(r *Result) string { return strconv.Itoa(r.Batch) }, nil},
	{"", "depth", 0, nil, func(r *Result) string { return strconv.Itoa(r.Depth) }},
	figure("median", "median_seconds", 10, units.Seconds, func(r *Result) float64 { return r.Median }),
	figure("worst", "worst_seconds", 10, units.Seconds, func(r *Result) float64 { return r.Worst }),
	figure("rate", "bytes_per_second", 10, units.Rate, func(r *Result) float64 { return r.BytesPerSec }),
	figure("of links", "of_links", 8, linksText, func(r *Result) float64 { return r.OfLinks }),
	figure("", "link_bytes_per_second", 0, nil, func(r *Result) float64 { return r.LinkRate }),
	figure("messages/s", "messages_per_second", 10, units.Digits, func(r *Result) float64 { return r.MessagesPerSec }),
	figure("latency", "latency_seconds", 9, units.Seconds, func(r *Result) float64 { return r.Latency }),
	figure("", "latency_99_seconds", 0, nil, func(r *Result) float64 { return r.LatencyHigh }),
	figure("TCP rtt", "tcp_round_trip_seconds", 7, units.Seconds, func(r *Result) float64 { return r.RoundTrip }),
	figure("", "tcp_round_trip_lowest_seconds", 0, nil, func(r *Result) float64 { return r.RoundTripLow }),
	figure("spread", "spread", 6, percentText, func(r *Result) float64 { return r.Spread }),
	figure("shares", "slowest_to_fastest_sender", 6, units.Digits, func(r *Result) float64 { return r.Shares }),
	figure("CPU s/GB", "cpu_seconds_per_gb", 8, cpuText, func(r *Result) float64 { return r.CPUPerGB }),
	figure("idle", "idle", 6, percentText, func(r *Result) float64 { return r.Idle }),
	{"over", "fabric", -5, fabricText, func(r *Result) string { return r.Fabric }},
}

// fabricText is the kind of the first device.
func fabricText(r *Result) string {
	kind, _, _ := strings.Cut(r.Fabric, ":")
	return kind
}

// algorithmText is the algorithm's name, or small for messages that go by none.
func algorithmText(r *Result) string {
	if r.Small {
		return "small"
	}
	return r.Algorithm.String()
}

// figure is a column of a number, for people as text gives it.
func figure(table, csv string, width int, text func(float64) string, of func(*Result) float64) column {
	return column{table, csv, width,
		func(r *Result) string { return text(of(r)) },
		func(r *Result) string { return strconv.FormatFloat(of(r), 'g', 6, 64) },
	}
}

// linksText is a share as a percentage, or a dash if it is not known.
func linksText(share float64) string {
	if share == 0 {
		return "-"
	}
	return percentText(share)
}

func percentText(f float64) string { return fmt.Sprintf("%.1f%%", 100*f) }

// cpuText leaves out what is large because the messages are small.
func cpuText(perGB float64) string {
	if perGB >= 1000 {
		return "-"
	}
	return units.Digits(perGB)
}

// Printer prints results one by one.
type Printer struct {
	w      io.Writer
	format Format
	begun  bool
}

// NewPrinter makes a printer that writes to w.
func NewPrinter(w io.Writer, format Format) *Printer { return &Printer{w: w, format: format} }

// Print prints one result, after the head if it is the first. JSON is one value per line.
func (p *Printer) Print(r Result) error {
	head := !p.begun
	p.begun = true
	switch p.format {
	case JSON:
		return json.NewEncoder(p.w).Encode(r)
	case CSV:
		return p.csv(&r, head)
	}
	if head {
		if err := p.line(func(c column) string { return c.table }); err != nil {
			return err
		}
	}
	return p.line(func(c column) string { return c.text(&r) })
}

func (p *Printer) line(cell func(column) string) error {
	text := ""
	for _, c := range columns {
		if c.table != "" {
			text += fmt.Sprintf("%*s  ", c.width, cell(c))
		}
	}
	_, err := fmt.Fprintln(p.w, text[:len(text)-2])
	return err
}

func (p *Printer) csv(r *Result, head bool) error {
	w := csv.NewWriter(p.w)
	var names, values []string
	for _, c := range columns {
		value := c.value
		if value == nil {
			value = c.text
		}
		names, values = append(names, c.csv), append(values, value(r))
	}
	if head {
		w.Write(names) // Flush keeps the error
	}
	w.Write(values)
	w.Flush()
	return w.Error()
}
