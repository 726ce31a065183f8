package doctor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Level says how bad a finding is.
type Level string

// The levels.
const (
	OK      Level = "ok"      // works
	Note    Level = "note"    // off or unusual; costs something
	Problem Level = "problem" // rdmcfs can't work
)

// Finding is the result of one check.
type Finding struct {
	Level  Level  `json:"level"`
	Topic  string `json:"topic"`
	Text   string `json:"text"`             // what is so
	Cost   string `json:"cost,omitempty"`   // what that costs
	Advice string `json:"advice,omitempty"` // what to do
}

const (
	gib              = 1 << 30
	freeBytesWanted  = gib
	filesWanted      = 65536
	capSysAdmin      = 21
	magicTmpfs       = 0x01021994
	magicFUSE        = 0x65735546
	magicNFS         = 0x6969
	magicOverlay     = 0x794c7630
	socketPathBytes  = 107
	timeoutMinWanted = 120 // seconds; below, a slow close could be cut off by the kernel
)

// Settings are those of the daemon that is to run.
type Settings struct {
	DataDir string
	Fabric  string // auto, verbs or tcp; "" is auto
	Named   bool   // a device, port or GID of RDMA was asked for
}

// Examine runs all checks for a daemon with these settings.
func Examine(h Host, s Settings) []Finding {
	var all []Finding
	for _, check := range []func(Host, string) []Finding{
		checkFUSE, checkPassthrough, checkInvalidation, checkTimeouts, checkDataDir, checkSpace,
		checkLimits, checkCongestion,
	} {
		all = append(all, check(h, s.DataDir)...)
	}
	return append(all, checkRDMA(h, &s)...)
}

func checkFUSE(h Host, _ string) []Finding {
	f := Finding{Level: OK, Topic: "fuse", Text: "/dev/fuse can be opened; kernel " + h.Release()}
	if err := h.Access("/dev/fuse"); err != nil {
		f = Finding{Level: Problem, Topic: "fuse", Text: err.Error(), Cost: "nothing can be mounted",
			Advice: "load the module with 'modprobe fuse', and in a container pass --device /dev/fuse"}
		if errors.Is(err, os.ErrPermission) {
			f.Advice = "run as root"
		}
	}
	if !h.capable(capSysAdmin) {
		return []Finding{f, {Level: Problem, Topic: "mount", Text: "this process lacks CAP_SYS_ADMIN, which mount(2) needs",
			Cost: "nothing can be mounted", Advice: "run as root, or with --cap-add SYS_ADMIN in a container"}}
	}
	return []Finding{f}
}

// passthroughCost is what is lost without passthrough; the figures are those of docs/BENCHMARKS.md.
const passthroughCost = "every read and write goes through the daemon: about a third of the speed for large ones, " +
	"a tenth for small ones"

// Passthrough reports whether writes can bypass the daemon on this machine, and if not, why not and what that costs.
func Passthrough(h Host) Finding {
	f := Finding{Level: OK, Topic: "passthrough", Text: "on: writes go to the page cache without the daemon"}
	switch {
	case !h.atLeast(6, 9):
		f = Finding{Level: Note, Topic: "passthrough", Text: "off: kernel " + h.Release() +
			" has no FUSE passthrough; it came with 6.9",
			Advice: "use a newer kernel, such as Debian's from backports"}
	case !h.capable(capSysAdmin):
		f = Finding{Level: Note, Topic: "passthrough",
			Text:   "off: this process lacks CAP_SYS_ADMIN in the first user namespace",
			Advice: "run as root outside of a user namespace"}
	case h.inUserNamespace():
		f = Finding{Level: Note, Topic: "passthrough", Text: "off: this process runs in a user namespace",
			Advice: "run outside of the container's user namespace"}
	}
	if f.Level != OK {
		f.Cost = passthroughCost
	}
	return f
}

// inUserNamespace reports whether user ids are mapped; the first namespace maps all of them to themselves.
func (h Host) inUserNamespace() bool {
	text, err := h.ReadFile("/proc/self/uid_map")
	return err == nil && !slices.Equal(strings.Fields(text), []string{"0", "0", "4294967295"})
}

func checkPassthrough(h Host, _ string) []Finding { return []Finding{Passthrough(h)} }

func checkInvalidation(h Host, _ string) []Finding {
	if h.atLeast(6, 16) {
		return []Finding{{Level: OK, Topic: "invalidation",
			Text: "remote changes are shown by one notice for the whole mount"}}
	}
	return []Finding{{Level: Note, Topic: "invalidation",
		Text: "kernel " + h.Release() + " has no FUSE_NOTIFY_INC_EPOCH; it came with 6.16",
		Cost: "names are not cached by the kernel: each lookup asks the daemon", Advice: "nothing needs doing"}}
}

