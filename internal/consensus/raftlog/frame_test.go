package raftlog

import (
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/rdmcfs/rdmcfs/test/codertest"
)

func FuzzDecodeContent(f *testing.F) {
	f.Add(goldenContent(f))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := decodeContent(b)
		if err != nil {
			return
		}
		r := &replay{}
		if r.use(c) == nil {
			_ = r.finish()
		}
		codertest.Stable(t, b, func(b []byte) ([]byte, error) { // sections come in any order, voters are protobuf
			c, err := decodeContent(b)
			if err != nil {
				return nil, err
			}
			return c.append(nil)
		})
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
