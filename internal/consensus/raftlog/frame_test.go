package raftlog

import (
	"testing"

	"go.etcd.io/raft/v3/raftpb"
)

func FuzzDecodeContent(f *testing.F) {
	c := content{identity: &Identity{ID: 1}, prevFrame: 3, hard: &raftpb.HardState{Term: new(uint64(1))},
		base: &Base{Index: 1, Term: 1, Conf: &raftpb.ConfState{Voters: []uint64{1}}}, reset: true, intent: &Base{Index: 9, Term: 2},
		entries: []*raftpb.Entry{{Index: new(uint64(2)), Term: new(uint64(1)), Data: []byte("x")}}}
	b, err := c.append(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := decodeContent(b)
		if err != nil {
			return
		}
		r := &replay{}
		if r.use(c) == nil {
			_ = r.finish()
		}
		if _, err := c.append(nil); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzReadSegment(f *testing.F) {
	head := content{identity: &Identity{ID: 1}, hard: &raftpb.HardState{}, base: &Base{}}
	payload, _ := head.append(nil)
	image := appendFrame(nil, kindHead, 1, 1, payload)
	batch := content{entries: []*raftpb.Entry{{Index: new(uint64(1)), Term: new(uint64(1)), Data: make([]byte, 600)}}}
	payload, _ = batch.append(nil)
	image = appendFrame(image, kindBatch, 1, 2, payload)
	image = append(image, make([]byte, 600)...)
	f.Add(image, uint64(0))
	f.Add(image, uint64(2))
	f.Fuzz(func(t *testing.T, b []byte, limit uint64) {
		s := &segmentImage{seq: 1, data: b}
		if s.readHead() != nil {
			return
		}
		r := &replay{}
		if r.use(s.head) == nil {
			if _, err := s.readFrames(limit, r.use); err == nil {
				_ = r.finish()
			}
		}
	})
}
