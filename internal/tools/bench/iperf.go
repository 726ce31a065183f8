package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
)

// iperfTime is how long IperfPace measures, with a second before that in which windows open.
const iperfTime = "2"

// IperfPace is how one cubic TCP stream of iperf3 brings bytes from a node to another.
func IperfPace(ctx context.Context, l *Links, from, to int) (LinkPace, error) {
	r, err := Iperf(ctx, l, from, to, "-t", iperfTime, "-O", "1", "-C", "cubic")
	return LinkPace{Rate: r.BitsPerSec / 8, Busy: r.Busy}, err
}

// IperfResult is what the receiver of iperf3 measured.
type IperfResult struct {
	Seconds    float64 `json:"seconds"`
	BitsPerSec float64 `json:"bits_per_second"`
	Bytes      uint64  `json:"bytes"`
	Busy       float64 `json:"-"` // as LinkPace has it
}

// Iperf makes iperf3 send bytes by TCP from one node to another; args are further arguments of its client.
func Iperf(ctx context.Context, l *Links, from, to int, args ...string) (r IperfResult, err error) {
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

func parseIperf(out []byte) (IperfResult, error) {
	var result struct {
		End struct {
			Received IperfResult `json:"sum_received"`
			Percent  struct {
				Host   float64 `json:"host_total"`
				Remote float64 `json:"remote_total"`
			} `json:"cpu_utilization_percent"`
		} `json:"end"`
	}
	if err := json.Unmarshal(out, &result); err != nil {
		return IperfResult{}, fmt.Errorf("bench: iperf3 result: %w", err)
	}
	r := result.End.Received
	r.Busy = max(result.End.Percent.Host, result.End.Percent.Remote, 0) / 100
	return r, nil
}
