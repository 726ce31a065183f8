package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Links are nodes in network namespaces with a shaped link each.
type Links struct {
	script, name string
	nodes        int
}

// NewLinks makes a cluster of nodes with test/netns/netns.sh, whose path is given. The machine's default
// congestion control can be set for the nodes; empty leaves it. It needs root.
func NewLinks(ctx context.Context, script, name string, nodes int, rate, congestion string) (*Links, error) {
	l := &Links{script: script, name: name, nodes: nodes}
	cmd := l.command(ctx, "up", strconv.Itoa(nodes), rate)
	if congestion != "" {
		cmd.Env = append(cmd.Env, "CC="+congestion)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("bench: make links: %w: %s", err, out)
	}
	return l, nil
}

func (l *Links) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, l.script, args...)
	cmd.Env = append(os.Environ(), "CLUSTER="+l.name)
	cmd.WaitDelay = time.Second
	return cmd
}

// Close ends what runs on the nodes and removes them.
func (l *Links) Close() error {
	if out, err := l.command(context.Background(), "down").CombinedOutput(); err != nil {
		return fmt.Errorf("bench: remove links: %w: %s", err, out)
	}
	return nil
}

// Nodes is the number of nodes.
func (l *Links) Nodes() int { return l.nodes }

// Address is a node's IP address.
func (l *Links) Address(node int) string {
	return fmt.Sprintf("10.77.%d.%d", (node+1)/256, (node+1)%256)
}

// Command prepares a command to run on a node.
func (l *Links) Command(ctx context.Context, node int, args ...string) *exec.Cmd {
	return l.command(ctx, append([]string{"exec", strconv.Itoa(node)}, args...)...)
}

// Status is the script's account of bytes and drops.
func (l *Links) Status(ctx context.Context) string {
	out, err := l.command(ctx, "status").Output()
	if err != nil {
		return err.Error()
	}
	return string(out)
}

// Iperf sends bytes by one TCP stream of iperf3 from one node to another, with the given congestion control (empty:
// the node's default), and returns the receiver's time.
func Iperf(ctx context.Context, l *Links, from, to int, size uint64, congestion string) (time.Duration, error) {
	server := l.Command(ctx, to, "iperf3", "-s", "-1")
	if err := server.Start(); err != nil {
		return 0, fmt.Errorf("bench: iperf3 server: %w", err)
	}
	defer func() { // it may wait for another client, if one gave up in between
		server.Process.Kill()
		server.Wait()
	}()
	args := []string{"iperf3", "-J", "-c", l.Address(to), "-n", strconv.FormatUint(size, 10)}
	if congestion != "" {
		args = append(args, "-C", congestion)
	}
	for {
		out, err := l.Command(ctx, from, args...).Output()
		if took, parseErr := iperfTime(out); err == nil && parseErr == nil && took > 0 {
			return took, nil
		}
		if !bytes.Contains(out, []byte("refused")) || ctx.Err() != nil {
			return 0, fmt.Errorf("bench: iperf3: %v: %s", err, out)
		}
	}
}

func iperfTime(out []byte) (time.Duration, error) {
	var result struct {
		End struct {
			Received struct {
				Seconds float64 `json:"seconds"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	if err := json.Unmarshal(out, &result); err != nil {
		return 0, fmt.Errorf("bench: iperf3 result: %w", err)
	}
	return time.Duration(result.End.Received.Seconds * float64(time.Second)), nil
}

// Multicast runs one member on each node and returns their results by rank. command is the program with its arguments
// that reads a MemberConfig as JSON from its input, calls RunMember, and prints the MemberResult as JSON.
func Multicast(ctx context.Context, l *Links, command []string, cfg MemberConfig) ([]MemberResult, error) {
	cfg.Members = l.nodes
	cfg.Room = l.Address(0) + ":7001"
	results := make([]MemberResult, l.nodes)
	errs := make([]error, l.nodes)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	for rank := range l.nodes {
		own := cfg
		own.Rank, own.Listen = rank, l.Address(rank)+":7002"
		wg.Go(func() {
			if results[rank], errs[rank] = runProcess(ctx, l.Command(ctx, rank, command...), own); errs[rank] != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	return results, errors.Join(errs...)
}

func runProcess(ctx context.Context, cmd *exec.Cmd, cfg MemberConfig) (r MemberResult, err error) {
	input, err := json.Marshal(cfg)
	if err != nil {
		return r, err
	}
	var stderr strings.Builder
	cmd.Stdin, cmd.Stderr = bytes.NewReader(input), &stderr
	out, err := cmd.Output()
	if err != nil {
		return r, fmt.Errorf("bench: member %d: %w: %s", cfg.Rank, err, stderr.String())
	}
	if err := json.Unmarshal(out, &r); err != nil {
		return r, fmt.Errorf("bench: member %d: result: %w: %s", cfg.Rank, err, out)
	}
	return r, nil
}
