package session_test

import (
	"fmt"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/blockset"
	"github.com/rdmcfs/rdmcfs/meta/id"
	"github.com/rdmcfs/rdmcfs/replicate/session"
)

// A shell of a root, whose one member lacks all four blocks, gets them, and votes.
func Example() {
	var events []session.RootEvent
	perform := func(actions []session.RootAction) {
		for _, action := range actions {
			switch a := action.(type) {
			case session.Announce:
				fmt.Println("announce epoch", a.Epoch, "to node", a.Node)
				none := session.Standing{Epoch: a.Epoch, Status: session.StatusReady, Have: blockset.NewBitmap(4)}
				events = append(events, session.Answered{Node: a.Node, Standing: none})
			case session.Send:
				fmt.Println("send", a.Blocks.Count(), "blocks to nodes", a.Members)
				events = append(events, session.GroupDone{Epoch: a.Epoch, Part: a.Part})
			case session.Poll:
				if a.HasHash {
					fmt.Println("ask node", a.Node, "for its vote")
					events = append(events, session.Polled{Node: a.Node,
						Standing: session.Standing{Epoch: a.Epoch, Status: session.StatusVoted}})
				}
			}
		}
	}
	now := time.Unix(0, 0)
	s := session.NewRoot(session.RootConfig{Members: []id.Node{2}, Blocks: 4, Limits: session.DefaultLimits()})
	perform(s.Start(now))
	events = append(events, session.Hashed{Hash: [32]byte{1}}, session.OwnCopy{}) // all was read and is stored here
	for s.Phase() != session.RootEnded {
		var next session.RootEvent
		next, events = events[0], events[1:]
		perform(s.Step(now, next))
	}
	fmt.Println("node 2 is", s.Members()[0].State)
	// Output:
	// announce epoch 0 to node 2
	// send 4 blocks to nodes [2]
	// ask node 2 for its vote
	// node 2 is stored
}
