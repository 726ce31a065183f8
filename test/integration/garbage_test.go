package integration

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/internal/control"
	"github.com/rdmcfs/rdmcfs/internal/credentials"
	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// The main thread stays where it is, because the process as a whole is found through it: if onHost left it on a node,
// the whole test would be killed with the node's processes.
func init() { runtime.LockOSThread() }

// onHost runs f on a thread in the network namespace of a node. Sockets that f makes stay there.
func onHost(t *testing.T, c *cluster.Cluster, n *cluster.Node, f func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		done <- func() error {
			fd, err := unix.Open("/run/netns/"+c.Net().Name(n.Index), unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
				return err
			}
			return f()
		}()
	}()
	if err := <-done; err != nil {
		t.Fatalf("on %s: %v", n.Name(), err)
	}
}

const garbageWait = 2 * time.Second

// throw sends bytes and reads what comes until the other end has had enough, or a short while.
func throw(conn net.Conn, data []byte) {
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(garbageWait))
	conn.Write(data)
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		half.CloseWrite()
	}
	io.Copy(io.Discard, conn)
}

// frame is a frame of package control.
func frame(kind byte, id uint64, argument uint32, payload []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(payload)))
	b = append(b, kind, 0, 0, 0)
	b = binary.BigEndian.AppendUint64(b, id)
	b = binary.BigEndian.AppendUint32(b, argument)
	b = binary.BigEndian.AppendUint32(b, 0)
	return append(b, payload...)
}

var helloFrame = frame(1, 0, 0, []byte{0, 0, 0, 1, 0, 0, 0, 1})

func noise(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// strangersNoise is what someone without a certificate may send.
func strangersNoise(r *rand.Rand) [][]byte {
	out := [][]byte{nil, {0x16}, {0}, []byte("GET / HTTP/1.1\r\n\r\n"),
		{0x16, 3, 1, 0xff, 0xff}, append([]byte{0x16, 3, 3, 0x40, 0}, noise(r, 0x4000)...), helloFrame}
	for range 20 {
		out = append(out, noise(r, 1+r.IntN(100_000)))
	}
	return out
}

// membersNoise is what a broken member may send after its handshake.
func membersNoise(r *rand.Rand) [][]byte {
	const kindReplicate, kindsReserved = 1, control.KindReserved
	out := [][]byte{nil, noise(r, 1000), frame(2, 0, 7, []byte("goodbye")), helloFrame}
	after := func(b []byte) { out = append(out, append(append([]byte{}, helloFrame...), b...)) }
	after(noise(r, 100_000))
	after(frame(1, 0, 0, nil))
	after(frame(200, 1, 0, nil))
	after([]byte{0xff, 0xff, 0xff, 0xff, 3, 0, 0, 0})
	for kind := range uint32(8) {
		after(frame(3, 1, kindsReserved+kind, noise(r, 100)))
	}
	var calls []byte
	for kind := range 256 { // the first byte says for replicate what the rest is
		for i, bytes := range []int{0, 1, 8, 40, 3000} {
			calls = append(calls, frame(byte(3+i%2), uint64(kind*8+i+1), kindReplicate,
				append([]byte{byte(kind)}, noise(r, bytes)...))...)
		}
	}
	after(calls)
	return out
}

// Garbage on the port, before and after a valid handshake.
func TestGarbageOnThePort(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3})
	const seed = 12
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, seed))
	target, member := c.Nodes[0], c.Nodes[1]
	creds, err := credentials.Dir(filepath.Join(member.Data, "tls")).LoadIdentity(time.Now)
	if err != nil {
		t.Fatal(err)
	}
	onHost(t, c, member, func() error {
		for i, data := range strangersNoise(r) {
			conn, err := net.Dial("tcp", target.Addr)
			if err != nil {
				return fmt.Errorf("stranger %d: %w", i, err)
			}
			throw(conn, data)
		}
		for _, proto := range []string{control.ProtocolPeer, control.ProtocolRaft, control.ProtocolRenew,
			control.ProtocolJoin} {
			for i, data := range membersNoise(r) {
				raw, err := net.Dial("tcp", target.Addr)
				if err != nil {
					return fmt.Errorf("member %d: %w", i, err)
				}
				conn := tls.Client(raw, creds.ClientConfig(1, proto))
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				err = conn.HandshakeContext(ctx)
				cancel()
				if err != nil {
					return fmt.Errorf("%s: handshake: %w", proto, err)
				}
				throw(conn, data)
			}
		}
		return nil
	})
	for _, n := range c.Nodes {
		if !n.Running() {
			t.Errorf("%s died: %v", n.Name(), n.ExitErr())
		}
	}
	c.AwaitUp(c.Nodes...)
	worksEverywhere(t, c, "after")
	c.AwaitNothingOwed(60 * time.Second)
	c.AwaitAgreement(60 * time.Second)
}
