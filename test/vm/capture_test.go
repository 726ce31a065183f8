package vm

import (
	"bufio"
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// Opcodes of a base transport header: those of reliable connections, and of the datagrams by which pairs greet each
// other.
const (
	bthSendFirst = iota
	bthSendMiddle
	bthSendLast
	bthSendLastImm
	bthSendOnly
	bthSendOnlyImm
	bthWriteFirst
	bthWriteMiddle
	bthWriteLast
	bthWriteLastImm
	bthWriteOnly
	bthWriteOnlyImm
	bthReadRequest
	bthReadFirst
	bthReadMiddle
	bthReadLast
	bthReadOnly
	bthAcknowledge
	bthDatagram = 0x64
)

const (
	psnMask  = 1<<24 - 1
	rocePort = 4791
)

// bthPacket is what is looked at of a packet.
type bthPacket struct {
	frame, opcode, psn int
	syndrome           int // of an acknowledgement, -1 in others
	flow               string
	readBytes          int // that a read request asks for
}

// capture is what went over the wire, by phase.
type capture struct{ phases map[string][]bthPacket }

// What tshark prints of each packet, in this order.
var captureFields = []string{"frame.number", "ip.src", "udp.dstport", "infiniband.bth.destqp", "infiniband.bth.opcode",
	"infiniband.bth.psn", "infiniband.aeth.syndrome", "infiniband.reth.dmalen", "_ws.malformed", "_ws.expert.severity"}

// readCapture makes tshark read what QEMU recorded. Each packet of the phases has to be understood.
func readCapture(ctx context.Context, t *testing.T, path string) *capture {
	t.Helper()
	ports := fmt.Sprintf("udp.dstport in {%d, %d..%d}", rocePort, markerPort, markerPort+len(phases)-1)
	args := []string{"-n", "-r", path, "-Y", ports, "-T", "fields", "-E", "separator=|"}
	for _, f := range captureFields {
		args = append(args, "-e", f)
	}
	cmd := exec.CommandContext(ctx, "tshark", args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tshark: %v: %s", err, stderr.String())
	}
	c := &capture{phases: make(map[string][]bthPacket)}
	phase := ""
	lines := bufio.NewScanner(strings.NewReader(string(out)))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		words := strings.Split(lines.Text(), "|")
		if len(words) != len(captureFields) {
			t.Fatalf("tshark printed %.200q", lines.Text())
		}
		if port, err := strconv.Atoi(words[2]); err == nil && port != rocePort {
			phase = phases[port-markerPort]
			continue
		}
		p, err := parsePacket(words)
		if err != nil {
			t.Fatalf("packet %q: %v", words, err)
		}
		c.phases[phase] = append(c.phases[phase], p)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return c
}

// parsePacket reads what tshark printed of a packet to the port of RoCE v2.
func parsePacket(words []string) (p bthPacket, err error) {
	const note = 0x400000 // of expert severities; a warning is 0x600000, an error 0x800000
	if words[8] != "" {
		return p, fmt.Errorf("malformed")
	}
	for _, s := range strings.Split(words[9], ",") {
		if n, err := strconv.ParseInt(s, 0, 64); err == nil && n > note {
			return p, fmt.Errorf("tshark complains, severity %#x", n)
		}
	}
	p.flow, p.syndrome = words[1]+" to pair "+words[3], -1
	for _, f := range []struct {
		to       *int
		text     string
		optional bool
	}{{&p.frame, words[0], false}, {&p.opcode, words[4], false}, {&p.psn, words[5], false},
		{&p.syndrome, words[6], true}, {&p.readBytes, words[7], true}} {
		if f.optional && f.text == "" {
			continue
		}
		n, err := strconv.ParseInt(f.text, 0, 64)
		if err != nil {
			return p, err
		}
		*f.to = int(n)
	}
	return p, nil
}

// flowOf is one direction of a queue pair: what was sent, by number.
type flowOf struct {
	next    int  // the number that should come next
	inside  bool // a message of more than one packet
	started bool
	first   int
	seen    map[int]bool
	gaps    int // numbers that were left out when they were due
	repeats int
}

// request follows the numbers of requests; a read takes as many as its answer has packets.
func (f *flowOf) request(p bthPacket) {
	if !f.started {
		f.started, f.first, f.next, f.seen = true, p.psn, p.psn, make(map[int]bool)
	}
	step := 1
	if p.opcode == bthReadRequest {
		step = max(1, (p.readBytes+packetBytes-1)/packetBytes)
	}
	ahead := (p.psn - f.next) & psnMask
	if ahead > psnMask/2 {
		f.repeats++
		if before := (f.first - p.psn) & psnMask; before <= psnMask/2 {
			f.gaps, f.first = f.gaps+before, p.psn // what was seen first was not the first that was sent
		}
	} else {
		f.gaps += ahead
		f.next = (p.psn + step) & psnMask
	}
	for i := range step {
		f.seen[(p.psn+i)&psnMask] = true
	}
}

// missing is how many numbers up to the last were never on the wire.
func (f *flowOf) missing() int { return (f.next-f.first)&psnMask - len(f.seen) }

// check holds a phase to what its name says.
func (c *capture) check(t *testing.T, phase string) {
	packets := c.phases[phase]
	opcodes, flows, naks := make(map[int]int), make(map[string]*flowOf), 0
	for _, p := range packets {
		opcodes[p.opcode]++
		if p.syndrome >= 0x60 && p.opcode == bthAcknowledge {
			naks++
		}
		if p.opcode <= bthReadRequest {
			if flows[p.flow] == nil {
				flows[p.flow] = new(flowOf)
			}
			flows[p.flow].request(p)
		}
	}
	want := []int{bthSendFirst, bthSendMiddle, bthSendLastImm, bthSendOnlyImm, bthWriteFirst, bthWriteMiddle, bthWriteLast,
		bthWriteLastImm,
		bthReadRequest, bthReadFirst, bthReadMiddle, bthReadLast, bthAcknowledge, bthDatagram}
	if phase == phaseForeign { // the program sends without immediate values
		want = []int{bthSendFirst, bthSendMiddle, bthSendLast, bthSendLastImm, bthAcknowledge}
	}
	for _, opcode := range want {
		if opcodes[opcode] == 0 {
			t.Errorf("no packet with opcode %d", opcode)
		}
		delete(opcodes, opcode)
	}
	for opcode := range opcodes {
		if opcode > bthAcknowledge && opcode != bthDatagram {
			t.Errorf("%d packets with opcode %d", opcodes[opcode], opcode)
		}
	}
	sum := flowOf{}
	for name, f := range flows {
		t.Logf("%s: %d numbers from %d, %d left out at first, %d repeated, %d never seen",
			name, len(f.seen), f.first, f.gaps, f.repeats, f.missing())
		sum.gaps, sum.repeats = sum.gaps+f.gaps, sum.repeats+f.repeats
		if f.missing() != 0 {
			t.Errorf("%s: %d numbers were never on the wire", name, f.missing())
		}
	}
	t.Logf("%d packets, %d refusals of a number; other opcodes: %v", len(packets), naks, opcodes)
	if len(flows) != 2 {
		t.Errorf("%d flows of requests, want one each way", len(flows))
	}
	if lossy := phase == phaseLossy; lossy && (sum.gaps == 0 || sum.repeats == 0) || !lossy && sum.gaps != 0 {
		t.Errorf("%d numbers left out at first, %d repeats", sum.gaps, sum.repeats)
	}
}

// TestFlow: what is left out, repeated and never seen is counted, also where numbers begin again.
func TestFlow(t *testing.T) {
	var f flowOf
	for _, p := range []bthPacket{
		{psn: psnMask - 1}, {psn: 1}, {psn: psnMask}, {psn: 2, opcode: bthReadRequest, readBytes: 2 * packetBytes}, {psn: 4},
	} {
		f.request(p)
	}
	if f.first != psnMask-1 || f.gaps != 2 || f.repeats != 1 || f.missing() != 1 || len(f.seen) != 6 {
		t.Errorf("%d left out at first, %d repeats, %d never seen of %d", f.gaps, f.repeats, f.missing(), len(f.seen))
	}
}

// TestFlowWhoseFirstIsLost: the first number of all was left out, and comes as a repeat.
func TestFlowWhoseFirstIsLost(t *testing.T) {
	var f flowOf
	for _, psn := range []int{1, 2, psnMask, 0, 1, 2, 3} {
		f.request(bthPacket{psn: psn})
	}
	if f.first != psnMask || f.gaps != 2 || f.repeats != 4 || f.missing() != 0 || len(f.seen) != 5 {
		t.Errorf("from %d: %d left out at first, %d repeats, %d never seen of %d", f.first, f.gaps, f.repeats, f.missing(),
			len(f.seen))
	}
}

// TestPackets: a packet that tshark does not understand is refused.
func TestPackets(t *testing.T) {
	good := "7|10.77.0.1|4791|0x000013|17|4096|0|||"
	want := bthPacket{frame: 7, opcode: 17, psn: 4096, flow: "10.77.0.1 to pair 0x000013"}
	if p, err := parsePacket(strings.Split(good, "|")); err != nil || p != want {
		t.Errorf("%+v, %v", p, err)
	}
	for _, bad := range []string{"7|10.77.0.1|4791|||||||", good[:len(good)-1] + "1|", good[:len(good)-1] + "|8388608",
		"x" + good} {
		if p, err := parsePacket(strings.Split(bad, "|")); err == nil {
			t.Errorf("%q was taken for %+v", bad, p)
		}
	}
}
