package main

import (
	"os"

	"github.com/rdmcfs/rdmcfs/internal/exitcode"
	"github.com/rdmcfs/rdmcfs/internal/tools/demo"
)

// demoSizeMax is the largest --size, in MiB: 2^48 bytes.
const demoSizeMax = 1 << 28

type demoCmd struct {
	Nodes int    `help:"How many nodes." default:"4"`
	File  string `help:"File to copy in; made up if not given." type:"existingfile" placeholder:"PATH"`
	Size  int64  `help:"Size of the made-up file in MiB." default:"256"`
	Once  bool   `help:"End after the digests are shown, instead of staying."`
}

// Run shows the demo with this program as the nodes.
func (c *demoCmd) Run(a *app) error {
	if c.Size < 1 || c.Size > demoSizeMax {
		return withCode(exitcode.Usage, "--size %d: give 1 to %d MiB", c.Size, demoSizeMax)
	}
	if c.Nodes == 0 { // Options takes it for the default
		return withCode(exitcode.Usage, "demo: 0 nodes: want 1 to 16")
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return demo.Run(a.ctx, demo.Options{Program: self, Nodes: c.Nodes, File: c.File, Size: c.Size << 20, Once: c.Once,
		Out: a.out})
}
