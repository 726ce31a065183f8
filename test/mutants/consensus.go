package main

var (
	inConsensus = []string{consensusTests}
	inRaftlog   = []string{raftlogTests, consensusTests}
)

var ofConsensus = []mutant{
	{"raft answers before it is durable", "internal/consensus/core.go",
		"\t\t\tout.Append = appendOf(m)\n",
		"\t\t\tout.Append = appendOf(m)\n\t\t\tfor _, r := range m.GetResponses() {\n\t\t\t\tif r.GetTo() != c.cfg.ID {\n\t\t\t\t\tout.Messages = append(out.Messages, r)\n\t\t\t\t}\n\t\t\t}\n", inConsensus},
	{"the log is not synced", "internal/consensus/raftlog/log.go",
		"if err := l.cur.Sync(); err != nil {", "if err := error(nil); err != nil {", inRaftlog},
	{"a new segment's name is not synced", "internal/consensus/raftlog/log.go",
		"if err := l.opts.FS.SyncDir(l.opts.Dir); err != nil {\n\t\treturn errors.Join", "if err := error(nil); err != nil {\n\t\treturn errors.Join", inRaftlog},
	{"the log is cut before the state is synced", "internal/consensus/apply.go",
		"if err := a.sm.Sync(); err != nil {\n\t\treturn fmt.Errorf(\"consensus: sync state", "if err := error(nil); err != nil {\n\t\treturn fmt.Errorf(\"consensus: sync state", inConsensus},
	{"a snapshot is taken in without its intent", "internal/consensus/snapshot.go",
		"if err := n.persistNow(ctx, &raftlog.Batch{Intent: &base}); err != nil {", "if err := ctx.Err(); err != nil {", inConsensus},
	{"a term and a vote are not written", "internal/consensus/persist.go",
		"return w.GetTerm() == h.GetTerm() && w.GetVote() == h.GetVote()", "return w.GetTerm() == h.GetTerm()", inConsensus},
	{"a commit index that waits is lost", "internal/consensus/persist.go",
		"if b.Hard == nil && !b.Reset {", "if b.Hard == nil && b.Reset {", inConsensus},
	{"an entry is applied twice", "internal/consensus/apply.go",
		"for len(list) > 0 && list[0].Index <= a.applied {", "for len(list) > 0 && list[0].Index < a.applied {", inConsensus},
	{"a log that lost its end goes on", "internal/consensus/guard.go",
		"if last := c.last; current && m.GetCommit() > last {", "if last := c.last; current && last > m.GetCommit() && false {", inConsensus},
	{"a log shorter than its own promise is started", "internal/consensus/core.go",
		"if commit := s.Hard.GetCommit(); commit > last {", "if commit := s.Hard.GetCommit(); commit > last+1<<40 {", inConsensus},
	{"a barrier asks nobody", "internal/consensus/progress.go",
		"if p := n.state.progress[id]; p == nil || p.Visible < index {", "if p := n.state.progress[id]; p == nil {", inConsensus},
	{"a barrier is answered by applied, not by visible", "internal/consensus/progress.go",
		"n.reachedLocked(r.id, r.visible)", "n.reachedLocked(r.id, r.applied)", inConsensus},
	{"a snapshot older than the state is taken", "internal/consensus/apply.go",
		"if r.head.index < a.applied || r.head.index == a.applied && !r.replace {", "if r.head.index == 0 {", inConsensus},
	{"a node of another cluster is welcome", "internal/consensus/stream.go",
		"case h.cluster != id.Cluster:", "case h.cluster != id.Cluster && h.to == 0:", inConsensus},
	{"a node of another generation is welcome", "internal/consensus/stream.go",
		"case h.generation != id.Generation:", "case h.generation != id.Generation && h.to == 0:", inConsensus},
	{"a gap in the stream of a follower is taken", "internal/consensus/feed.go",
		"if list[0].Index != last+1 {", "if list[0].Index < last+1 {", inConsensus},
	{"a voter that lags is followed for ever", "internal/consensus/lag.go",
		"return now.Sub(j.since) >= j.patience", "return now.Sub(j.since) >= j.patience && j.next == 0", inConsensus},
	{"stamps go back", "internal/consensus/core.go",
		"at = max(at+1, nowNanos)", "at = nowNanos", inConsensus},
}
