package raftlog

import (
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/rdmcfs/rdmcfs/test/codertest"
)

// goldenContent has each section.
func goldenContent(t testing.TB) []byte {
	var id Identity
	codertest.Fill(&id)
	c := content{
		identity: &id, prevFrame: 3, hard: &raftpb.HardState{Term: new(uint64(1)), Vote: new(uint64(2)),
			Commit: new(uint64(3))},
		base:  &Base{Index: 4, Term: 5, Time: -6, Conf: &raftpb.ConfState{Voters: []uint64{1, 2}, Learners: []uint64{3}}},
		reset: true, intent: &Base{Index: 9, Term: 2}, marks: []Mark{{ID: 1, Index: 4, Term: 5}},
		entries: []*raftpb.Entry{
			{Index: new(uint64(5)), Term: new(uint64(1)), Data: []byte("data")},
			{Index: new(uint64(6)), Term: new(uint64(1)), Type: raftpb.EntryConfChangeV2.Enum()},
		},
	}
	b, err := c.append(nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The logs of running clusters have these bytes.
func TestGoldenBytes(t *testing.T) {
	payload := goldenContent(t)
	codertest.Golden(t, map[string][]byte{
		"content": payload,
		"frame":   appendFrame([]byte("before"), kindBatch, 2, 0x0102030405060708, payload),
		"empty":   appendFrame(nil, kindHead, 1, 1, nil),
	})
}
