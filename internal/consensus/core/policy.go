package core

import (
	"slices"
	"time"
)

// VotersWanted is how many voters a cluster of n nodes should have: 1 up to 2 nodes, 3 up to 6, then 5.
func VotersWanted(n int) int {
	switch {
	case n <= 2:
		return 1
	case n <= 6:
		return 3
	default:
		return 5
	}
}

// Plan is a change of voters to make.
type Plan struct {
	Add, Remove []ID
}

// Empty reports whether there is nothing to do.
func (p Plan) Empty() bool { return len(p.Add) == 0 && len(p.Remove) == 0 }

// PlanVoters decides the next change of the voters: pure, so that it can be tested and simulated. Growth goes to the
// wanted number at once (from one voter to three in one step); a voter that has been down for deadAfter, or is no
// member any more, is replaced one at a time, and only while the others are a quorum without it. Nothing is done that
// needs a dead node to answer. Learners that no change of this leader's waits for are taken out when nothing else is to
// be done: another leader has left them.
func PlanVoters(members []Member, voters, learners []ID, self ID, deadAfter time.Duration) Plan {
	byID := map[ID]Member{}
	for _, m := range members {
		byID[m.ID] = m
	}
	if _, member := byID[self]; !member || !quorumUp(members, voters, self) {
		return Plan{} // an evicted node ends: what it still counts on itself for would be no quorum
	}
	plan := planVotes(members, byID, voters, self, deadAfter)
	if plan.Empty() {
		plan.Remove = slices.Clone(learners)
	}
	return plan
}

// quorumUp reports whether the members that are up are a quorum of voters. Self is up, whatever the log says.
func quorumUp(members []Member, voters []ID, self ID) bool {
	up := 0
	for _, m := range members {
		if slices.Contains(voters, m.ID) && (m.Up || m.ID == self) {
			up++
		}
	}
	return up > len(voters)/2
}

// FitToVote reports whether voters may take the place of others: the new ones are up, and all that are up are a quorum.
func FitToVote(members []Member, voters, before []ID, self ID) bool {
	for _, v := range voters {
		if !slices.Contains(before, v) && !quorumUp(members, []ID{v}, self) {
			return false
		}
	}
	return quorumUp(members, voters, self)
}

// planVotes is the part of PlanVoters that changes who votes.
func planVotes(members []Member, byID map[ID]Member, voters []ID, self ID, deadAfter time.Duration) Plan {
	spare := candidates(members, voters)
	want := VotersWanted(len(members))
	if dead, ok := deadVoter(byID, voters, self, deadAfter); ok {
		if len(spare) > 0 && len(voters) <= want {
			return Plan{Add: spare[:1], Remove: []ID{dead}}
		}
		if _, member := byID[dead]; !member || len(voters) > want {
			return Plan{Remove: []ID{dead}}
		}
		return Plan{}
	}
	switch {
	case len(voters) < want:
		n := min(want-len(voters), len(spare))
		if (len(voters)+n)%2 == 0 {
			n-- // an even number of voters needs as many answers and bears no more failures
		}
		return Plan{Add: spare[:max(n, 0)]}
	case len(voters) > want+1 || len(voters) > want && len(voters)%2 == 0:
		return Plan{Remove: surplus(byID, voters, self)}
	}
	return Plan{}
}

// candidates are nodes that could become voters, in a fixed order.
func candidates(members []Member, voters []ID) []ID {
	var list []ID
	for _, m := range members {
		if m.Up && !slices.Contains(voters, m.ID) {
			list = append(list, m.ID)
		}
	}
	slices.Sort(list)
	return list
}

func deadVoter(byID map[ID]Member, voters []ID, self ID, deadAfter time.Duration) (ID, bool) {
	for _, v := range voters {
		m, ok := byID[v]
		if v != self && (!ok || !m.Up && m.DownFor >= deadAfter) {
			return v, true
		}
	}
	return 0, false
}

// surplus picks one voter too many: a dead one first, never self.
func surplus(byID map[ID]Member, voters []ID, self ID) []ID {
	list := slices.Clone(voters)
	slices.SortFunc(list, func(a, b ID) int {
		if byID[a].Up != byID[b].Up {
			if byID[b].Up {
				return -1
			}
			return 1
		}
		if a < b {
			return 1
		}
		return -1
	})
	for _, v := range list {
		if v != self {
			return []ID{v}
		}
	}
	return nil
}
