package core

import "github.com/rdmcfs/rdmcfs/replicate/schedule"

// steps are the next steps of a member in the order of all steps of all messages.
type steps struct {
	rank     int
	leaf     bool // long messages end here: nothing is relayed
	messages *Messages
	in       cursor // next receipt to post
	out      cursor // next send to prepare
}

// cursor is a place in the order of all steps of all messages.
type cursor struct{ seq, step uint64 }

// startAt moves both cursors on to a message, if they are before it.
func (s *steps) startAt(seq uint64) {
	if s.in.seq < seq {
		s.in = cursor{seq: seq}
	}
	if s.out.seq < seq {
		s.out = cursor{seq: seq}
	}
}

// nextIn moves the cursor of receipts to the next step that brings something.
func (s *steps) nextIn() (*message, schedule.Transfer, bool) {
	for m := s.messages.at(s.in.seq); m != nil; m = s.messages.at(s.in.seq) {
		for s.in.step = max(s.in.step, m.receives.First); s.in.step < m.receives.End; s.in.step++ {
			if t, ok := m.sched.Incoming(s.rank, s.in.step); ok {
				return m, t, true
			}
		}
		s.in = cursor{seq: m.seq + 1}
	}
	return nil, schedule.Transfer{}, false
}

// nextOut moves the cursor of sends to the next step that sends something.
func (s *steps) nextOut() (*message, schedule.Transfer, bool) {
	for m := s.messages.at(s.out.seq); m != nil; m = s.messages.at(s.out.seq) {
		if s.leaf && m.count() >= schedule.PartBlocks {
			s.out.step = m.sends.End // of 2^32 blocks, to go over them takes longer than a neighbour may be silent
		}
		for s.out.step = max(s.out.step, m.sends.First); s.out.step < m.sends.End; s.out.step++ {
			if t, ok := m.sched.Outgoing(s.rank, s.out.step); ok {
				return m, t, true
			}
		}
		m.sentAll = true
		s.out = cursor{seq: m.seq + 1}
	}
	return nil, schedule.Transfer{}, false
}
