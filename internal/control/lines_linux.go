package control

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// WatchLines calls up whenever a network interface of this machine gets its carrier back, until ctx ends. Connections
// over it may come up to a second later: the kernel asks only once a second for the address of a machine that did not
// answer. It blocks. An error says that the kernel gives no such news.
func WatchLines(ctx context.Context, up func()) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("control: watch network interfaces: %w", err)
	}
	news := os.NewFile(uintptr(fd), "netlink")
	defer news.Close()
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: unix.RTMGRP_LINK}); err != nil {
		return fmt.Errorf("control: watch network interfaces: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { news.Close() })
	defer stop()
	known, buf := carriers{}, make([]byte, 64<<10)
	for {
		n, err := news.Read(buf)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS): // some news are lost
		case err != nil:
			return fmt.Errorf("control: watch network interfaces: %w", err)
		case known.take(buf[:n]):
			up()
		}
	}
}

// carriers says which network interfaces have a carrier, by their index, as far as the kernel has sent news.
type carriers map[uint32]bool

// take reads the kernel's news and reports whether an interface has its carrier back.
func (c carriers) take(news []byte) (back bool) {
	list, err := syscall.ParseNetlinkMessage(news)
	if err != nil {
		return false
	}
	for _, m := range list {
		if len(m.Data) < unix.SizeofIfInfomsg {
			continue
		}
		index, flags := binary.NativeEndian.Uint32(m.Data[4:]), binary.NativeEndian.Uint32(m.Data[8:])
		switch m.Header.Type {
		case unix.RTM_NEWLINK:
			has, known := c[index]
			c[index] = flags&unix.IFF_RUNNING != 0
			back = back || known && !has && c[index]
		case unix.RTM_DELLINK:
			delete(c, index)
		}
	}
	return back
}
