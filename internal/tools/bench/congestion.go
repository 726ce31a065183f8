package bench

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// CheckCongestion refuses, with ErrUsage, a congestion control that sockets of this machine can't have: it would be
// left out silently. The default of rdma/tcp, cubic, is only a wish.
func CheckCongestion(name string) error {
	if name == "default" || name == "cubic" {
		return nil
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("bench: socket: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, name); err != nil {
		return usage("--congestion %q: %v; give one of net.ipv4.tcp_available_congestion_control, or default", name, err)
	}
	return nil
}
