//go:build linux && (amd64 || arm64) && !nordma

package verbs

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// What the command line of ibv_rc_pingpong says, here and in test/vm.
const (
	pingPort    = "18515"
	pingBytes   = 60000
	pingRounds  = 200
	pingMTUCode = 5
)

// pingText is the line that both sides of ibv_rc_pingpong exchange over TCP, with the zero byte of C.
const pingText = 4 + 1 + 6 + 1 + 6 + 1 + 32 + 1

// TestPingPong exchanges messages with ibv_rc_pingpong of rdma-core (Debian: ibverbs-utils), a program that knows
// nothing of ours. RDMCFS_TEST_PINGPONG names the machine where it waits; else it is started here.
func TestPingPong(t *testing.T) {
	name := deviceName(t)
	server := os.Getenv("RDMCFS_TEST_PINGPONG")
	if server == "" {
		server = "127.0.0.1"
		ctx, cancel := context.WithCancel(t.Context())
		cmd := exec.CommandContext(ctx, "ibv_rc_pingpong",
			"-d", name, "-g", "2", "-s", strconv.Itoa(pingBytes), "-n", strconv.Itoa(pingRounds), "-m", "4096")
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if t.Failed() {
				cancel()
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("ibv_rc_pingpong: %v", err)
			}
			cancel()
			t.Logf("%s", out.String())
		}()
	}
	d := testDevice(t, Config{PeerTimeout: 7 * time.Second, ReceiverTimeout: patience})
	d.bell.muted.Store(true) // the program has no bell
	s := newSide(t, d, 2*pingBytes)
	if err := s.qp.PostRecv(rdma.RecvWR{List: s.list(pingBytes, pingBytes)}); err != nil {
		t.Fatal(err)
	}
	if err := s.qp.(*queuePair).joinPingPong(server); err != nil {
		t.Fatal(err)
	}
	for i := range uint64(pingRounds) {
		s.pingPong(t, i)
	}
	if err := s.qp.Close(); err != nil {
		t.Error(err)
	}
}

// pingPong sends bytes by chance, and gets them back: the program sends from the buffer that it receives into.
func (s *side) pingPong(t *testing.T, i uint64) {
	t.Helper()
	mine, theirs := s.mem.Bytes()[:pingBytes], s.mem.Bytes()[pingBytes:]
	rand.NewChaCha8([32]byte{byte(i), 1}).Read(mine)
	if err := s.qp.PostSend(rdma.SendWR{ID: i, Op: rdma.OpSend, List: s.list(0, pingBytes)}); err != nil {
		t.Fatal(err)
	}
	done, err := s.take(2) // the send, and the answer
	if err != nil {
		t.Fatalf("round %d: %v", i, err)
	}
	for _, c := range done {
		if c.Status != rdma.StatusOK || c.Bytes != pingBytes {
			t.Fatalf("round %d: %v of %d bytes: %v", i, c.Op, c.Bytes, c.Status)
		}
	}
	if !bytes.Equal(mine, theirs) {
		t.Fatalf("round %d: other bytes came back", i)
	}
	if i+1 < pingRounds {
		if err := s.qp.PostRecv(rdma.RecvWR{List: s.list(pingBytes, pingBytes)}); err != nil {
			t.Fatal(err)
		}
	}
}

// joinPingPong exchanges with the program, over TCP, what its queue pair and this one need of each other, as its
// client does.
func (q *queuePair) joinPingPong(server string) error {
	conn, err := dialUntil(net.JoinHostPort(server, pingPort), time.Now().Add(patience))
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(conn, "%04x:%06x:%06x:%032x\x00", q.local.lid, q.local.qpn, q.local.psn,
		q.local.gid); err != nil {
		return err
	}
	text := make([]byte, pingText)
	if _, err := io.ReadFull(conn, text); err != nil {
		return err
	}
	peer := address{mtu: pingMTUCode, link: q.local.link, readsIn: 1}
	var gid string
	if _, err := fmt.Sscanf(string(text[:pingText-1]), "%04x:%06x:%06x:%32s", &peer.lid, &peer.qpn, &peer.psn,
		&gid); err != nil {
		return fmt.Errorf("ibv_rc_pingpong said %q: %w", text, err)
	}
	if n, err := hex.Decode(peer.gid[:], []byte(gid)); err != nil || n != len(peer.gid) {
		return fmt.Errorf("ibv_rc_pingpong has GID %q: %w", gid, err)
	}
	_, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	if err := errors.Join(q.beginConnect(&peer, cancel), q.endConnect(q.bringUp())); err != nil {
		return err
	}
	_, err = conn.Write([]byte("done\x00"))
	return err
}

// dialUntil connects with one who may not listen yet.
func dialUntil(address string, deadline time.Time) (net.Conn, error) {
	for {
		conn, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil || time.Now().After(deadline) {
			return conn, err
		}
		<-time.After(50 * time.Millisecond)
	}
}
