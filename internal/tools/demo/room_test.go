package demo

import (
	"context"
	"io"
	"math"
	"strings"
	"testing"
)

func TestRoomFor(t *testing.T) {
	for _, c := range []struct {
		size          int64
		nodes, copies int
		want          int64
	}{
		{0, 1, 2, nodeBytes + freeBytes},
		{256 << 20, 4, 5, 5*256<<20 + 4*nodeBytes + freeBytes},
		{math.MaxInt64 / 2, 4, 5, math.MaxInt64},
		{math.MaxInt64, 16, 16, math.MaxInt64},
	} {
		if got := roomFor(c.size, c.nodes, c.copies); got != c.want {
			t.Errorf("%d bytes, %d nodes, %d copies: %d, want %d", c.size, c.nodes, c.copies, got, c.want)
		}
	}
}

// A demo that the disk has no room for, or that makes no sense, is refused before anything is made.
func TestImpossibleDemosAreRefused(t *testing.T) {
	for _, c := range []struct {
		name string
		opts Options
		want string
	}{
		{"no room", Options{Size: 1 << 55}, "--size"},
		{"below nothing", Options{Size: -1 << 20}, "above 0"},
		{"too many", Options{Nodes: nodesMax + 1}, "nodes: want 1 to"},
		{"no such file", Options{File: "/nowhere/image"}, "/nowhere/image"},
	} {
		c.opts.Out, c.opts.Program = io.Discard, "/nowhere/rdmcfs"
		if err := Run(context.Background(), c.opts); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error with %q", c.name, err, c.want)
		}
	}
}
