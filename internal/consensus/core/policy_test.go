package core

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func up(ids ...ID) (list []Member) {
	for _, id := range ids {
		list = append(list, Member{ID: id, Up: true})
	}
	return list
}

func TestPlanVoters(t *testing.T) {
	const deadAfter = 10 * time.Minute
	down := func(list []Member, id ID, d time.Duration) []Member {
		for i := range list {
			if list[i].ID == id {
				list[i].Up, list[i].DownFor = false, d
			}
		}
		return list
	}
	cases := []struct {
		name        string
		members     []Member
		voters      []ID
		add, remove []ID
	}{
		{"one node", up(1), []ID{1}, nil, nil},
		{"two nodes keep one voter", up(1, 2), []ID{1}, nil, nil},
		{"the third node makes three voters at once", up(1, 2, 3), []ID{1}, []ID{2, 3}, nil},
		{"not two voters when the third is down", down(up(1, 2, 3), 3, time.Second), []ID{1}, nil, nil},
		{"six nodes keep three", up(1, 2, 3, 4, 5, 6), []ID{1, 2, 3}, nil, nil},
		{"seven nodes want five", up(1, 2, 3, 4, 5, 6, 7), []ID{1, 2, 3}, []ID{4, 5}, nil},
		{"a voter down for a while stays", down(up(1, 2, 3, 4), 2, 9*time.Minute), []ID{1, 2, 3}, nil, nil},
		{"a dead voter is replaced", down(up(1, 2, 3, 4), 2, 11*time.Minute), []ID{1, 2, 3}, []ID{4}, []ID{2}},
		{"a dead voter without a substitute stays", down(up(1, 2, 3), 2, time.Hour), []ID{1, 2, 3}, nil, nil},
		{"a voter that is no member is replaced", up(1, 2, 4), []ID{1, 2, 3}, []ID{4}, []ID{3}},
		{"a voter that is no member, without a substitute", up(1, 2), []ID{1, 2, 3}, nil, []ID{3}},
		{"a leader that was evicted plans nothing", up(2, 3), []ID{1, 2, 3}, nil, nil},
		{"two left of three: one of them goes", up(1, 2), []ID{1, 2}, nil, []ID{2}},
		{"without a quorum nothing", down(down(up(1, 2, 3, 4), 2, time.Hour), 3, time.Hour), []ID{1, 2, 3}, nil, nil},
	}
	for _, tc := range cases {
		p := PlanVoters(tc.members, tc.voters, nil, 1, deadAfter)
		if !slices.Equal(p.Add, tc.add) || !slices.Equal(p.Remove, tc.remove) {
			t.Errorf("%s: add %v remove %v", tc.name, p.Add, p.Remove)
		}
	}
}

// TestPlanForLearners: learners that were left are taken out after all else, by a leader that may change anything.
func TestPlanForLearners(t *testing.T) {
	for _, tc := range []struct {
		name          string
		members       []Member
		voters, learn []ID
		want          Plan
	}{
		{"evicted, or still a member", up(1, 2, 3, 4), []ID{1, 2, 3}, []ID{4, 9}, Plan{Remove: []ID{4, 9}}},
		{"one is to vote", up(1, 2, 3), []ID{1}, []ID{3, 9}, Plan{Add: []ID{2, 3}}},
		{"no quorum", up(1), []ID{1, 2, 3}, []ID{9}, Plan{}},
		{"the leader was evicted", up(2, 3), []ID{1, 2, 3}, []ID{9}, Plan{}},
	} {
		p := PlanVoters(tc.members, tc.voters, tc.learn, 1, 10*time.Minute)
		if !slices.Equal(p.Add, tc.want.Add) || !slices.Equal(p.Remove, tc.want.Remove) {
			t.Errorf("%s: add %v remove %v", tc.name, p.Add, p.Remove)
		}
	}
}

// TestPlansAreSafeAndSettle applies plans until there is none: it ends, never removes a majority at once, never self.
func TestPlansAreSafeAndSettle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 12).Draw(t, "members")
		var members []Member
		for i := range n {
			m := Member{ID: ID(i + 1), Up: i == 0 || rapid.Bool().Draw(t, "up")}
			if !m.Up {
				m.DownFor = time.Duration(rapid.IntRange(0, 20).Draw(t, "minutes")) * time.Minute
			}
			members = append(members, m)
		}
		voters := []ID{1}
		for id := range rapid.IntRange(0, 6).Draw(t, "voters") {
			voters = append(voters, ID(id+2))
		}
		for range 30 {
			p := PlanVoters(members, voters, nil, 1, 10*time.Minute)
			if p.Empty() {
				return
			}
			if len(p.Remove) > 1 || slices.Contains(p.Remove, 1) {
				t.Fatalf("remove %v", p.Remove)
			}
			for _, id := range p.Add {
				if !members[id-1].Up || slices.Contains(voters, id) {
					t.Fatalf("add %v", p.Add)
				}
			}
			voters = slices.DeleteFunc(append(voters, p.Add...), func(id ID) bool { return slices.Contains(p.Remove, id) })
			if len(voters) > 7 && len(p.Add) > 0 {
				t.Fatalf("voters %v", voters)
			}
		}
		t.Fatal("plans don't end")
	})
}
