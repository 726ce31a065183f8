package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// Iperf sends bytes by one TCP stream of iperf3 from one node to another, with the given congestion control (empty:
// the node's default), and returns the receiver's time for them. iperf3 stops its clocks when the last byte has been
// handed to the sender's kernel, up to some hundred KB before the receiver has it; so the time is that of what was
// received, scaled to all.
func Iperf(ctx context.Context, l *Links, from, to int, size uint64, congestion string) (time.Duration, error) {
	args := []string{"-n", strconv.FormatUint(size, 10)}
	if congestion != "" {
		args = append(args, "-C", congestion)
	}
	r, err := iperf(ctx, l, from, to, args)
	return r.timeOf(size), err
}

// iperfTime is how long IperfPace measures, with a second before that in which windows open.
const iperfTime = "2"

// IperfPace is how one cubic TCP stream of iperf3 brings bytes from a node to another.
func IperfPace(ctx context.Context, l *Links, from, to int) (LinkPace, error) {
	r, err := iperf(ctx, l, from, to, []string{"-t", iperfTime, "-O", "1", "-C", "cubic"})
	return LinkPace{Rate: r.BitsPerSec / 8, Busy: r.Busy}, err
}

type iperfResult struct {
	Seconds    float64 `json:"seconds"`
	BitsPerSec float64 `json:"bits_per_second"`
	Bytes      uint64  `json:"bytes"`
	Busy       float64 `json:"-"` // as LinkPace has it
}

// timeOf is the time of so many bytes at the pace of those received.
func (r iperfResult) timeOf(size uint64) time.Duration {
	if r.Bytes == 0 {
		return 0
	}
	return time.Duration(r.Seconds * float64(size) / float64(r.Bytes) * float64(time.Second))
}

func iperf(ctx context.Context, l *Links, from, to int, args []string) (r iperfResult, err error) {
	server := l.Command(ctx, to, "iperf3", "-s", "-1")
	if err := server.Start(); err != nil {
		return r, fmt.Errorf("bench: iperf3 server: %w", err)
	}
	defer func() { // it may wait for another client, if one gave up in between
		server.Process.Kill()
		server.Wait()
	}()
	args = append([]string{"iperf3", "-J", "-c", l.Address(to)}, args...)
	for {
		out, err := l.Command(ctx, from, args...).Output()
		if r, parseErr := parseIperf(out); err == nil && parseErr == nil && r.Seconds > 0 && r.Bytes > 0 {
			return r, nil
		}
		if !bytes.Contains(out, []byte("refused")) || ctx.Err() != nil {
			return r, fmt.Errorf("bench: iperf3: %v: %s", err, out)
		}
	}
}

func parseIperf(out []byte) (iperfResult, error) {
	var result struct {
		End struct {
			Received iperfResult `json:"sum_received"`
			Percent  struct {
				Host   float64 `json:"host_total"`
				Remote float64 `json:"remote_total"`
			} `json:"cpu_utilization_percent"`
		} `json:"end"`
	}
	if err := json.Unmarshal(out, &result); err != nil {
		return iperfResult{}, fmt.Errorf("bench: iperf3 result: %w", err)
	}
	r := result.End.Received
	r.Busy = max(result.End.Percent.Host, result.End.Percent.Remote, 0) / 100
	return r, nil
}
