package consensus

import (
	"testing"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/rdmcfs/rdmcfs/internal/consensus/core"
	"github.com/rdmcfs/rdmcfs/test/codertest"
)

func filled[T any]() *T {
	m := new(T)
	codertest.Fill(m)
	return m
}

// goldenBodies has the body of each frame and call, and what lies in the log.
func goldenBodies() map[string][]byte {
	conf := &raftpb.ConfState{Voters: []uint64{1, 2}, Learners: []uint64{3}}
	return map[string][]byte{
		"hello":         filled[hello]().append(nil),
		"forward":       appendForward(nil, filled[core.Proposal]()),
		"nack":          filled[nack]().append(nil),
		"call":          filled[call]().append(nil),
		"reports":       appendReports(nil, []report{*filled[report](), {id: 9}}),
		"marks":         filled[markList]().append(nil),
		"state":         (&clusterState{1, 2, 3, 4, conf}).append(nil),
		"state-zero":    new(clusterState).append(nil),
		"entries":       appendEntries(nil, sampleEntries()),
		"snapshot":      (&snapHead{1, 2, -3, conf}).append(nil),
		"follow":        appendBody(nil, &followCall{7, *filled[proof]()}),
		"clock-call":    appendBody(nil, filled[clockCall]()),
		"clock-answer":  appendBody(nil, &clockAnswer{1, 2, 3, 4, 1, map[ID]time.Duration{9: -1, 5: 2}}),
		"ids":           appendBody(nil, &votersCall{add: []ID{1, 2}}),
		"envelope":      filled[core.Proposal]().Envelope(-2),
		"frame":         appendFrame([]byte("before"), frameReports, func(b []byte) []byte { return append(b, "body"...) }),
		"frame-empty":   appendFrame(nil, framePing, nil),
		"snapshot-time": snapshotTimeBytes(5),
	}
}

func snapshotTimeBytes(at int64) []byte {
	var s raftpb.Snapshot
	core.SetSnapshotTime(&s, at)
	return s.Data
}

// Other nodes speak these bytes, and the logs of running clusters have them.
func TestGoldenBytes(t *testing.T) { codertest.Golden(t, goldenBodies()) }
