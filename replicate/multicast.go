package replicate

import (
	"context"

	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
)

// Groups makes ends of multicast groups. Implemented by Multicast over an rdmc.Engine, and by doubles in tests.
type Groups interface {
	NewGroup(cfg rdmc.GroupConfig) (Group, error)
}

// Group is one member's end of a multicast group, with the meanings of rdmc.Group.
type Group interface {
	Addresses() map[int][]byte
	Connect(ctx context.Context, remote map[int][]byte) error
	Send(out rdmc.Outgoing) (Transfer, error)
	Receive(a rdmc.Announcement, r rdmc.Receiver) (Transfer, error)
	Progress() []rdmc.MemberProgress
	Failed() <-chan struct{}
	Err() error
	Fail(suspects []int, cause error)
	Close(ctx context.Context) error
	Abort()
}

// Transfer is one message of a group at one member, with the meanings of rdmc.Transfer.
type Transfer interface {
	Announcement() rdmc.Announcement
	Stored() <-chan struct{}
	Done() <-chan struct{}
	Err() error
}

// Multicast makes groups of an engine.
func Multicast(e *rdmc.Engine) Groups { return engineGroups{e} }

type engineGroups struct{ engine *rdmc.Engine }

func (g engineGroups) NewGroup(cfg rdmc.GroupConfig) (Group, error) {
	group, err := g.engine.NewGroup(cfg)
	if err != nil {
		return nil, err
	}
	return engineGroup{group}, nil
}

// engineGroup makes the transfers of an rdmc.Group fit the interface.
type engineGroup struct{ *rdmc.Group }

func (g engineGroup) Send(out rdmc.Outgoing) (Transfer, error) {
	t, err := g.Group.Send(out)
	if err != nil {
		return nil, err
	}
	return t, nil
}

func (g engineGroup) Receive(a rdmc.Announcement, r rdmc.Receiver) (Transfer, error) {
	t, err := g.Group.Receive(a, r)
	if err != nil {
		return nil, err
	}
	return t, nil
}
