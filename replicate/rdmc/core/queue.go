package core

// Messages are the messages of a group that are announced here and not finished, in their order.
type Messages struct {
	list    []*message // that have begun, by number, without gaps
	backing []*message // the array that list lies in, from its start
	first   uint64     // number of list[0], or of the next message
	early   map[uint64]*message
}

// Messages are the messages that are announced here and not finished.
func (c *Member) Messages() *Messages { return &c.messages }

// Next is the number of the next message to begin.
func (q *Messages) Next() uint64 { return q.first + uint64(len(q.list)) }

// Queued is how many messages are announced and not finished.
func (q *Messages) Queued() int { return len(q.list) + len(q.early) }

// IsUnderWay reports whether the message has begun and is not finished.
func (q *Messages) IsUnderWay(seq uint64) bool { return q.at(seq) != nil }

// IsOver reports whether the message has ended here, and all before it: at the root, when all members have stored them.
func (q *Messages) IsOver(seq uint64) bool { return q.first > seq }

// Have is what is stored here of a message that has not finished, or nil. It is the member's own, which changes it.
func (q *Messages) Have(seq uint64) *Bitmap {
	if m := q.at(seq); m != nil {
		return m.have
	}
	if m := q.early[seq]; m != nil {
		return m.have
	}
	return nil
}

// at is the message with the number, or nil if it has not begun. It has not finished.
func (q *Messages) at(seq uint64) *message {
	if i := seq - q.first; i < uint64(len(q.list)) {
		return q.list[i]
	}
	return nil
}

// push appends to the list, whose array is used again and again.
func (q *Messages) push(m *message) {
	if n := len(q.list); n == cap(q.list) && cap(q.backing) > 2*n {
		whole := q.backing[:cap(q.backing)]
		copy(whole, q.list)
		clear(whole[n:])
		q.list = whole[:n]
	}
	moved := len(q.list) == cap(q.list)
	q.list = append(q.list, m)
	if moved {
		q.backing = q.list
	}
}

// pop takes out the oldest message.
func (q *Messages) pop() *message {
	m := q.list[0]
	q.list[0] = nil
	q.list = q.list[1:]
	q.first++
	return m
}
