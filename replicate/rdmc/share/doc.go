// Package share decides whose turn it is to send when several groups share an outgoing link. It is pure: its callers
// pass it the time and hold the lock.
//
// An [Arbiter] has a [Share] for each group. A group asks before each send; one that is ahead of the others is refused,
// and [Arbiter.Next] returns it when its turn has come. Groups of one class share the link by bytes, each byte at what
// it costs a member of that rank ([Costs]); a higher class goes ahead of a lower one. Nobody waits for a group whose
// own neighbour is slow or has stopped (slow.go): that would leave the link idle. That is another question than which
// member of a group is slow, which package slow judges. See docs/decisions/018.
package share
