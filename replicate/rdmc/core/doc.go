// Package core is a member of a group of package rdmc as a pure state machine: values in, values out.
//
// A [Member] knows the schedule, which blocks are where, credits, reports, and how the group ends. It has no goroutine,
// lock, clock, socket or memory of blocks. Its owner, the shell, has these, and does the following under one lock:
//
//  1. It passes the time ([Member.SetClock]) and tells the member what happened: [Member.Announce],
//     [Member.BlockReceived], [Member.ControlReceived] and so on.
//  2. It takes the [Action]s that the member has left and carries them out in their order. Package rdmc posts work
//     requests and calls Sources and Sinks; the simulations of this package move values in virtual time.
//
// A neighbour is named by its lane, a number from 0 on, and a block buffer by its slot, a number from 0 on. The shell
// never needs to know what is in a slot: actions name the block that they are for.
//
// The package also has what travels between members: the [Announcement] of a message, the [Trailer] of each block,
// and the control message. docs/WIRE.md has their bytes.
package core
