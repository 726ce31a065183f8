package main

var inFs = []string{fsTests}

var ofFs = []mutant{
	{"a freed name is not reserved again", "fs/reserve.go",
		"if err != nil || !lost {", "if err != nil || !lost || l != nil {", inFs},
	{"an orphan of a fence is taken for delivered", "fs/publisher.go",
		"if err == nil && out.Result.Orphan && pub.reserved.fenced(l) {", "if err == nil && out.Result.Orphan && l == nil {",
		inFs},
	{"a removed file is reserved again", "fs/reserve.go",
		"return !unlinked && (", "return (!unlinked || l != nil) && (", inFs},
	{"a freed name is taken from who has it now", "fs/reserve.go",
		"Excl: true,", "Excl: false,", inFs},
	{"an overwrite shows its empty version", "fs/flush.go",
		"!(size == 0 && holds(pid, procWait)) && !(otherProcess", "!(otherProcess", inFs},
	{"what a killed program wrote is published", "fs/flush.go",
		"if closing != nil && wasKilled(pid) {", "if closing == nil && wasKilled(pid) {", inFs},
	{"a file is opened for writing though a change is unknown", "fs/node_open.go",
		"no = f.names.settle(ctx, n)", "no = 0", inFs},
	{"what is undone while it is sent counts as sent", "fs/extent.go",
		"\t\tleaf.Store(sumMixed)\n", "\t\t_ = leaf\n", inFs},
	{"a failed write-out is forgotten", "fs/writeout.go",
		"if failed := w.out.failed(); failed != nil {", "if failed := w.out.failed(); failed != nil && n < 0 {", inFs},
	{"a version that came before a close returned is forgotten", "fs/publisher.go",
		"l.reserved, l.kept = false, \"\"\n", "l.reserved, l.kept, l.superseded = false, \"\", false\n", inFs},
	{"a renamed file is not given back", "fs/reserve.go",
		"rec.Parent == tried.Parent && rec.Name == tried.Name", "tried.Ino != 0", inFs},
	{"a file that the disk refused is staged in again", "fs/contentstage.go",
		"if p.out.failed() != nil {", "if p.out == nil {", []string{fsTests, nodeTests}},
	{"a mount gives back what another one uses", "fs/mount.go",
		"o.Siblings.join(m.fs)", "new(Siblings).join(m.fs)", inFs},
}
