//go:build linux && (amd64 || arm64) && !nordma

package verbs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sysClass is where the kernel describes its RDMA devices.
const sysClass = "/sys/class/infiniband"

// devNodes are the files by which programs open them.
const devNodes = "/dev/infiniband/uverbs*"

// errNone says why the library finds no device.
func errNone() error { return noneIn(present(), filepath.Glob) }

func noneIn(devices []string, glob func(string) ([]string, error)) error {
	nodes, err := glob(devNodes)
	switch {
	case len(devices) == 0:
		return fmt.Errorf("%w: the kernel lists none in %s; load the driver of the card, or rdma_rxe for a software one",
			ErrNoDevice, sysClass)
	case err == nil && len(nodes) == 0:
		return fmt.Errorf("%w: %s is missing; load ib_uverbs, or pass the devices into the container", ErrNoDevice, devNodes)
	}
	return fmt.Errorf("%w: libibverbs has no driver for %s; install the package ibverbs-providers (rdma-core), or the "+
		"vendor's",
		ErrNoDevice, strings.Join(devices, ", "))
}

// present are the names of the kernel's devices.
func present() []string {
	entries, err := os.ReadDir(sysClass)
	if err != nil { // a kernel without RDMA
		return nil
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names
}

// Present reports whether the kernel has RDMA devices, whether or not they can be opened.
func Present() bool { return len(present()) > 0 }

// Devices describes all devices of this machine. It opens each for a moment. Without the library the error is
// ErrNoLibrary, without a device ErrNoDevice.
func Devices() ([]DeviceInfo, error) {
	l, err := loadLibrary()
	if err != nil {
		return nil, err
	}
	var all []DeviceInfo
	err = l.eachDevice(func(name string, device uintptr) error {
		info, err := l.inspect(name, device)
		if err != nil {
			info = DeviceInfo{Name: name, Problems: []string{explained(err).Error()}}
		}
		all = append(all, info)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, errNone()
	}
	return all, nil
}

const lockedAdvice = "set LimitMEMLOCK=infinity in the unit, ulimit -l unlimited in the shell, or memlock in " +
	"/etc/security/limits.conf"

// lockedLimit is RLIMIT_MEMLOCK in bytes, or no limit for a process that may ignore it.
func lockedLimit() (uint64, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		return 0, fmt.Errorf("verbs: limit on locked memory: %w", err)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err == nil && data[0].Effective&(1<<unix.CAP_IPC_LOCK) != 0 {
		return ^uint64(0), nil
	}
	return limit.Cur, nil
}

// eachDevice passes every device to do, until do returns an error.
func (l *library) eachDevice(do func(name string, device uintptr) error) error {
	var count int32
	list, errno := l.call(l.getDeviceList, uintptr(unsafe.Pointer(&count)))
	if list == 0 {
		if errno == 0 || errno == syscall.ENOSYS { // a kernel without RDMA
			return nil
		}
		return fmt.Errorf("verbs: list devices: %w", errno)
	}
	defer l.call(l.freeDeviceList, list)
	for i := range uintptr(count) {
		device := *field[uintptr](list, 8*i)
		name, _ := l.call(l.getDeviceName, device)
		if err := do(cString(name), device); err != nil {
			return err
		}
	}
	return nil
}

// cString copies a string of C's, of a sane length.
func cString(p uintptr) string {
	if p == 0 {
		return ""
	}
	var b []byte
	for i := range uintptr(256) {
		c := *field[byte](p, i)
		if c == 0 {
			break
		}
		b = append(b, c)
	}
	return string(b)
}

func (l *library) inspect(name string, device uintptr) (DeviceInfo, error) {
	if *field[int32](device, deviceTransport) == transportIWARP {
		return DeviceInfo{}, errIWARP(name)
	}
	context, err := l.object("open "+name, l.openDevice, device)
	if err != nil {
		return DeviceInfo{}, err
	}
	defer l.call(l.closeDevice, context)
	return l.describe(name, context)
}

// describe asks an open device for everything.
func (l *library) describe(name string, context uintptr) (DeviceInfo, error) {
	attr := new(deviceAttr)
	if err := l.check("query "+name, l.queryDevice, context, uintptr(unsafe.Pointer(attr))); err != nil {
		return DeviceInfo{}, err
	}
	info := describeDevice(name, attr)
	for number := 1; number <= int(attr.ports); number++ {
		p, err := l.portOf(context, name, number)
		if err != nil {
			return info, err
		}
		p.Problems = portProblems(&p)
		info.Ports = append(info.Ports, p)
	}
	return info, nil
}

// portOf asks an open device for a port and its addresses.
func (l *library) portOf(context uintptr, name string, number int) (PortInfo, error) {
	port := new(portAttr)
	what := fmt.Sprintf("query port %d of %s", number, name)
	if err := l.check(what, l.queryPort, context, uintptr(number), uintptr(unsafe.Pointer(port))); err != nil {
		return PortInfo{}, err
	}
	p := describePort(number, port)
	l.gids(context, name, &p)
	return p, nil
}

func describeDevice(name string, a *deviceAttr) DeviceInfo {
	return DeviceInfo{
		Name: name, Vendor: a.vendor,
		Firmware: string(bytes.TrimRight(a.firmware[:], "\x00")),
		Limits: Limits{
			QueuePairs: int(a.qpMax), CompletionQueues: int(a.cqMax), Regions: int(a.mrMax),
			QueueDepth: int(a.qpWRMax), CompletionDepth: int(a.cqeMax), SGE: int(a.sgeMax), ReadSGE: int(a.readSGEMax),
			RegionBytes: a.regionMax, ReadsOut: int(a.readsOut), ReadsIn: int(a.readsIn),
		},
	}
}

func describePort(number int, a *portAttr) PortInfo {
	p := PortInfo{
		Number: number, State: "unknown", LinkLayer: "unknown", LID: a.lid, MessageBytesMax: a.messageMax,
		MTU: mtuBytes(a.mtu), MTUMax: mtuBytes(a.mtuMax), gidTable: int(a.gidTable), mtuCode: uint8(a.mtu),
		mtuMaxC: uint8(a.mtuMax),
	}
	if states := [...]string{"nop", "down", "init", "armed", "active", "deferred"}; int(a.state) < len(states) {
		p.State = states[a.state]
	}
	switch a.linkLayer {
	case linkInfiniBand:
		p.LinkLayer = "InfiniBand"
	case linkEthernet:
		p.LinkLayer = "Ethernet"
	}
	return p
}

// mtuBytes is the size that a code of the MTU stands for: 1 is 256, 5 is 4096.
func mtuBytes(code uint32) int {
	if code < 1 || code > 5 {
		return 0
	}
	return 128 << code
}

// gids fills in the table of addresses. Entries that are empty are left out.
func (l *library) gids(context uintptr, name string, p *PortInfo) {
	const tableMax = 1 << 8 // requests name an entry by one byte
	dir := os.DirFS(sysClass)
	for i := range min(p.gidTable, tableMax) {
		gid := new([16]byte)
		err := l.check("query gid", l.queryGID, context, uintptr(p.Number), uintptr(i), uintptr(unsafe.Pointer(gid)))
		if err != nil || *gid == [16]byte{} {
			continue
		}
		p.GIDs = append(p.GIDs, gidInfo(dir, name, p, i, *gid))
	}
}

// gidInfo adds what only the kernel's files say about an entry.
func gidInfo(dir fs.FS, device string, p *PortInfo, index int, gid [16]byte) GIDInfo {
	g := GIDInfo{Index: index, GID: netip.AddrFrom16(gid), Type: "InfiniBand"}
	if p.LinkLayer == "InfiniBand" {
		return g
	}
	attrs := fmt.Sprintf("%s/ports/%d/gid_attrs/", device, p.Number)
	g.Type = "unknown"
	if text, err := fs.ReadFile(dir, attrs+"types/"+strconv.Itoa(index)); err == nil {
		switch strings.TrimSpace(string(text)) {
		case "RoCE v2":
			g.Type = "RoCE v2"
		case "IB/RoCE v1", "RoCE v1":
			g.Type = "RoCE v1"
		}
	}
	if text, err := fs.ReadFile(dir, attrs+"ndevs/"+strconv.Itoa(index)); err == nil {
		g.NetIf = strings.TrimSpace(string(text))
	}
	return g
}

func portProblems(p *PortInfo) []string {
	var out []string
	if !p.Active() {
		out = append(out,
			fmt.Sprintf("port %d is %s: check cable, switch and (InfiniBand) the subnet manager, "+
				"or set the network interface up",
				p.Number, p.State))
	}
	if len(p.GIDs) == 0 {
		out = append(out, fmt.Sprintf("port %d has no GID: give its network interface an address", p.Number))
	}
	routed := func(g GIDInfo) bool { return !g.GID.IsLinkLocalUnicast() }
	if p.LinkLayer == "Ethernet" && len(p.GIDs) > 0 && !slices.ContainsFunc(p.GIDs, routed) {
		out = append(out, fmt.Sprintf("port %d has only link-local addresses, by which only its own network is reached: "+
			"give its network interface an IP address", p.Number))
	}
	if p.Active() && p.MTU < 1024 {
		out = append(out, fmt.Sprintf("port %d has an MTU of %d bytes: raise that of its network interface", p.Number, p.MTU))
	}
	return out
}

// explained adds, to the reason why a device that the kernel lists cannot be opened, what to do.
func explained(err error) error {
	var errno syscall.Errno
	switch {
	case errors.Is(err, ErrLockedMemory), !errors.As(err, &errno):
		return err
	case errno == syscall.EACCES, errno == syscall.EPERM:
		return fmt.Errorf("%w: no right to open %s; run as root, or add the user to its group", err, devNodes)
	case errno == syscall.ENOENT, errno == syscall.ENXIO:
		return fmt.Errorf("%w: %s is missing; load ib_uverbs, or pass the devices into the container", err, devNodes)
	}
	return fmt.Errorf("%w; the kernel's log may tell more", err)
}
