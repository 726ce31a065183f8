package main

import (
	"strconv"
	"strings"

	"github.com/rdmcfs/rdmcfs/internal/exitcode"
	"github.com/rdmcfs/rdmcfs/internal/node"
)

// fabricFlags are common to the commands that may start a daemon.
type fabricFlags struct {
	Fabric     string `help:"What carries data: auto (RDMA where it is there), verbs (RDMA must be there) or tcp." enum:"auto,verbs,tcp" default:"auto" env:"RDMCFS_FABRIC"`
	RDMADevice string `name:"rdma-device" help:"RDMA device and port; the first active one if not given." env:"RDMCFS_RDMA_DEVICE" placeholder:"NAME[/PORT]"`
	RDMAGID    string `name:"rdma-gid" help:"Address of the RDMA port, or its index; the best one if not given." env:"RDMCFS_RDMA_GID" placeholder:"GID"`
}

// fabric is what the flags ask for.
func (f fabricFlags) fabric() (node.Fabric, error) {
	out := node.Fabric{Mode: node.FabricMode(f.Fabric), GID: f.RDMAGID}
	name, port, numbered := strings.Cut(f.RDMADevice, "/")
	out.Device = name
	if !numbered {
		return out, nil
	}
	n, err := strconv.ParseUint(port, 10, 8)
	if err != nil || n == 0 || name == "" {
		return out, withCode(exitcode.Usage, "--rdma-device %q: want NAME or NAME/PORT, such as mlx5_0/1", f.RDMADevice)
	}
	out.Port = int(n)
	return out, nil
}

// words are the flags again, for a daemon in the background.
func (f fabricFlags) words() []string {
	words := []string{"--fabric=" + f.Fabric}
	if f.RDMADevice != "" {
		words = append(words, "--rdma-device="+f.RDMADevice)
	}
	if f.RDMAGID != "" {
		words = append(words, "--rdma-gid="+f.RDMAGID)
	}
	return words
}
