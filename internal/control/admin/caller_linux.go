package admin

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Caller is the process that asks, as the kernel knows it.
type Caller struct {
	UID     uint32
	Login   uint32 // the user who had logged in before any sudo; NoUser if not known
	Command string // its command line, with the name of the program without its folder; "" if not known
}

// NoUser stands for a user who is not known, as in /proc/PID/loginuid.
const NoUser = ^uint32(0)

// commandBytesMax bounds what is read of a command line.
const commandBytesMax = 4096

type callerKey struct{}

// withCaller keeps who is at the other end of a connection; it serves as [http.Server.ConnContext].
func withCaller(ctx context.Context, conn net.Conn) context.Context {
	uc, ok := conn.(*net.UnixConn)
	if !ok {
		return ctx
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return ctx
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil || credErr != nil {
		return ctx
	}
	return context.WithValue(ctx, callerKey{}, *cred)
}

// CallerOf is who asks, in a handler of a [Server]. A process that has ended by now is known by its user only.
func CallerOf(ctx context.Context) Caller {
	cred, ok := ctx.Value(callerKey{}).(unix.Ucred)
	if !ok {
		return Caller{UID: NoUser, Login: NoUser}
	}
	c := Caller{UID: cred.Uid, Login: NoUser}
	if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/loginuid", cred.Pid)); err == nil {
		if id, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32); err == nil {
			c.Login = uint32(id)
		}
	}
	c.Command = commandOf(cred.Pid)
	return c
}

// commandOf is the command line of a process, its words with spaces between them.
func commandOf(pid int32) string {
	f, err := os.Open(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return ""
	}
	defer f.Close()
	text := make([]byte, commandBytesMax)
	n, err := f.Read(text)
	if err != nil {
		return "" // nothing is left of a process that has ended and is not waited for yet
	}
	words := strings.Split(string(bytes.TrimRight(text[:n], "\x00")), "\x00")
	words[0] = filepath.Base(words[0])
	for i, word := range words {
		if strings.ContainsAny(word, " \t\n") {
			words[i] = strconv.Quote(word)
		}
	}
	return strings.Join(words, " ")
}
