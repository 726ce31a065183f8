//go:build linux && (amd64 || arm64) && !nordma

package verbs

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/rdmcfs/rdmcfs/rdma"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestWithoutLibrary: if a machine lacks libibverbs, the error says so, and what to install.
func TestWithoutLibrary(t *testing.T) {
	_, err := load("libibverbs-that-is-not-there.so.1")
	if !errors.Is(err, ErrNoLibrary) || !strings.Contains(err.Error(), "ibverbs-providers") {
		t.Errorf("error %v", err)
	}
	// The C library is there and has none of the functions.
	if _, err := load("libc.so.6"); !errors.Is(err, ErrNoLibrary) || !strings.Contains(err.Error(), "lacks ibv_") {
		t.Errorf("error %v", err)
	}
}

// TestMachineWithoutDevice: every call says what is missing.
func TestMachineWithoutDevice(t *testing.T) {
	if os.Getenv("RDMCFS_TEST_VERBS") != "" {
		t.Skip("this machine has a device")
	}
	if all, err := filepath.Glob(sysClass + "/*"); err != nil || len(all) > 0 {
		t.Skip("this machine has a device")
	}
	missing := func(err error) bool { return errors.Is(err, ErrNoLibrary) || errors.Is(err, ErrNoDevice) }
	if _, err := Open(Config{}); !missing(err) {
		t.Errorf("open: %v", err)
	}
	if _, err := Devices(); !missing(err) {
		t.Errorf("devices: %v", err)
	}
	if Present() {
		t.Error("there are devices that nobody lists")
	}
}

// TestNoneIsExplained: what is missing where the library finds no device: the driver, the files, or the library's own
// part.
func TestNoneIsExplained(t *testing.T) {
	for want, c := range map[string]struct{ devices, nodes []string }{
		"the kernel lists none":             {},
		"pass the devices":                  {devices: []string{"mlx5_0"}},
		"no driver for mlx5_0; install the": {devices: []string{"mlx5_0"}, nodes: []string{"/dev/infiniband/uverbs0"}},
	} {
		err := noneIn(c.devices, func(string) ([]string, error) { return c.nodes, nil })
		if !errors.Is(err, ErrNoDevice) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestConfigIsChecked(t *testing.T) {
	for _, cfg := range []Config{{PeerTimeout: -1}, {ReceiverTimeout: -1}, {Port: -1}} {
		if _, err := cfg.withDefaults(); err == nil {
			t.Errorf("configuration %+v was taken", cfg)
		}
	}
	cfg, err := Config{}.withDefaults()
	if err != nil || cfg.PeerTimeout != 2*time.Second || cfg.ReceiverTimeout != 5*time.Second || cfg.Log == nil {
		t.Errorf("defaults %+v, %v", cfg, err)
	}
	// A dead peer is noticed before a receiver counts as late.
	cfg, err = Config{PeerTimeout: time.Minute, ReceiverTimeout: time.Second}.withDefaults()
	if err != nil || cfg.ReceiverTimeout < 2*time.Minute {
		t.Errorf("receiver timeout %v, %v", cfg.ReceiverTimeout, err)
	}
}

func TestRetry(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := time.Duration(rapid.Int64Range(1, int64(5*time.Minute)).Draw(t, "want"))
		r := retryOf(want)
		if r.total() < want || r.count < 3 || r.count > 6 || r.shift > 31 {
			t.Fatalf("%v: %+v, %v", want, r, r.total())
		}
		if want > 10*time.Millisecond && r.total() > want*2 {
			t.Fatalf("%v: %+v takes %v", want, r, r.total())
		}
	})
}

func TestUsableLimits(t *testing.T) {
	for _, c := range []struct {
		device          Limits
		message         uint32
		inline          int
		want            rdma.Limits
		readsOut, reads uint8
	}{
		{Limits{QueueDepth: 32768, CompletionDepth: 4194303, SGE: 30, ReadSGE: 30, ReadsOut: 16, ReadsIn: 16}, 1 << 30, 256,
			rdma.Limits{MaxQueueDepth: 4096, MaxSGE: 8, MaxInline: 256, MaxMessage: 1 << 30}, 16, 16},
		{Limits{QueueDepth: 1 << 20, CompletionDepth: 100, SGE: 32, ReadSGE: 1, ReadsOut: 128, ReadsIn: 4}, 1 << 31, 64,
			rdma.Limits{MaxQueueDepth: 50, MaxSGE: 1, MaxInline: 64, MaxMessage: 1 << 30}, 16, 4},
		{Limits{QueueDepth: 2, CompletionDepth: 2, SGE: 4}, 4096, 0,
			rdma.Limits{MaxQueueDepth: 1, MaxSGE: 4, MaxMessage: 4096}, 1, 1},
	} {
		got, out, in := usableLimits(&c.device, c.message, c.inline)
		if got != c.want || out != c.readsOut || in != c.reads {
			t.Errorf("%+v: %+v %d %d", c.device, got, out, in)
		}
	}
}

