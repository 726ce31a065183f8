package sim

import (
	"fmt"

	"github.com/rdmcfs/rdmcfs/meta"
)

// describe is an entry as the trace shows it.
func describe(e *meta.Entry) string {
	who := fmt.Sprintf("n%d", e.Node)
	if e.Incarnation > 0 {
		who = fmt.Sprintf("n%d.%d#%d", e.Node, e.Incarnation, e.Seq)
	}
	return who + " " + describeOp(e.Op)
}

func describeOp(op meta.Op) string {
	switch o := op.(type) {
	case *meta.Create:
		return fmt.Sprintf("create %s", o.Name)
	case *meta.Publish:
		return fmt.Sprintf("publish %x as %v of %d bytes, votes %b view %d", uint64(o.Ino), short(o.Session), o.Size, o.Votes.Bitmap, o.Votes.View)
	case *meta.Abort:
		return fmt.Sprintf("abort %v", short(o.Session))
	case *meta.Rename:
		return fmt.Sprintf("rename %s %s", o.OldName, o.NewName)
	case *meta.Unlink:
		return fmt.Sprintf("unlink %s", o.Name)
	case *meta.Link:
		return fmt.Sprintf("link %x %s", uint64(o.Ino), o.Name)
	case *meta.Join:
		return fmt.Sprintf("join %s replace %t", o.Name, o.Replace)
	case *meta.Boot:
		return fmt.Sprintf("boot %d", o.Node)
	case *meta.Down:
		return fmt.Sprintf("down %d.%d", o.Node, o.Incarnation)
	case *meta.Drain:
		return fmt.Sprintf("drain %d undo=%v", o.Node, o.Undo)
	case *meta.EvictSpare:
		return fmt.Sprintf("evict %d if spare, checked to %d", o.Node, o.Checked)
	case *meta.Evict:
		return fmt.Sprintf("evict %d", o.Node)
	case *meta.Held:
		return fmt.Sprintf("held %d %v up to %d", o.Node, shorts(o.Contents), o.UpTo)
	case *meta.Unheld:
		return fmt.Sprintf("unheld %d %v", o.Node, shorts(o.Contents))
	case *meta.SetVoters:
		return fmt.Sprintf("voters %v", o.Voters)
	}
	return fmt.Sprintf("%T", op)
}

func short(id meta.ContentID) string {
	return fmt.Sprintf("%d.%d.%d", id.Node, id.Incarnation, id.Seq)
}

func shorts(ids []meta.ContentID) (out []string) {
	for _, id := range ids {
		out = append(out, short(id))
	}
	return out
}

// outcome is a result as the trace shows it.
func outcome(r *meta.Result) string {
	text := "ok"
	if r.Errno != 0 {
		text = r.Errno.Error()
	}
	for _, x := range []struct {
		on   bool
		word string
	}{{r.Duplicate, "again"}, {r.Fenced, "fenced"}, {r.Conflict, "conflict"}, {r.Orphan, "orphan"}} {
		if x.on {
			text += " " + x.word
		}
	}
	if len(r.Owed) > 0 {
		text += fmt.Sprintf(" owed %v", r.Owed)
	}
	return text
}

// add sums up runs.
func (s *Stats) add(o *Stats) {
	for _, x := range []struct{ to, from *int }{
		{&s.Events, &o.Events}, {&s.Entries, &o.Entries}, {&s.Acked, &o.Acked}, {&s.Failed, &o.Failed}, {&s.Unknown, &o.Unknown},
		{&s.Kills, &o.Kills}, {&s.PowerLosses, &o.PowerLosses}, {&s.Partitions, &o.Partitions}, {&s.Joins, &o.Joins},
		{&s.Evictions, &o.Evictions}, {&s.Replacements, &o.Replacements}, {&s.Pushes, &o.Pushes}, {&s.Inline, &o.Inline},
		{&s.Small, &o.Small}, {&s.Large, &o.Large}, {&s.Conflicts, &o.Conflicts}, {&s.CaughtUp, &o.CaughtUp},
		{&s.Snapshots, &o.Snapshots}, {&s.VoterChanges, &o.VoterChanges}, {&s.Elections, &o.Elections}, {&s.WrongClocks, &o.WrongClocks},
	} {
		*x.to += *x.from
	}
}
