package main

var inContent = []string{contentTests, replicateTests}

var ofContent = []mutant{
	{"a content's bytes are not synced before the vote", "internal/content/finish.go",
		"if err := r.s.syncFile(b.streamFile); err != nil {", "if err := error(nil); err != nil {", inContent},
	{"a sidecar is not synced before the vote", "internal/content/finish.go",
		"if err := r.s.syncFile(b.sideFile); err != nil {", "if err := error(nil); err != nil {", inContent},
	{"a content's name is not synced before the vote", "internal/content/finish.go",
		"Partial), final); err != nil {\n\t\treturn err\n\t}\n\treturn r.s.syncShard(b.id)", "Partial), final); err != nil {\n\t\treturn err\n\t}\n\treturn nil", inContent},
	{"a small sidecar is not synced", "internal/content/finish.go",
		"\tif err == nil {\n\t\terr = s.syncFile(f)\n\t}\n", "", inContent},
	{"a root is not compared at the end", "internal/content/finish.go",
		"if got != root {", "if got == (Hash{}) {", inContent},
	{"noted blocks are believed after a crash", "internal/content/finish.go",
		"if sc.row != noted {", "if sc.row == noted && false {", inContent},
	{"a cut data file is served", "internal/content/read.go",
		"if err == nil && st.Size() != want {", "if err == nil && st.Size() < 0 {", inContent},
	{"a base goes while a delta needs it", "internal/content/index.go",
		"e.busy || e.pins > 0 || e.deps > 0 {", "e.busy || e.pins > 0 {", inContent},
	{"a content goes while it is read", "internal/content/index.go",
		"e.busy || e.pins > 0 || e.deps > 0 {", "e.busy || e.deps > 0 {", inContent},
	{"an abort removes committed contents", "internal/content/decide.go",
		"return s.kill(id, Partial, Undecided)\n", "return s.kill(id, Partial, Undecided, Committed)\n", inContent},
}