// TestRemoteAddress: whatever a peer asks for, nothing below the region is reached, and spoilt keys name none.
func TestRemoteAddress(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rkey := rapid.Uint32().Draw(t, "rkey")
		first := rapid.Uint64Range(0, pageMask).Draw(t, "offset in the page")
		offset := rapid.Uint64().Draw(t, "offset")
		addr, got := remoteAddress(rdma.RegionKey(rkey)|rdma.RegionKey(first)<<keyShift, offset)
		if got != rkey || addr != first+offset {
			t.Fatalf("key %d, address %d", got, addr)
		}
		// a sum that wraps must stay below the region: there the device refuses it
		if offset > 1<<63 && addr >= first && addr < 1<<62 {
			t.Fatalf("offset %d wrapped to %d, into a region that begins at %d", offset, addr, first)
		}
		spoilt := rdma.RegionKey(rkey) | rdma.RegionKey(rapid.Uint64Range(1, 1<<(64-keyBits)-1).Draw(t, "more"))<<keyBits
		if _, got := remoteAddress(spoilt, offset); got != 0 {
			t.Fatalf("a spoilt key names region %d", got)
		}
	})
}

func gid(index int, addr, kind string) GIDInfo {
	return GIDInfo{Index: index, GID: netip.AddrFrom16(netip.MustParseAddr(addr).As16()), Type: kind}
}

func TestChooseGID(t *testing.T) {
	p := &PortInfo{Number: 1, LinkLayer: "Ethernet", GIDs: []GIDInfo{
		gid(0, "fe80::1", "RoCE v1"), gid(1, "fe80::1", "RoCE v2"), gid(2, "10.0.0.1", "RoCE v1"),
		gid(3, "2001:db8::1", "RoCE v2"), gid(4, "10.0.0.1", "RoCE v2"), gid(5, "10.0.0.2", "RoCE v2")}}
	for want, index := range map[string]int{"": 4, "0": 0, "5": 5, "10.0.0.1": 4, "::ffff:10.0.0.2": 5, "fe80::1": 1,
		"2001:db8::1": 3} {
		if g, err := chooseGID(p, want); err != nil || g.Index != index {
			t.Errorf("%q: %+v, %v", want, g, err)
		}
	}
	for _, want := range []string{"6", "-1", "10.0.0.3", "eth0"} {
		if _, err := chooseGID(p, want); err == nil {
			t.Errorf("%q was found", want)
		}
	}
	if g, err := chooseGID(&PortInfo{LinkLayer: "InfiniBand", GIDs: p.GIDs[3:]}, ""); err != nil || g.Index != 3 {
		t.Errorf("InfiniBand: %+v, %v", g, err)
	}
	if _, err := chooseGID(&PortInfo{LinkLayer: "Ethernet"}, ""); err == nil ||
		!strings.Contains(err.Error(), "an address") {
		t.Errorf("no GID: %v", err)
	}
}

func TestChoosePlace(t *testing.T) {
	active := func(number int, gids ...GIDInfo) PortInfo {
		return PortInfo{Number: number, State: "active", LinkLayer: "Ethernet", GIDs: gids}
	}
	first, second := gid(0, "10.0.0.1", "RoCE v2"), gid(0, "10.0.1.1", "RoCE v2")
	down := PortInfo{Number: 1, State: "down", GIDs: []GIDInfo{first}}
	info := &DeviceInfo{Name: "x", Ports: []PortInfo{down, active(2), active(3, first), active(4, second)}}
	for _, c := range []struct {
		port int
		gid  string
		want int // 0: refused
	}{
		{0, "", 3}, // the first that is active and has an address
		{1, "", 0}, {2, "", 0}, {3, "", 3}, {4, "", 4}, {5, "", 0},
		{0, "10.0.1.1", 4}, {0, "10.0.0.1", 3}, {3, "10.0.1.1", 0}, {0, "10.0.2.1", 0},
	} {
		at, err := choosePlace(info, &Config{Port: c.port, GID: c.gid})
		if c.want == 0 {
			if err == nil || !strings.HasPrefix(err.Error(), "x: ") {
				t.Errorf("port %d, GID %q: %+v, %v", c.port, c.gid, at, err)
			}
			continue
		}
		if err != nil || at.port.Number != c.want {
			t.Errorf("port %d, GID %q: %+v, %v, want port %d", c.port, c.gid, at, err, c.want)
		}
	}
}

