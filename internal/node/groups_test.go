package node

import (
	"context"
	"slices"
	"testing"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
)

// fakeGroups makes groups that remember who failed them.
type fakeGroups struct{}

type fakeGroup struct {
	replicate.Group
	suspects []int
}

func (fakeGroups) NewGroup(rdmc.GroupConfig) (replicate.Group, error) { return &fakeGroup{}, nil }
func (g *fakeGroup) Fail(suspects []int, _ error)                     { g.suspects = append(g.suspects, suspects...) }
func (g *fakeGroup) Close(context.Context) error                      { return nil }
func (g *fakeGroup) Abort()                                           {}

// A group ends when a member starts again, or when its root is down; not when another member only counts as down.
func TestGroupsEndWithTheirMembers(t *testing.T) {
	up, down := meta.NodeUp, meta.NodeDown
	for name, c := range map[string]struct {
		rank   int
		change meta.Node
		want   []int
	}{
		"member starts again":         {rank: 0, change: meta.Node{ID: 3, State: up, Incarnation: 8}, want: []int{2}},
		"seen by another member":      {rank: 1, change: meta.Node{ID: 3, State: up, Incarnation: 8}, want: []int{2}},
		"member down":                 {rank: 0, change: meta.Node{ID: 3, State: down, Incarnation: 7}},
		"root down":                   {rank: 1, change: meta.Node{ID: 1, State: down, Incarnation: 7}, want: []int{0}},
		"we count as down ourselves":  {rank: 0, change: meta.Node{ID: 1, State: down, Incarnation: 7}},
		"somebody who is not in it":   {rank: 0, change: meta.Node{ID: 9, State: up, Incarnation: 8}},
		"a member's record otherwise": {rank: 0, change: meta.Node{ID: 2, State: up, Incarnation: 7, Addr: "other:1"}},
	} {
		t.Run(name, func(t *testing.T) {
			nodes := map[meta.NodeID]meta.Node{}
			for id := range meta.NodeID(3) {
				nodes[id+1] = meta.Node{ID: id + 1, State: up, Incarnation: 7}
			}
			l := newLiveGroups(fakeGroups{}, func() *book { return &book{nodes: nodes} })
			cfg := rdmc.GroupConfig{Rank: c.rank, Members: []string{"1", "2", "3"}}
			g, err := l.NewGroup(cfg)
			if err != nil {
				t.Fatal(err)
			}
			ended, err := l.NewGroup(cfg)
			if err != nil {
				t.Fatal(err)
			}
			ended.Abort()
			nodes[c.change.ID] = c.change
			l.viewChanged()
			if got := g.(*liveGroup).Group.(*fakeGroup).suspects; !slices.Equal(got, c.want) {
				t.Errorf("suspects %v, want %v", got, c.want)
			}
			if got := ended.(*liveGroup).Group.(*fakeGroup).suspects; got != nil {
				t.Errorf("a group that ended before was failed: %v", got)
			}
		})
	}
}

// The start of a member while the group is being made is noticed too, though viewChanged has been called by then.
func TestGroupsSeeAChangeWhileTheyAreMade(t *testing.T) {
	books := []*book{
		{nodes: map[meta.NodeID]meta.Node{1: {ID: 1, State: meta.NodeUp}, 2: {ID: 2, State: meta.NodeUp, Incarnation: 7}}},
		{nodes: map[meta.NodeID]meta.Node{1: {ID: 1, State: meta.NodeUp}, 2: {ID: 2, State: meta.NodeUp, Incarnation: 8}}},
	}
	l := newLiveGroups(fakeGroups{}, func() *book {
		b := books[0]
		books = books[len(books)-1:]
		return b
	})
	g, err := l.NewGroup(rdmc.GroupConfig{Rank: 0, Members: []string{"1", "2"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := g.(*liveGroup).Group.(*fakeGroup).suspects; !slices.Equal(got, []int{1}) {
		t.Errorf("suspects %v, want [1]", got)
	}
}
