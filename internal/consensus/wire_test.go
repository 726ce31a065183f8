package consensus

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/rdmcfs/rdmcfs/internal/consensus/core"
	"github.com/rdmcfs/rdmcfs/test/codertest"
)

func sampleEntries() []core.Committed {
	p := core.Proposal{Origin: 3, Run: 4, Seq: 5, Flags: 1, Data: []byte("data")}
	return []core.Committed{
		{Index: 7, Term: 2, Raw: p.Envelope(99)},
		{Index: 8, Term: 2, Type: raftpb.EntryConfChangeV2, Raw: []byte{8, 1},
			Conf: &raftpb.ConfState{Voters: []uint64{1, 2}, Learners: []uint64{3}}},
		{Index: 9, Term: 3},
	}
}

func TestWireRoundTrips(t *testing.T) {
	opts := []cmp.Option{protocmp.Transform(), cmp.AllowUnexported(hello{}, nack{}, report{}, clusterState{}, snapHead{},
		call{})}
	same := func(name string, want, got any, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if diff := cmp.Diff(want, got, opts...); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	h := hello{purpose: 2, cluster: [16]byte{1, 2}, generation: 3, from: 4, to: 5}
	gotHello, err := decode[hello](h.append(nil))
	same("hello", h, gotHello, err)
	gotEntries, err := decode[entryList](appendEntries(nil, sampleEntries()))
	same("entries", entryList(sampleEntries()), gotEntries, err)
	reports := []report{{id: 1, applied: 2, synced: 3, visible: 4, flags: 1, ageMillis: 5}, {id: 9}}
	gotReports, err := decode[reportList](appendReports(nil, reports))
	same("reports", reportList(reports), gotReports, err)
	state := clusterState{leader: 1, term: 2, commit: 3, confIndex: 4, conf: &raftpb.ConfState{Voters: []uint64{1}}}
	gotState, err := decode[clusterState](state.append(nil))
	same("state", state, gotState, err)
	head := snapHead{index: 1, term: 2, timeNanos: -3, conf: &raftpb.ConfState{Voters: []uint64{1}}}
	gotHead, err := decode[snapHead](head.append(nil))
	same("snapshot head", head, gotHead, err)
	n := nack{run: 1, seq: 2, reason: 3, text: "why"}
	gotNack, err := decode[nack](n.append(nil))
	same("nack", n, gotNack, err)
	p := core.Proposal{Origin: 8, Run: 1, Seq: 2, Flags: 1, Data: []byte("x")}
	gotForward, err := decodeForward(appendForward(nil, &p), 8)
	same("forward", p, gotForward, err)
}

func TestFramesAreChecked(t *testing.T) {
	frame := appendFrame(nil, frameReports, func(b []byte) []byte { return append(b, "some body"...) })
	for i := range frame {
		broken := append([]byte(nil), frame...)
		broken[i] ^= 0x10
		if kind, body, err := readFrame(bytes.NewReader(broken), 1000); err == nil {
			t.Fatalf("byte %d broken: frame of type %d with %q", i, kind, body)
		}
	}
	if _, _, err := readFrame(bytes.NewReader(frame), 3); err == nil {
		t.Fatal("longer than allowed")
	}
}

func FuzzReadFrame(f *testing.F) {
	f.Add(appendFrame(nil, 1, func(b []byte) []byte { return append(b, 1, 2, 3) }))
	f.Fuzz(func(t *testing.T, b []byte) {
		if kind, body, err := readFrame(bytes.NewReader(b), 1<<16); err == nil {
			again := appendFrame(nil, kind, func(b []byte) []byte { return append(b, body...) })
			if !bytes.HasPrefix(b, again) {
				t.Fatal("frame changes")
			}
		}
	})
}

// again decodes a body and encodes it.
func again[T any, P interface {
	*T
	message
}](b []byte) ([]byte, error) {
	m, err := decode[T, P](b)
	return appendBody(nil, P(&m)), err
}

// FuzzDecodeBodies holds every decoder to: no panic, bounded memory, and what is accepted encodes to the same bytes,
// where no protobuf is in it.
func FuzzDecodeBodies(f *testing.F) {
	for _, b := range goldenBodies() {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, decoder := range []func([]byte) ([]byte, error){
			again[hello], again[forward], again[call], again[barrierCall], again[idList], again[votersCall], again[reportList],
			again[followCall], again[clockCall], again[clockAnswer], again[number],
		} {
			codertest.Again(t, b, decoder)
		}
		for _, decoder := range []func([]byte) ([]byte, error){
			again[nack], again[clusterState], again[snapHead], again[entryList],
		} {
			codertest.Stable(t, b, decoder)
		}
		if list, err := decode[entryList](b); err == nil {
			for i := range list {
				if _, _, err := list[i].Entry(); err != nil {
					t.Fatalf("accepted entry does not open: %v", err)
				}
			}
		}
	})
}