// TestMovedPlace: after a change of addresses the one in use is found again, wherever it is now, unless there is a
// better one.
func TestMovedPlace(t *testing.T) {
	local, a, b := gid(0, "fe80::1", "RoCE v2"), gid(1, "10.0.0.1", "RoCE v2"), gid(2, "10.0.0.2", "RoCE v2")
	at := func(g GIDInfo, index int) GIDInfo { g.Index = index; return g }
	for _, c := range []struct {
		name string
		was  GIDInfo
		now  []GIDInfo
		want string
		gid  GIDInfo
	}{
		{"another index", a, []GIDInfo{local, at(b, 1), at(a, 3)}, "", at(a, 3)},
		{"another index, asked for", a, []GIDInfo{local, at(b, 1), at(a, 3)}, "10.0.0.1", at(a, 3)},
		{"an index was asked for", a, []GIDInfo{local, at(b, 1), at(a, 3)}, "1", at(b, 1)},
		{"gone", a, []GIDInfo{local, b}, "", b},
		{"a better one has come", local, []GIDInfo{local, a, b}, "", a},
		{"nothing has changed", b, []GIDInfo{local, a, b}, "", b},
	} {
		now, err := (&place{gid: c.was}).moved(&PortInfo{Number: 1, LinkLayer: "Ethernet", GIDs: c.now}, c.want)
		if err != nil || now.gid != c.gid {
			t.Errorf("%s: %+v, %v", c.name, now, err)
		}
	}
	if now, err := (&place{gid: a}).moved(&PortInfo{LinkLayer: "Ethernet"}, ""); err == nil {
		t.Errorf("no address: %+v", now)
	}
	ib := &PortInfo{LinkLayer: "InfiniBand", GIDs: []GIDInfo{at(b, 0), at(a, 1)}}
	if now, err := (&place{gid: a}).moved(ib, ""); err != nil || now.gid.Index != 1 {
		t.Errorf("InfiniBand: %+v, %v", now, err)
	}
}

func TestDescribePort(t *testing.T) {
	p := describePort(1, &portAttr{state: 4, mtu: 3, mtuMax: 5, linkLayer: linkEthernet, messageMax: 9, lid: 2,
		gidTable: 8})
	if !p.Active() || p.MTU != 1024 || p.MTUMax != 4096 || p.LinkLayer != "Ethernet" || p.LID != 2 || p.gidTable != 8 {
		t.Errorf("port %+v", p)
	}
	p = describePort(1, &portAttr{state: 99, mtu: 77})
	if p.Active() || p.State != "unknown" || p.MTU != 0 {
		t.Errorf("port %+v", p)
	}
	if got := portProblems(&p); len(got) != 2 {
		t.Errorf("problems %q", got)
	}
	p = PortInfo{State: "active", LinkLayer: "Ethernet", MTU: 1024, GIDs: []GIDInfo{gid(0, "fe80::1", "RoCE v2")}}
	if got := portProblems(&p); len(got) != 1 || !strings.Contains(got[0], "link-local") {
		t.Errorf("problems %q", got)
	}
	p.GIDs = append(p.GIDs, gid(1, "10.0.0.1", "RoCE v2"))
	if got := portProblems(&p); len(got) != 0 {
		t.Errorf("problems %q", got)
	}
}

