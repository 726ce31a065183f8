package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
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
		return nil, fmt.Errorf("bench: make links: %w: %s", err, strings.TrimSpace(string(out)))
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
