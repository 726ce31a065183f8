package vm

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/verbs"
	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

const (
	endVariable = "RDMCFS_TEST_WIRE" // which end of the wire this machine is: 1 or 2
	endOne      = "10.77.0.1"
	meetAt      = endOne + ":7500"
	markerPort  = 7501 // for datagrams that mark the phases in what QEMU records

	endLimit = 5 * time.Minute // of one step of an end
)

// The phases of an exchange.
const (
	phaseQuiet   = "Quiet"
	phaseForeign = "Foreign"
	phaseLossy   = "Lossy"
)

var phases = []string{phaseQuiet, phaseForeign, phaseLossy}

// lossRule is what happens to packets that leave an end in phaseLossy. A transfer of 64 KiB is 16 packets.
var lossRule = strings.Fields("loss 1%")

// told is what the ends send each other over TCP.
type told struct {
	Step    string
	Address []byte
	Key     rdma.RegionKey
	Sum     [32]byte
}

// wireEnd is one of the two machines.
type wireEnd struct {
	t     *testing.T
	first bool
	name  string // of the RDMA device
	conn  net.Conn
	enc   *gob.Encoder
	dec   *gob.Decoder
	dev   rdma.Device
}

// TestWireEnd is what each machine of TestWire runs.
func TestWireEnd(t *testing.T) {
	number := os.Getenv(endVariable)
	if number == "" {
		t.Skip("is run by TestWire, in a machine at one end of a wire")
	}
	e := &wireEnd{t: t, first: number == "1", name: rdmaDevice(t)}
	e.meet()
	var err error
	// Seven attempts, about a second apart, as soft RoCE restarts its count of them only after an acknowledgement.
	e.dev, err = verbs.Open(verbs.Config{Device: e.name, PeerTimeout: 7 * time.Second, ReceiverTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.dev.Close(); err != nil {
			t.Error(err)
		}
	})
	e.begin(phaseQuiet)
	e.exchange(phaseQuiet)
	e.begin(phaseForeign)
	e.foreign()
	e.begin(phaseLossy)
	before := e.repeats()
	e.disturb("add")
	e.exchange(phaseLossy)
	e.disturb("del")
	t.Logf("repeats that the device counted: %d", e.repeats()-before)
	e.say(told{Step: "end"})
}

// meet joins the ends by TCP.
func (e *wireEnd) meet() {
	e.t.Helper()
	var err error
	if e.first {
		var l net.Listener
		if l, err = net.Listen("tcp", meetAt); err != nil {
			e.t.Fatal(err)
		}
		defer l.Close()
		if err = l.(*net.TCPListener).SetDeadline(time.Now().Add(endLimit)); err == nil {
			e.conn, err = l.Accept()
		}
	} else {
		e.conn, err = dialPatiently(meetAt)
	}
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { e.conn.Close() })
	e.enc, e.dec = gob.NewEncoder(e.conn), gob.NewDecoder(e.conn)
}

// dialPatiently connects with one who may not listen yet.
func dialPatiently(address string) (net.Conn, error) {
	var err error
	for deadline := time.Now().Add(endLimit); time.Now().Before(deadline); <-time.After(100 * time.Millisecond) {
		var conn net.Conn
		if conn, err = net.DialTimeout("tcp", address, 5*time.Second); err == nil {
			return conn, nil
		}
	}
	return nil, err
}

// say sends the other end something and hears its answer, which is about the same step: so both are there.
func (e *wireEnd) say(mine told) (theirs told) {
	e.t.Helper()
	err := errors.Join(e.conn.SetDeadline(time.Now().Add(endLimit)), e.enc.Encode(mine), e.dec.Decode(&theirs))
	if err != nil {
		e.t.Fatalf("%s: the other end: %v", mine.Step, err)
	}
	if theirs.Step != mine.Step {
		e.t.Fatalf("the other end is at %q, this at %q", theirs.Step, mine.Step)
	}
	return theirs
}

// begin has both ends at a phase, and marks its beginning on the wire.
func (e *wireEnd) begin(phase string) {
	e.t.Helper()
	e.say(told{Step: "end of the phase before " + phase})
	if e.first {
		conn, err := net.Dial("udp", fmt.Sprintf("10.77.0.2:%d", markerPort+slices.Index(phases, phase)))
		if err != nil {
			e.t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write([]byte(phase)); err != nil {
			e.t.Fatal(err)
		}
	}
	e.say(told{Step: phase})
}

// disturb adds or deletes the rule by which packets are lost, at both ends.
func (e *wireEnd) disturb(what string) {
	e.t.Helper()
	words := append([]string{"qdisc", what, "dev", "eth0", "root", "netem"}, lossRule...)
	if out, err := exec.Command("tc", words...).CombinedOutput(); err != nil {
		e.t.Fatalf("tc %v: %v: %s", words, err, out)
	}
	e.say(told{Step: what + " the loss"})
}

// repeats is how often the device has noticed that a packet was missing, late or doubled.
func (e *wireEnd) repeats() (sum int64) {
	e.t.Helper()
	for _, name := range []string{"duplicate_request", "out_of_seq_request", "rcvd_seq_err", "completer_retry_err"} {
		sum += counter(e.t, e.name, name)
	}
	return sum
}

// foreign exchanges messages with ibv_rc_pingpong of rdma-core, which end 1 runs; see TestPingPong of rdma/verbs.
func (e *wireEnd) foreign() {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.t.Context(), endLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "ibv_rc_pingpong", "-d", e.name, "-g", "1", "-s", "60000", "-n", "200", "-m", "4096")
	if !e.first {
		cmd = exec.CommandContext(ctx, filepath.Join(cluster.Root(e.t), "bin", "verbs.test"), "-test.run", "^TestPingPong$",
			"-test.v")
		cmd.Env = append(os.Environ(), "RDMCFS_TEST_PINGPONG="+endOne)
	}
	out, err := cmd.CombinedOutput()
	e.t.Logf("%v\n%s", cmd.Args[0], out)
	if err != nil {
		e.t.Fatal(err)
	}
	if !e.first && !strings.Contains(string(out), "--- PASS: TestPingPong") {
		e.t.Fatal("TestPingPong did not run")
	}
}