func TestGIDInfo(t *testing.T) {
	dir := fstest.MapFS{
		"x/ports/1/gid_attrs/types/0": {Data: []byte("IB/RoCE v1\n")},
		"x/ports/1/gid_attrs/ndevs/0": {Data: []byte("eth0\n")},
		"x/ports/1/gid_attrs/types/1": {Data: []byte("RoCE v2\n")},
	}
	p := &PortInfo{Number: 1, LinkLayer: "Ethernet"}
	for i, want := range []GIDInfo{{Type: "RoCE v1", NetIf: "eth0"}, {Index: 1, Type: "RoCE v2"},
		{Index: 2, Type: "unknown"}} {
		want.GID = netip.IPv6Unspecified()
		if got := gidInfo(dir, "x", p, i, [16]byte{}); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
}

func TestPresence(t *testing.T) {
	dir := t.TempDir()
	for name, device := range map[string]string{"uverbs0": "mlx5_1\n", "uverbs1": "mlx5_0\n"} {
		file := filepath.Join(dir, name, "ibdev")
		if err := errors.Join(os.Mkdir(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(device), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if got := presenceOf(dir, "mlx5_0"); got != filepath.Join(dir, "uverbs1", "ibdev") {
		t.Errorf("found %q", got)
	}
	if got := presenceOf(dir, "mlx5_2"); got != "" {
		t.Errorf("found %q", got)
	}
}

func TestErrorsAreExplained(t *testing.T) {
	if err := pinError(1, syscall.EFAULT); !errors.Is(err, syscall.EFAULT) || !strings.Contains(err.Error(), "anonymous") {
		t.Error(err)
	}
	for errno, advice := range map[syscall.Errno]string{
		syscall.EACCES: "; run as root", syscall.ENOENT: "; load ib_uverbs", syscall.EIO: "; the kernel's log",
	} {
		if err := explained(fmt.Errorf("open x: %w", errno)); !errors.Is(err, errno) ||
			!strings.Contains(err.Error(), advice) {
			t.Error(err)
		}
	}
	if err := errors.New("x: port 1 is down"); explained(err) != err {
		t.Error(explained(err))
	}
	err := fmt.Errorf("%w: no usable device: %w", ErrNoDevice,
		refusals{errors.New("a is small"), pinError(1, syscall.EFAULT)})
	if !errors.Is(err, syscall.EFAULT) || !strings.Contains(err.Error(), "a is small; verbs: register") {
		t.Error(err)
	}
}

// TestLockedError: if the kernel has no memory and locked memory has a limit, the error says that, and what to do, for
// queues as for regions.
func TestLockedError(t *testing.T) {
	none := fmt.Errorf("verbs: create queue pair: %w", syscall.ENOMEM)
	limit := func(n uint64, err error) func() (uint64, error) { return func() (uint64, error) { return n, err } }
	err := lockedError(none, limit(64<<10, nil))
	if !errors.Is(err, ErrLockedMemory) || !errors.Is(err, syscall.ENOMEM) ||
		!strings.Contains(err.Error(), "64 KiB may be locked") {
		t.Error(err)
	}
	other := fmt.Errorf("verbs: create queue pair: %w", syscall.EINVAL)
	for _, c := range []struct {
		err   error
		limit func() (uint64, error)
	}{{none, limit(^uint64(0), nil)}, {none, limit(0, errors.New("unknown"))}, {other, limit(1, nil)}} {
		if got := lockedError(c.err, c.limit); got != c.err {
			t.Errorf("%v became %v", c.err, got)
		}
	}
}

func TestStatuses(t *testing.T) {
	for _, c := range []struct {
		wc         uint32
		op         rdma.Opcode
		send, recv rdma.Status
	}{
		{0, rdma.OpSend, rdma.StatusOK, rdma.StatusOK},
		{1, rdma.OpSend, rdma.StatusLocal, rdma.StatusLength},
		{4, rdma.OpWrite, rdma.StatusLocal, rdma.StatusLocal},
		{5, rdma.OpRead, rdma.StatusFlushed, rdma.StatusFlushed},
		{9, rdma.OpSend, rdma.StatusLength, rdma.StatusFlushed},
		{9, rdma.OpWrite, rdma.StatusRemoteAccess, rdma.StatusFlushed},
		{10, rdma.OpRead, rdma.StatusRemoteAccess, rdma.StatusFlushed},
		{11, rdma.OpSend, rdma.StatusLength, rdma.StatusFlushed},
		{12, rdma.OpSend, rdma.StatusDisconnected, rdma.StatusFlushed},
		{13, rdma.OpSend, rdma.StatusReceiverNotReady, rdma.StatusFlushed},
		{21, rdma.OpSend, rdma.StatusDisconnected, rdma.StatusFlushed},
	} {
		if got := sendStatus(c.wc, c.op); got != c.send {
			t.Errorf("send %d: %v, want %v", c.wc, got, c.send)
		}
		if got := recvStatus(c.wc); got != c.recv {
			t.Errorf("receive %d: %v, want %v", c.wc, got, c.recv)
		}
	}
}
