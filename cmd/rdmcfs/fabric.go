package main

import (
	"cmp"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/rdmcfs/rdmcfs/internal/exitcode"
	"github.com/rdmcfs/rdmcfs/internal/node"
	"github.com/rdmcfs/rdmcfs/internal/units"
)

// rdmaFlags are common to all that carries data.
type rdmaFlags struct {
	Fabric     string `help:"What carries data: auto (RDMA where it is there), verbs (RDMA must be there) or tcp." enum:"auto,verbs,tcp" default:"auto" env:"RDMCFS_FABRIC"`
	RDMADevice string `name:"rdma-device" help:"RDMA device and port; the first active one if not given." env:"RDMCFS_RDMA_DEVICE" placeholder:"NAME[/PORT]"`
	RDMAGID    string `name:"rdma-gid" help:"Address of the RDMA port, or its index; the best one if not given." env:"RDMCFS_RDMA_GID" placeholder:"GID"`
}

// fabricFlags are what a daemon carries data with.
type fabricFlags struct {
	rdmaFlags
	Registered string `name:"registered-memory" help:"Bytes of registered memory that all transfers together use at most; 0 is no bound. Files may be larger." default:"0" env:"RDMCFS_REGISTERED_MEMORY" placeholder:"SIZE"`
}

// httpFlags say what a daemon lets programs on the network read.
type httpFlags struct {
	HTTP      string `name:"http" help:"HOST:PORT where metrics, status and health can be read over TLS; not served if not given." env:"RDMCFS_HTTP" placeholder:"HOST:PORT"`
	HTTPPprof bool   `name:"http-pprof" help:"Serve profiles of the daemon there too." env:"RDMCFS_HTTP_PPROF"`
}

// daemonFlags are common to the commands that may start a daemon.
type daemonFlags struct {
	fabricFlags
	httpFlags
}

// registeredMin has room for a few groups with two buffers each.
const registeredMin = 8 << 20

// fabric is what the flags ask for.
func (f fabricFlags) fabric() (node.Fabric, error) {
	out, err := f.rdma()
	if err != nil {
		return out, err
	}
	registered, err := units.ParseBytes(cmp.Or(f.Registered, "0"))
	if err != nil || registered > 0 && registered < registeredMin {
		return out, withCode(exitcode.Usage, "--registered-memory %q: give a size like 64MiB, at least %s, or 0",
			f.Registered, units.Bytes(registeredMin))
	}
	out.Registered = int64(registered)
	return out, nil
}

// rdma is what the flags ask for.
func (f rdmaFlags) rdma() (node.Fabric, error) {
	out := node.Fabric{Mode: node.FabricMode(f.Fabric), GID: f.RDMAGID}
	if _, err := netip.ParseAddr(f.RDMAGID); err != nil && f.RDMAGID != "" {
		if _, err := strconv.ParseUint(f.RDMAGID, 10, 8); err != nil {
			return out, withCode(exitcode.Usage, "--rdma-gid %q: want an address such as 10.0.0.1, or an index from 0 to 255",
				f.RDMAGID)
		}
	}
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
	words := f.rdmaFlags.words()
	if cmp.Or(f.Registered, "0") != "0" {
		words = append(words, "--registered-memory="+f.Registered)
	}
	return words
}

func (f rdmaFlags) words() []string {
	words := []string{"--fabric=" + f.Fabric}
	if f.RDMADevice != "" {
		words = append(words, "--rdma-device="+f.RDMADevice)
	}
	if f.RDMAGID != "" {
		words = append(words, "--rdma-gid="+f.RDMAGID)
	}
	return words
}

// given are the flags that were given with values that are neither the default nor what stands for the flag's name in
// the environment or in the configuration file.
func (f daemonFlags) given(standing func(name string) string) (flags []string) {
	pprof := ""
	if f.HTTPPprof {
		pprof = "true"
	}
	for _, flag := range []struct{ name, value, standard string }{
		{"fabric", f.Fabric, "auto"}, {"rdma-device", f.RDMADevice, ""}, {"rdma-gid", f.RDMAGID, ""},
		{"registered-memory", cmp.Or(f.Registered, "0"), "0"}, {"http", f.HTTP, ""}, {"http-pprof", pprof, ""},
	} {
		said := standing(flag.name)
		if on, err := strconv.ParseBool(said); err == nil && flag.name == "http-pprof" {
			said = strconv.FormatBool(on)
		}
		if flag.value != flag.standard && flag.value != said {
			flags = append(flags, "--"+flag.name)
		}
	}
	return flags
}

// http is what the flags ask for.
func (f httpFlags) http() (node.HTTP, error) {
	out := node.HTTP{Addr: f.HTTP, Pprof: f.HTTPPprof}
	if f.HTTP == "" {
		if f.HTTPPprof {
			return out, withCode(exitcode.Usage, "--http-pprof: give --http too: the profiles are served there")
		}
		return out, nil
	}
	_, port, err := net.SplitHostPort(f.HTTP)
	number := 0
	if err == nil && port != "" {
		number, err = net.LookupPort("tcp", port)
	}
	if err != nil || number == 0 {
		return out, withCode(exitcode.Usage, "--http %q: want HOST:PORT, such as 10.0.0.1:7480", f.HTTP)
	}
	return out, nil
}

func (f httpFlags) words() []string {
	var words []string
	if f.HTTP != "" {
		words = append(words, "--http="+f.HTTP)
	}
	if f.HTTPPprof {
		words = append(words, "--http-pprof")
	}
	return words
}

// words are the flags again, for a daemon in the background.
func (f daemonFlags) words() []string { return append(f.fabricFlags.words(), f.httpFlags.words()...) }
