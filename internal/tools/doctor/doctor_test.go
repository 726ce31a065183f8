package doctor

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// healthy is a machine on which all is well; tests take something away.
// init and join say what is wrong with the disk, and nothing else.
func TestDisk(t *testing.T) {
	h := healthy()
	if found := Disk(h, "/data"); len(found) > 0 {
		t.Errorf("a healthy disk: %+v", found)
	}
	h.FreeDisk = func(string) (uint64, uint64, int64, error) { return 1 << 20, 1 << 30, magicTmpfs, nil }
	found := Disk(h, "/data")
	if len(found) != 2 || !strings.Contains(found[0].Text, "tmpfs") || found[1].Topic != "space" {
		t.Errorf("a small tmpfs: %+v", found)
	}
}

func healthy() Host {
	files := map[string]string{
		"/proc/self/status":                                   "Name:\tx\nCapEff:\t000001ffffffffff\n",
		"/proc/self/uid_map":                                  "         0          0 4294967295",
		"/proc/sys/fs/fuse/default_request_timeout":           "0",
		"/proc/sys/fs/fuse/max_request_timeout":               "0",
		"/proc/sys/net/ipv4/tcp_congestion_control":           "bbr",
		"/proc/sys/net/ipv4/tcp_available_congestion_control": "reno cubic bbr",
	}
	return Host{
		ReadFile: func(path string) (string, error) {
			if text, ok := files[path]; ok {
				return text, nil
			}
			return "", os.ErrNotExist
		},
		Glob:     func(string) []string { return nil },
		Release:  func() string { return "6.18.2-amd64" },
		Access:   func(string) error { return nil },
		Limit:    func(int) (uint64, uint64) { return 1 << 40, 1 << 40 },
		FreeDisk: func(string) (uint64, uint64, int64, error) { return 100 * gib, 200 * gib, 0xef53, nil },
		UID:      func() int { return 0 },
		RDMA:     func() RDMA { return RDMA{Missing: "no libibverbs", Refused: "no libibverbs"} },
	}
}

// with replaces one file.
func (h Host) with(path, text string) Host {
	before := h.ReadFile
	h.ReadFile = func(p string) (string, error) {
		if p == path {
			return text, nil
		}
		return before(p)
	}
	return h
}

func TestHealthyMachine(t *testing.T) {
	for _, f := range Examine(healthy(), Settings{DataDir: "/var/lib/rdmcfs"}) {
		if f.Level != OK {
			t.Errorf("%+v", f)
		}
	}
}

// rdmaHost is a machine with a device that works.
func rdmaHost(h Host) Host {
	h.RDMA = func() RDMA {
		return RDMA{Opened: "verbs:mlx5_0/1", Devices: []RDMADevice{{Name: "mlx5_0", Limits: "many",
			Ports: []RDMAPort{{Text: "port 1 is active"}}}}}
	}
	return h
}

// TestFabricSaysWhatIsUsed: which provider carries data, for each setting.
func TestFabricSaysWhatIsUsed(t *testing.T) {
	for _, c := range []struct {
		host   Host
		fabric string
		want   string
	}{
		{healthy(), "", "tcp: "}, {healthy(), "auto", "tcp: "}, {healthy(), "tcp", "tcp, as asked for"},
		{rdmaHost(healthy()), "auto", "verbs:mlx5_0/1"}, {rdmaHost(healthy()), "verbs", "verbs:mlx5_0/1"},
		{rdmaHost(healthy()), "tcp", "tcp, as asked for"},
	} {
		findings := Examine(c.host, Settings{DataDir: "/d", Fabric: c.fabric})
		last := findings[len(findings)-1]
		if last.Topic != "fabric" || last.Level != OK || !strings.HasPrefix(last.Text, c.want) {
			t.Errorf("%q: %+v, want %q", c.fabric, last, c.want)
		}
	}
}

