package node

import (
	"errors"
	"fmt"
	"strings"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
)

// warnings finds what the user should do something about.
type warnings struct {
	db      *meta.DB
	members *members
	raft    *lateRaft
	health  *stateHealth
	digests *digests
	clock   *clock
	paths   *paths
	lost    *lostLooks
	unmet   unmetLook
}

// list are what the user should do something about.
func (w *warnings) list(st admin.Status) ([]string, error) {
	var out []string
	if len(st.Voters) == 1 && len(st.Nodes) > 1 {
		out = append(out, fmt.Sprintf("one voter: while %s is down nothing can be changed; a third node makes it three "+
			"voters, soon after it has joined", nameOf(st, meta.NodeID(st.Voters[0]))))
	}
	if r := w.health.rebuilding.Load(); r != nil {
		out = append(out, r.warning(w.raft.status().Rebuild))
	}
	if why := w.raft.status().Diverged; why != "" {
		out = append(out, why)
	}
	if text := w.digests.words.Load(); text != nil {
		out = append(out, *text)
	}
	if st.State == "cut-off" && w.raft.status().Diverged == "" {
		out = append(out, cutOffWarning(st, numbers(w.raft.status().RefusedBy)))
	}
	if st.Space.State != "ok" {
		out = append(out, "the disk of the data directory has hardly any bytes or inodes left: free some space")
	}
	for _, line := range st.Nodes {
		if line.NoRoom != "" {
			out = append(out, noRoomText(line.Name, line.NoRoom))
		}
	}
	for _, d := range st.Damaged {
		out = append(out, damageWarning(d))
	}
	if lost := w.nowhere(); lost != "" {
		out = append(out, lost)
	}
	if text := removedWarning(st); text != "" {
		out = append(out, text)
	}
	if len(st.Unpublished) > 0 {
		out = append(out, "there are unpublished files: see 'rdmcfs restore' to publish or drop them")
	}
	out = append(out, clockWarnings(st, w.clock.status())...)
	unmet, err := w.unmet.of(w.db, w.members)
	if errors.Is(err, meta.ErrDamaged) {
		err = nil
	}
	return append(out, unmet...), err
}

// nowhereShown is how many lost files a warning names.
const nowhereShown = 3

// nowhere warns of files whose last holder has lost their bytes, or was evicted.
func (w *warnings) nowhere() string {
	list, err := w.lost.of(w.db)
	if err != nil || len(list) == 0 {
		return ""
	}
	var names []string
	for _, c := range list[:min(len(list), nowhereShown)] {
		names = append(names, fmt.Sprintf("%q%s %d", w.paths.ofContent(c), orDefault(stateNote(c), ", version"), c.Version))
	}
	count := fmt.Sprint(len(list))
	if len(list) == nowhereMost {
		count = "at least " + count
	}
	return fmt.Sprintf("no node has the bytes of %s files any more, such as %s: bring back the data directory of a "+
		"node that had them",
		count, strings.Join(names, "; "))
}

// cutOffWarning says what a node without a quorum, or that is not let in, can still do, which voters it does not reach,
// and which nodes know another data directory in its place.
func cutOffWarning(st admin.Status, refusedBy []meta.NodeID) string {
	if st.Quorum {
		return "cut off: " + notLetIn + "; reads show what this node knew last, changes fail: it asks again by itself, " +
			"and its log says why it waits"
	}
	if len(refusedBy) > 0 {
		var names []string
		for _, id := range refusedBy {
			names = append(names, nameOf(st, id))
		}
		return fmt.Sprintf("cut off: refused by %s: %v", strings.Join(names, ", "), errOtherStore)
	}
	var missing []string
	for _, line := range st.Nodes {
		if line.Voter && !line.Connected && line.ID != st.Node {
			missing = append(missing, nameOf(st, meta.NodeID(line.ID)))
		}
	}
	text := "cut off: no quorum of voters answers"
	if len(missing) > 0 {
		text += "; no connection to " + strings.Join(missing, ", ")
	}
	return text + "; reads show what this node knew last, changes fail: start the voters, or mend the network"
}
