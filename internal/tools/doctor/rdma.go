package doctor

import (
	"fmt"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// RDMA is what a machine has of it, as the program sees it.
type RDMA struct {
	NotBuilt bool   // this program was built without it
	Missing  string // why there is no device: no library, no driver; "" where devices were found
	Devices  []RDMADevice
	Opened   string // the device that the daemon would use
	Refused  string // why it can't use one; "" if Opened says which it uses
}

// RDMADevice is one device.
type RDMADevice struct {
	Name     string
	Limits   string // for people
	Ports    []RDMAPort
	Problems []string // each says what to do, behind its last colon or semicolon
}

// RDMAPort is one port of a device.
type RDMAPort struct {
	Text     string // number, state, link layer, MTU and addresses, for people
	Problems []string
}

const (
	lockedWanted = 256 << 20
	capIPCLock   = 14
	overTCP      = "data goes over TCP"
)

// checkRDMA finds out what there is of RDMA, what is wrong with it, and what the daemon will do.
func checkRDMA(h Host, s *Settings) []Finding {
	r := h.RDMA()
	kernel := h.Glob("/sys/class/infiniband/*")
	var out []Finding
	switch {
	case r.NotBuilt:
		out = append(out, Finding{Level: OK, Topic: "rdma", Text: "this program was built without it (tag nordma)"})
	case r.Missing != "" && len(kernel) > 0:
		text, advice, _ := cutLast(r.Missing)
		out = append(out, Finding{Level: Note, Topic: "rdma", Cost: overTCP, Advice: advice,
			Text: fmt.Sprintf("the kernel has devices (%s), but: %s", strings.Join(baseNames(kernel), ", "), text)})
	case r.Missing != "":
		out = append(out, Finding{Level: OK, Topic: "rdma", Text: "none: " + r.Missing})
	}
	for i := range r.Devices {
		out = append(out, describeDevice(&r.Devices[i])...)
	}
	if len(r.Devices) > 0 {
		out = append(out, checkLocked(h))
	}
	return append(out, checkFabric(&r, s))
}

func baseNames(paths []string) []string {
	var out []string
	for _, p := range paths {
		out = append(out, path.Base(p))
	}
	return out
}

func describeDevice(d *RDMADevice) []Finding {
	var out []Finding
	for _, p := range d.Ports {
		out = append(out, Finding{Level: OK, Topic: "rdma", Text: d.Name + " " + p.Text})
		out = append(out, troubles(d.Name, p.Problems)...)
	}
	if d.Limits != "" {
		out = append(out, Finding{Level: OK, Topic: "rdma", Text: d.Name + " limits: " + d.Limits})
	}
	return append(out, troubles(d.Name, d.Problems)...)
}

func troubles(device string, problems []string) []Finding {
	var out []Finding
	for _, p := range problems {
		text, advice, _ := cutLast(p)
		out = append(out, Finding{Level: Note, Topic: "rdma", Text: device + " " + text, Advice: advice,
			Cost: "data does not go over it, or slowly"})
	}
	return out
}

// cutLast parts what is wrong from what to do.
func cutLast(problem string) (text, advice string, ok bool) {
	for _, mark := range []string{"; ", ": "} {
		if i := strings.LastIndex(problem, mark); i >= 0 {
			return problem[:i], problem[i+len(mark):], true
		}
	}
	return problem, "see the text", false
}

// checkLocked looks at the limit on locked memory, which is what registered memory is.
func checkLocked(h Host) Finding {
	lock, _ := h.Limit(unix.RLIMIT_MEMLOCK)
	if lock >= lockedWanted || h.capable(capIPCLock) {
		return Finding{Level: OK, Topic: "locked memory", Text: "enough for RDMA"}
	}
	return Finding{Level: Note, Topic: "locked memory",
		Text: fmt.Sprintf("at most %d KiB (RLIMIT_MEMLOCK); registered memory is locked", lock>>10),
		Cost: "RDMA can register little memory; what does not fit goes over TCP",
		Advice: "LimitMEMLOCK=infinity in the unit, ulimit -l unlimited in the shell, " +
			"or memlock in /etc/security/limits.conf"}
}

// checkFabric finds out what will carry data.
func checkFabric(r *RDMA, s *Settings) Finding {
	f := Finding{Level: OK, Topic: "fabric"}
	switch {
	case s.Fabric == "tcp":
		f.Text = "tcp, as asked for: " + overTCP
	case r.Opened != "":
		f.Text = r.Opened + ", and tcp to nodes that have no RDMA"
	case s.Fabric == "verbs":
		f = Finding{Level: Problem, Topic: f.Topic, Text: "verbs was asked for: " + r.Refused,
			Cost:   "the daemon does not start",
			Advice: "mend what is said above, or use --fabric auto (RDMCFS_FABRIC)"}
	case len(r.Devices) > 0 || s.Named:
		f = Finding{Level: Note, Topic: f.Topic, Text: "tcp, as no RDMA device can be used: " + r.Refused, Cost: overTCP,
			Advice: "mend what is said, or choose another device, port or GID"}
	default:
		f.Text = "tcp: " + overTCP
	}
	return f
}
