// Package slow judges which members of a session are slow. It is a pure core: times and counts come in, verdicts go
// out. It reads no clock, takes no lock and waits for nothing; test/tidy checks that. Its callers take the locks.
//
// A member is compared with the others by the bytes that each has moved, never with a time alone: a loaded machine or a
// slow network slows all of them down, and no member is left out for that. Times only bound how long a measurement
// takes.
//
//   - [Judge] finds a member that lags in a group, because its link, its disk or its processor is slow.
//   - [Patience] says for how long a member of a group may stand still.
//   - [Puts] finds a member that takes the bytes of a small content slowly. [Sharing] says which time counts for it.
//
// See docs/decisions/038.
package slow
