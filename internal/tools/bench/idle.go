package bench

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// ProcessorTimes are the machine's processor times so far, in ticks.
type ProcessorTimes struct {
	Idle, Total uint64
}

// ReadProcessorTimes reads them from /proc/stat.
func ReadProcessorTimes() (ProcessorTimes, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return ProcessorTimes{}, fmt.Errorf("bench: processor times: %w", err)
	}
	return parseProcessorTimes(string(b))
}

// parseProcessorTimes reads the first line: cpu user nice system idle iowait irq softirq steal ...
func parseProcessorTimes(s string) (t ProcessorTimes, err error) {
	line, _, _ := strings.Cut(s, "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return t, fmt.Errorf("bench: processor times: unexpected %q", line)
	}
	for i, f := range fields[1:9] {
		n, err := strconv.ParseUint(f, 10, 64)
		if err != nil {
			return t, fmt.Errorf("bench: processor times: %w", err)
		}
		t.Total += n
		if i == 3 || i == 4 {
			t.Idle += n
		}
	}
	return t, nil
}

// IdleSince is the share of processor time since an earlier reading in which the machine was idle. A
// measurement on a machine without idle time says nothing about links.
func (t ProcessorTimes) IdleSince(earlier ProcessorTimes) float64 {
	if t.Total == earlier.Total {
		return 1
	}
	return float64(t.Idle-earlier.Idle) / float64(t.Total-earlier.Total)
}

// cpuSeconds is the processor time of this process so far.
func cpuSeconds() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}
