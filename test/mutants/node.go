package main

var inNode = []string{nodeTests}

var ofNode = []mutant{
	{"what a snapshot may hold is made twice", "internal/node/proposer.go",
		"if out.Skipped && !endsWithIncarnation(op) {", "if out.Skipped && p == nil {", inNode},
	{"a refusal after an unknown outcome leaves its session open", "internal/node/proposer.go",
		"\t\t\tp.endRefused(op, out)\n", "", inNode},
	{"an unknown proposal waits though the log answers", "internal/node/proposer.go",
		"\tp.wakeResolvers()\n", "", inNode},
	{"an ended incarnation proposes", "internal/node/proposer.go",
		"if lease != p.self {", "if lease.Node != p.self.Node {", inNode},
	{"an incarnation that was heard of late begins again", "internal/node/proposer.go",
		"if incarnation <= p.self.Incarnation {", "if incarnation == p.self.Incarnation {", inNode},
	{"a patient proposal gives up at once", "internal/consensus/propose.go",
		"case n.state.noQuorum && !opts.Patient:", "case n.state.noQuorum:", inConsensus},
	{"a leader that stood still declares others down", "internal/node/leader.go",
		"if d.since.IsZero() || stopped {", "if d.since.IsZero() || stopped && d.since.IsZero() {", inNode},
	{"a node is declared down before it could be heard", "internal/node/leader.go",
		"d.upFor(n, now) < leaseTime ||", "d.upFor(n, now) < 0 ||", inNode},
	{"voters that have not read their states outvote one", "internal/node/digest.go",
		"if a.whole && slices.Contains(voters, a.node) {", "if slices.Contains(voters, a.node) {", inNode},
	{"a late boot is taken for another process", "internal/node/overtaken.go",
		"return twice", "return !o.last.IsZero() || twice", inNode},
	{"a node that failed says that it was stopped", "internal/node/goodbye.go",
		"if lease.Incarnation == 0 || failed {", "if lease.Incarnation == 0 {", inNode},
	{"a proposal overtakes one of unknown outcome", "internal/node/proposer.go",
		"if _, err := p.awaitKnown(ctx, lease, opts.Patient); err != nil {", "if err := ctx.Err(); err != nil {", inNode},
	{"an ended incarnation is waited for", "internal/node/proposer.go",
		"\tp.unknown = map[uint64]bool{}\n\tp.tellLocked()\n", "", inNode},
	{"a replaced node keeps its old store", "internal/node/members.go",
		"\t\tdelete(b.raft, n.ID) //", "\t\t_ = n.ID //", inNode},
}
