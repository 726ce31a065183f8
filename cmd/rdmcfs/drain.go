package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/exitcode"
	"github.com/rdmcfs/rdmcfs/internal/terminal"
	"github.com/rdmcfs/rdmcfs/internal/units"
)

const (
	drainPoll = 500 * time.Millisecond // between looks
	// a look takes long where there are many files: the pause is this many times as long
	drainShare = 4
)

type drainCmd struct {
	Node string `arg:"" help:"Number or name of the node."`
	Undo bool   `help:"End the drain: the node takes new files again."`
	jsonFlag
}

// Run begins the drain, which is in the log from then on, and waits for its end.
func (c *drainCmd) Run(a *app) error {
	st, err := a.status()
	if err != nil {
		return err
	}
	id, err := findNode(st.Nodes, c.Node)
	if err != nil {
		return err
	}
	state, err := a.client.Drain(a.ctx, admin.DrainRequest{Node: id, Undo: c.Undo})
	if err == nil && !c.Undo {
		state, err = a.awaitDrain(state)
	}
	if err != nil {
		return err
	}
	if c.JSON {
		if err := a.printJSON(state); err != nil || c.Undo {
			return err
		}
		return drained(state)
	}
	if c.Undo {
		terminal.Printf(a.out, "%s takes new files.\n", state.Name)
		return nil
	}
	if err := drained(state); err != nil {
		return err
	}
	for _, text := range state.Unmet {
		terminal.Println(a.err, text)
	}
	terminal.Printf(a.out, "Nothing depends on %s any more. Next: rdmcfs evict %s, or drain --undo\n", state.Name,
		state.Name)
	return nil
}

// awaitDrain looks until the others have fetched all that they may, and says on the way how much is left.
func (a *app) awaitDrain(state admin.DrainState) (admin.DrainState, error) {
	var said admin.DrainState
	for state.Draining && state.NeededCount > state.StuckCount {
		if state.NeededCount != said.NeededCount || state.NeededBytes != said.NeededBytes {
			terminal.Printf(a.err, "%s: %s, %s still depend on it\n", state.Name, countText(state.NeededCount, "file version"),
				units.Bytes(state.NeededBytes))
		}
		if !slices.Equal(state.NoRoom, said.NoRoom) {
			for _, text := range state.NoRoom {
				terminal.Println(a.err, text)
			}
		}
		said = state
		began := time.Now()
		next, err := a.client.Drain(a.ctx, admin.DrainRequest{Node: state.Node, Look: true})
		if err == nil {
			state, err = next, sleep(a.ctx, max(drainPoll, drainShare*time.Since(began)))
		}
		if err != nil {
			if a.ctx.Err() != nil {
				terminal.Printf(a.err, "%s goes on draining: run the command again to wait for the end, or with --undo\n",
					state.Name)
			}
			return state, err
		}
	}
	return state, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// drained returns nil if nothing depends on the node, and otherwise an error that says what does.
func drained(st admin.DrainState) error {
	var words []string
	if !st.Draining {
		return withCode(exitcode.Needed, "%s does not drain any more: somebody ended it", st.Name)
	}
	if st.StuckCount > 0 {
		words = append(words,
			fmt.Sprintf("%s may be on no other node by their policy: see 'rdmcfs policy', or join a node that it lets take them",
				countText(st.StuckCount, "file version")))
		words = append(words, listed(st.Needed, st.StuckCount)...)
	}
	words = append(words, unpublishedWords(st)...)
	if st.Unasked != "" {
		words = append(words, fmt.Sprintf("%s could not be asked for unpublished files: %s", st.Name,
			terminal.Escape(st.Unasked)))
	}
	if len(words) == 0 {
		return nil
	}
	return &exitError{code: exitcode.Needed, err: errors.New(strings.Join(words, "; "))}
}

// unpublishedWords says what was written on a node and is not published, and what to do about it.
func unpublishedWords(st admin.DrainState) (words []string) {
	if closed := st.UnpublishedCount - st.OpenCount; closed > 0 {
		words = append(words, fmt.Sprintf("%s on %s: publish or drop them there with 'rdmcfs restore'",
			countText(closed, "unpublished file"), st.Name))
	}
	if st.OpenCount > 0 {
		words = append(words, fmt.Sprintf("%s open for writing on %s, which close publishes",
			countText(st.OpenCount, "file"), st.Name))
	}
	names := make([]string, len(st.Unpublished))
	for i, u := range st.Unpublished {
		if names[i] = u.Path; u.Reason != "" {
			names[i] += ": " + u.Reason
		}
	}
	return append(words, listed(names, st.UnpublishedCount)...)
}

// listed is a line for each name, and how many more there are.
func listed(names []string, count int) (lines []string) {
	for _, name := range names {
		lines = append(lines, terminal.Escape(name))
	}
	if count > len(names) {
		lines = append(lines, fmt.Sprintf("and %d more", count-len(names)))
	}
	return lines
}
