package replicate

import (
	"context"
	"errors"
	"fmt"
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

// Error tells the cause.
func (f *groupFault) Error() string { return fmt.Sprintf("group failed: %v", f.err) }

// Unwrap returns the cause.
func (f *groupFault) Unwrap() error { return f.err }

// make sets up the group of a lane on all members and closes ln.made.
func (l *lanes) make(ctx context.Context, ln *lane) {
	ln.group, ln.err = l.setUpInTime(ctx, ln)
	if ln.err != nil {
		l.drop(ln)
	} else {
		l.wg.Go(func() { l.watch(ln) })
	}
	close(ln.made)
}

func groupConfig(number uint64, members []meta.NodeID, rank int, form groupForm) rdmc.GroupConfig {
	names := make([]string, len(members))
	for i, n := range members {
		names[i] = strconv.FormatUint(uint64(n), 10)
	}
	return rdmc.GroupConfig{
		Number: number, Epoch: 1, Members: names, Rank: rank,
		BlockSize: int(form.BlockBytes), Algorithm: form.Algorithm, Racks: form.Racks, Yields: true,
		Window: schedule.WindowOf(windowBytes, int(form.BlockBytes)),
	}
}

// setUp makes the group once. Where it fails members may be left with their ends.
func (l *lanes) setUp(ctx context.Context, ln *lane) (Group, error) {
	ctx, cancel := context.WithTimeout(ctx, groupSetup)
	defer cancel()
	group, err := l.groups.NewGroup(groupConfig(ln.number, ln.members, 0, ln.form))
	if err != nil {
		return nil, fmt.Errorf("replicate: group %x: %w", ln.number, err)
	}
	byRank, err := l.openEnds(ctx, ln)
	if err == nil {
		byRank[0] = group.Addresses()
		err = l.connectEnds(ctx, ln, group, byRank)
	}
	if err != nil {
		group.Abort()
		return nil, err
	}
	return group, nil
}

// openEnds asks each member to make its end, and gathers the addresses: [rank][neighbour].
func (l *lanes) openEnds(ctx context.Context, ln *lane) ([]map[int][]byte, error) {
	byRank := make([]map[int][]byte, len(ln.members))
	open := groupOpen{ln.number, ln.members, ln.form}
	request := open.encode()
	err := l.each(ln, func(rank int, node meta.NodeID) error {
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

// connectEnds gives each end its neighbours' addresses and waits until all are connected.
func (l *lanes) connectEnds(ctx context.Context, ln *lane, group Group, byRank []map[int][]byte) error {
	own := make(chan error, 1)
	go func() { own <- group.Connect(ctx, addressesFor(0, byRank)) }()
	err := l.each(ln, func(rank int, node meta.NodeID) error {
		m := groupAddresses{Number: ln.number, ByRank: addressesFor(rank, byRank)}
		return askOutcome(ctx, l.peers, node, KindConnect, m.encode())
	})
	if err != nil {
		group.Fail(nil, err) // so that Connect ends
	}
	if ownErr := <-own; err == nil && ownErr != nil {
		err = faultOf(ln, ownErr)
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

// each calls do for all members but the root at the same time, and makes a fault of those that failed.
func (l *lanes) each(ln *lane, do func(rank int, node meta.NodeID) error) error {
	errs := make([]error, len(ln.members))
	var wg sync.WaitGroup
	for rank := 1; rank < len(ln.members); rank++ {
		wg.Go(func() { errs[rank] = do(rank, ln.members[rank]) })
	}
	wg.Wait()
	return blame(ln, errs)
}

// blame makes a fault of what members answered, by rank; nil if all is well. Those that only lack memory are blamed
// if no others are.
func blame(ln *lane, errs []error) error {
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
		fault.suspects = append(fault.suspects, session.Suspect{Node: ln.members[rank], Reason: reason})
	}
	switch {
	case fault == nil:
		return nil
	case errors.Is(fault, errRefused) && ln.yielded():
		fault.suspects = nil
	}
	return fault
}

// tell ends the members' ends, as far as they can be reached.
func (l *lanes) tell(ctx context.Context, ln *lane, abort bool) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	request := (&groupEnd{ln.number, abort}).encode()
	if err := l.each(ln, func(_ int, node meta.NodeID) error {
		return askOutcome(ctx, l.peers, node, KindGroupEnd, request)
	}); err != nil {
		l.log.Debug("group end not told to all", "group", ln.number, "err", err)
	}
}

// faultOf turns a group's failure into suspects.
func faultOf(ln *lane, err error) error {
	fault := &groupFault{err: err}
	var ge *rdmc.GroupError
	if !errors.As(err, &ge) {
		return fault
	}
	for _, rank := range ge.Suspects {
		if rank > 0 && rank < len(ln.members) {
			fault.suspects = append(fault.suspects, session.Suspect{Node: ln.members[rank], Reason: reasonOf(ge.Reason)})
		}
	}
	return fault
}

func reasonOf(r rdmc.Reason) meta.OwedReason {
	switch r {
	case rdmc.ReasonSink, rdmc.ReasonCorrupt:
		return meta.OwedFailed
	}
	return meta.OwedUnreachable
}