// checkTimeouts warns of limits that abort a mount when a request takes long, as a close of a large file does.
func checkTimeouts(h Host, _ string) []Finding {
	var out []Finding
	for _, name := range []string{"default_request_timeout", "max_request_timeout"} {
		text, err := h.ReadFile("/proc/sys/fs/fuse/" + name)
		seconds, bad := strconv.Atoi(text)
		if err != nil || bad != nil || seconds == 0 || seconds >= timeoutMinWanted {
			continue
		}
		out = append(out, Finding{Level: Note, Topic: "fuse timeouts",
			Text:   fmt.Sprintf("fs.fuse.%s is %d seconds", name, seconds),
			Cost:   "the kernel ends the whole mount when one close takes longer",
			Advice: fmt.Sprintf("set it to 0 or to at least %d with sysctl", timeoutMinWanted)})
	}
	if out == nil {
		out = []Finding{{Level: OK, Topic: "fuse timeouts", Text: "none that matter"}}
	}
	return out
}

// Disk examines where a data directory is to be, and returns what is not as it should be.
func Disk(h Host, dir string) []Finding {
	found := append(checkDataDir(h, dir), checkSpace(h, dir)...)
	return slices.DeleteFunc(found, func(f Finding) bool { return f.Level == OK })
}

func checkDataDir(h Host, dir string) []Finding {
	_, _, fsType, err := h.FreeDisk(dir)
	f := Finding{Level: OK, Topic: "data directory", Text: dir}
	switch {
	case err != nil:
		f = Finding{Level: Problem, Topic: f.Topic, Text: err.Error(), Advice: "make it, or name another with --data"}
	case len(filepath.Join(dir, "admin.sock")) > socketPathBytes:
		f = Finding{Level: Problem, Topic: f.Topic, Text: fmt.Sprintf("%s is too long for a socket in it (%d bytes)", dir,
			socketPathBytes), Advice: "choose a shorter --data"}
	case fsType == magicTmpfs:
		f = Finding{Level: Note, Topic: f.Topic, Text: dir + " is on tmpfs",
			Cost: "all of this node's data is lost at power-off", Advice: "put it on a disk"}
	case fsType == magicFUSE || fsType == magicNFS:
		f = Finding{Level: Note, Topic: f.Topic, Text: dir + " is on a network or FUSE file system",
			Cost:   "durability is that file system's; no passthrough",
			Advice: "put it on a local disk; never on a mount of rdmcfs itself"}
	case fsType == magicOverlay:
		f = Finding{Level: Note, Topic: f.Topic, Text: dir + " is on overlayfs",
			Cost: "no passthrough; data goes with the container", Advice: "give the container a volume"}
	}
	return []Finding{f}
}

func checkSpace(h Host, dir string) []Finding {
	free, total, _, err := h.FreeDisk(dir)
	if err != nil {
		return nil // said by checkDataDir
	}
	text := fmt.Sprintf("%.1f GiB free of %.1f GiB", float64(free)/gib, float64(total)/gib)
	if free < freeBytesWanted {
		return []Finding{{Level: Problem, Topic: "space", Text: text, Cost: "the node refuses content, then changes",
			Advice: "free at least 1 GiB"}}
	}
	return []Finding{{Level: OK, Topic: "space", Text: text}}
}

func checkLimits(h Host, _ string) []Finding {
	var out []Finding
	_, files := h.Limit(unix.RLIMIT_NOFILE)
	if files < filesWanted {
		out = append(out, Finding{Level: Note, Topic: "open files", Text: fmt.Sprintf("at most %d", files),
			Cost:   "fewer files can be open on the mount at a time",
			Advice: fmt.Sprintf("raise it: LimitNOFILE=%d, or ulimit -n", filesWanted)})
	} else {
		out = append(out, Finding{Level: OK, Topic: "open files", Text: fmt.Sprintf("at most %d", files)})
	}
	return out
}

func checkCongestion(h Host, _ string) []Finding {
	now, err := h.ReadFile("/proc/sys/net/ipv4/tcp_congestion_control")
	if err != nil {
		return []Finding{{Level: Note, Topic: "tcp", Text: "congestion control is unknown: " + err.Error()}}
	}
	have, err := h.ReadFile("/proc/sys/net/ipv4/tcp_available_congestion_control")
	if err == nil && !slices.Contains(strings.Fields(have), "cubic") {
		return []Finding{{Level: Note, Topic: "tcp", Text: "cubic is not available; connections use " + now,
			Cost: "rates may swing on busy links", Advice: "modprobe tcp_cubic"}}
	}
	return []Finding{{Level: OK, Topic: "tcp", Text: "congestion control of this machine: " + now +
		"; data connections choose their own"}}
}
