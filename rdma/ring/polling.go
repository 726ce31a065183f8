package ring

// none is no channel.
const none = -1

// Traffic is counted by halves: when a channel has had trafficMax messages all counts are halved. A channel displaces
// another when it has displaceRatio times its messages, and has had displaceMin, so that two equally busy channels
// don't take turns.
const (
	trafficMax    = 1 << 12
	displaceRatio = 2
	displaceMin   = 32
)

// pollingSet decides which channels are polled when not all can be (section 4.6): those with the most messages
// recently. Channels are small numbers.
type pollingSet struct {
	limit   int
	traffic []uint32
	members []int
}

// grow makes room for channel id.
func (s *pollingSet) grow(id int) {
	for len(s.traffic) <= id {
		s.traffic = append(s.traffic, 0)
	}
}

// heard counts a message of channel id.
func (s *pollingSet) heard(id int) {
	s.traffic[id]++
	if s.traffic[id] < trafficMax {
		return
	}
	for i := range s.traffic {
		s.traffic[i] /= 2
	}
}

// wants returns whether channel id, which is no member, should become one, and which member has to make room for it.
func (s *pollingSet) wants(id int) (join bool, instead int) {
	switch {
	case s.limit <= 0:
		return false, none
	case len(s.members) < s.limit:
		return true, none
	}
	least := s.members[0]
	for _, m := range s.members[1:] {
		if s.traffic[m] < s.traffic[least] {
			least = m
		}
	}
	if mine := s.traffic[id]; mine >= displaceMin && mine >= displaceRatio*s.traffic[least] {
		return true, least
	}
	return false, none
}

func (s *pollingSet) join(id int) { s.members = append(s.members, id) }

// leave takes a channel out of the set; it need not be in it.
func (s *pollingSet) leave(id int) {
	for i, m := range s.members {
		if m == id {
			s.members = append(s.members[:i], s.members[i+1:]...)
			return
		}
	}
}

// forget is for a number that will be used again.
func (s *pollingSet) forget(id int) {
	s.leave(id)
	s.traffic[id] = 0
}