func TestEachTroubleIsFoundWithAdvice(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Host)
		dir    string
		fabric string
		named  bool
		topic  string
		level  Level
		text   string
	}{
		"no fuse device": {change: func(h *Host) {
			h.Access = func(string) error {
				return errors.New(
					"open /dev/fuse: no such device")
			}
		}, topic: "fuse", level: Problem, text: "no such device"},
		"no capability": {change: func(h *Host) { *h = h.with("/proc/self/status", "CapEff:\t0000000000000000\n") },
			topic: "mount", level: Problem, text: "CAP_SYS_ADMIN"},
		"old kernel": {change: func(h *Host) { h.Release = func() string { return "6.1.0-26-amd64" } },
			topic: "passthrough", level: Note, text: "6.9"},
		"before epochs": {change: func(h *Host) { h.Release = func() string { return "6.12.5" } }, topic: "invalidation",
			level: Note, text: "6.16"},
		"user namespace": {change: func(h *Host) { *h = h.with("/proc/self/uid_map", "0 1000 1") }, topic: "passthrough",
			level: Note, text: "user namespace"},
		"short timeout": {change: func(h *Host) { *h = h.with("/proc/sys/fs/fuse/max_request_timeout", "30") },
			topic: "fuse timeouts", level: Note, text: "30 seconds"},
		"full disk": {change: func(h *Host) {
			h.FreeDisk = func(string) (uint64, uint64, int64, error) { return 1 << 20, gib, 0, nil }
		}, topic: "space", level: Problem, text: "0.0 GiB free"},
		"data on tmpfs": {change: func(h *Host) {
			h.FreeDisk = func(string) (uint64, uint64, int64, error) { return 9 * gib, 9 * gib, magicTmpfs, nil }
		}, topic: "data directory", level: Note, text: "tmpfs"},
		"long data path": {dir: "/" + strings.Repeat("d", 120), topic: "data directory", level: Problem, text: "too long"},
		"few files": {change: func(h *Host) {
			h.Limit = func(r int) (uint64, uint64) {
				if r == unix.RLIMIT_NOFILE {
					return 1024, 4096
				}
				return 1 << 40, 1 << 40
			}
		}, topic: "open files", level: Note, text: "4096"},
		"devices without libibverbs": {change: func(h *Host) {
			h.Glob = func(p string) []string {
				if strings.HasPrefix(p, "/sys/class/infiniband") {
					return []string{"/sys/class/infiniband/rxe0"}
				}
				return nil
			}
			h.RDMA = func() RDMA { return RDMA{Missing: "no libibverbs; install rdma-core", Refused: "no libibverbs"} }
		}, topic: "rdma", level: Note, text: "the kernel has devices (rxe0), but: no libibverbs"},
		"a device is named and there is none": {named: true, topic: "fabric", level: Note, text: "no libibverbs"},
		"verbs demanded":                      {fabric: "verbs", topic: "fabric", level: Problem, text: "no libibverbs"},
		"port down": {change: func(h *Host) {
			h.RDMA = func() RDMA {
				return RDMA{Refused: "no port is active", Devices: []RDMADevice{{Name: "mlx5_0",
					Ports: []RDMAPort{{Text: "port 1 is down", Problems: []string{"port 1 is down: check cable"}}}}}}
			}
		}, topic: "rdma", level: Note, text: "mlx5_0 port 1 is down"},
		"device that can't be used": {change: func(h *Host) {
			h.RDMA = func() RDMA { return RDMA{Refused: "no GID", Devices: []RDMADevice{{Name: "mlx5_0"}}} }
		}, topic: "fabric", level: Note, text: "no GID"},
		"little locked memory": {change: func(h *Host) {
			*h = rdmaHost(*h).with("/proc/self/status", "CapEff:\t0000000000200000\n")
			h.Limit = func(r int) (uint64, uint64) {
				if r == unix.RLIMIT_MEMLOCK {
					return 8 << 20, 8 << 20
				}
				return 1 << 40, 1 << 40
			}
		}, topic: "locked memory", level: Note, text: "8192 KiB"},
		"no cubic": {change: func(h *Host) { *h = h.with("/proc/sys/net/ipv4/tcp_available_congestion_control", "reno bbr") },
			topic: "tcp", level: Note, text: "cubic"},
	} {
		h := healthy()
		if c.change != nil {
			c.change(&h)
		}
		if c.dir == "" {
			c.dir = "/var/lib/rdmcfs"
		}
		found := false
		for _, f := range Examine(h, Settings{DataDir: c.dir, Fabric: c.fabric, Named: c.named}) {
			if f.Topic == c.topic && f.Level == c.level && strings.Contains(f.Text, c.text) {
				found = true
				if f.Advice == "" {
					t.Errorf("%s: no advice in %+v", name, f)
				}
			}
		}
		if !found {
			t.Errorf("%s: not found in %+v", name, Examine(h, Settings{DataDir: c.dir, Fabric: c.fabric, Named: c.named}))
		}
	}
}

func TestKernelVersions(t *testing.T) {
	for release, want := range map[string][2]int{"6.18.44-fc-v669": {6, 18}, "6.1.0-26-amd64": {6, 1}, "5.15": {5, 15},
		"6.9-rc1": {6, 9}, "odd": {0, 0}, "": {0, 0}} {
		if a, b := kernel(release); a != want[0] || b != want[1] {
			t.Errorf("%q: %d.%d", release, a, b)
		}
	}
}

func TestThisMachine(t *testing.T) {
	findings := Examine(ThisHost(func() RDMA { return RDMA{NotBuilt: true} }), Settings{DataDir: t.TempDir()})
	if len(findings) < 8 {
		t.Errorf("only %d findings", len(findings))
	}
	for _, f := range findings {
		if f.Level != OK && f.Level != Note && f.Level != Problem || f.Text == "" || f.Topic == "" {
			t.Errorf("%+v", f)
		}
	}
}
