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
	script, name, rate string
	nodes              int
}

// NewLinks makes a cluster of nodes with test/netns/netns.sh, whose path is given. The machine's default
// congestion control can be set for the nodes; empty leaves it. It needs root.
func NewLinks(ctx context.Context, script, name string, nodes int, rate, congestion string) (*Links, error) {
	l := &Links{script: script, name: name, rate: rate, nodes: nodes}
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

// Slow bounds what one node sends to another, in tc(8) syntax; the bound may be the rate of the link. A node can have one such bound.
func (l *Links) Slow(ctx context.Context, from, to int, rate string) error {
	if out, err := l.command(ctx, "slow", strconv.Itoa(from), strconv.Itoa(to), rate).CombinedOutput(); err != nil {
		return fmt.Errorf("bench: slow from node %d to %d: %w: %s", from, to, err, out)
	}
	return nil
}

// Status is the script's account of bytes and drops.
func (l *Links) Status(ctx context.Context) string {
	out, err := l.command(ctx, "status").Output()
	if err != nil {
		return err.Error()
	}
	return string(out)
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
