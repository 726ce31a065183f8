package replicate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
	"github.com/rdmcfs/rdmcfs/replicate/session"
)

// groupFault says which members spoiled a group.
type groupFault struct {
	suspects []session.Suspect
	err      error
}

// Error returns the cause.
func (f *groupFault) Error() string { return fmt.Sprintf("group failed: %v", f.err) }

// Unwrap returns the cause.
func (f *groupFault) Unwrap() error { return f.err }

// make sets a group up on all members and closes rg.made. ctx is the context of one session; others may wait for the
// group.
func (l *rootGroups) make(ctx context.Context, rg *rootGroup) {
	rg.group, rg.err = l.setUpInTime(ctx, rg)
	if rg.err != nil {
		rg.again = rg.again || ctx.Err() != nil
		l.drop(rg)
	} else {
		l.wg.Go(func() { l.watch(rg) })
	}
	close(rg.made)
}

func groupConfig(number uint64, members []meta.NodeID, rank int, form groupForm) rdmc.GroupConfig {
	names := make([]string, len(members))
	for i, n := range members {
		names[i] = strconv.FormatUint(uint64(n), 10)
	}
	return rdmc.GroupConfig{
		Number: number, Epoch: 1, Members: names, Rank: rank,
		BlockSize: int(form.BlockBytes), Algorithm: form.Algorithm, Racks: form.Racks, Yields: true,
		Window:   schedule.WindowOf(windowBytes, int(form.BlockBytes)),
		SendRate: form.SendRate, Priority: rdmcPriority(form.Priority),
	}
}

// setUp makes the group once. Where it fails members may be left with their ends.
func (l *rootGroups) setUp(ctx context.Context, rg *rootGroup) (Group, error) {
	ctx, cancel := context.WithTimeout(ctx, groupSetup)
	defer cancel()
	group, err := l.groups.NewGroup(groupConfig(rg.number, rg.members, 0, rg.form))
	if err != nil {
		return nil, fmt.Errorf("replicate: group %x: %w", rg.number, err)
	}
	byRank, err := l.openEnds(ctx, rg)
	if err == nil {
		byRank[0] = group.Addresses()
		err = l.connectEnds(ctx, rg, group, byRank)
	}
	if err != nil {
		group.Abort()
		return nil, err
	}
	return group, nil
}

// openEnds asks each member to make its end, and gathers the addresses: [rank][neighbour].
func (l *rootGroups) openEnds(ctx context.Context, rg *rootGroup) ([]map[int][]byte, error) {
	byRank := make([]map[int][]byte, len(rg.members))
	open := groupOpen{rg.number, rg.members, rg.form}
	request := open.encode()
	err := l.each(rg, func(rank int, node meta.NodeID) error {
		answer, err := l.peers.Call(ctx, node, KindGroup, request)
		if err != nil {
			return err
		}
		m, err := decodeGroupAddresses(answer)
		if err == nil {
			err = m.Refused.asError(node, KindGroup)
		}
		byRank[rank] = m.ByRank
		return err
	})
	return byRank, err
}

// connectEnds gives each end its neighbours' addresses and waits until all are connected. When a member refuses, no
// other one is waited for: its end has gone, and the others would wait for that until their time is over.
func (l *rootGroups) connectEnds(ctx context.Context, rg *rootGroup, group Group, byRank []map[int][]byte) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	own := make(chan error, 1)
	go func() { own <- group.Connect(ctx, addressesFor(0, byRank)) }()
	err := l.each(rg, func(rank int, node meta.NodeID) error {
		m := groupAddresses{Number: rg.number, ByRank: addressesFor(rank, byRank)}
		err := askOutcome(ctx, l.peers, node, KindConnect, m.encode())
		switch {
		case errors.Is(err, errRefused):
			cancel(err)
		case err != nil && errors.Is(context.Cause(ctx), errRefused):
			return nil // it was not waited for
		}
		return err
	})
	if err != nil {
		group.Fail(nil, err) // so that Connect ends
	}
	if ownErr := <-own; err == nil && ownErr != nil {
		err = faultOf(rg, ownErr)
	}
	return err
}

// addressesFor picks what the neighbours made for a rank.
func addressesFor(rank int, byRank []map[int][]byte) map[int][]byte {
	out := make(map[int][]byte)
	for neighbour, m := range byRank {
		if a, ok := m[rank]; ok {
			out[neighbour] = a
		}
	}
	return out
}

// askOutcome makes a call whose answer is no more than yes or a refusal, which becomes an error.
func askOutcome(ctx context.Context, peers Peers, node meta.NodeID, kind Kind, request []byte) error {
	answer, err := peers.Call(ctx, node, kind, request)
	if err != nil {
		return err
	}
	refused, err := decodeOutcome(answer)
	if err == nil {
		err = refused.asError(node, kind)
	}
	return err
}

// each runs do for all members except the root at the same time, and makes a fault of the errors.
func (l *rootGroups) each(rg *rootGroup, do func(rank int, node meta.NodeID) error) error {
	errs := make([]error, len(rg.members))
	var wg sync.WaitGroup
	for rank := 1; rank < len(rg.members); rank++ {
		wg.Go(func() { errs[rank] = do(rank, rg.members[rank]) })
	}
	wg.Wait()
	return blame(rg, errs)
}

// blame makes a fault of what members answered, by rank; nil if all is well. Members that only lack memory are blamed
// if no other members are.
func blame(rg *rootGroup, errs []error) error {
	var fault *groupFault
	for rank, err := range errs {
		switch {
		case err == nil || fault != nil && outOfMemory(err) && !outOfMemory(fault):
			continue
		case fault == nil || outOfMemory(fault) && !outOfMemory(err):
			fault = &groupFault{err: err}
		}
		reason := meta.OwedUnreachable
		if outOfMemory(err) {
			reason = meta.OwedSlow
		}
		fault.suspects = append(fault.suspects, session.Suspect{Node: rg.members[rank], Reason: reason})
	}
	switch {
	case fault == nil:
		return nil
	case errors.Is(fault, errRefused) && rg.yielded():
		fault.suspects = nil
	}
	return fault
}

// tell ends the group's ends at the members, as far as they can be reached.
func (l *rootGroups) tell(ctx context.Context, rg *rootGroup, abort bool) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	request := (&groupEnd{rg.number, abort}).encode()
	if err := l.each(rg, func(_ int, node meta.NodeID) error {
		return askOutcome(ctx, l.peers, node, KindGroupEnd, request)
	}); err != nil {
		l.log.Debug("group end not told to all", "group", rg.number, "err", err)
	}
}

// faultOf turns a group's failure into suspects.
func faultOf(rg *rootGroup, err error) error { return faultAt(rg, 0, err) }

// faultAt is faultOf for message seq of the group. A member that could not store an earlier message has done nothing to
// this one.
func faultAt(rg *rootGroup, seq uint64, err error) error {
	fault := &groupFault{err: err}
	var ge *rdmc.GroupError
	if !errors.As(err, &ge) {
		return fault
	}
	for _, rank := range ge.Suspects {
		if rank <= 0 || rank >= len(rg.members) || ge.Reason == rdmc.ReasonSink && rg.isBefore(rank, seq) {
			continue
		}
		fault.suspects = append(fault.suspects, session.Suspect{Node: rg.members[rank], Reason: reasonOf(ge.Reason)})
	}
	return fault
}

// isBefore reports whether a member has not come to a message of the group yet.
func (rg *rootGroup) isBefore(rank int, seq uint64) bool {
	return slices.ContainsFunc(rg.group.Progress(), func(p rdmc.MemberProgress) bool {
		return p.Rank == rank && p.Done+1 < seq
	})
}

func reasonOf(r rdmc.Reason) meta.OwedReason {
	switch r {
	case rdmc.ReasonSink, rdmc.ReasonCorrupt:
		return meta.OwedFailed
	}
	return meta.OwedUnreachable
}
