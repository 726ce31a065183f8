package main

import (
	"go/parser"
	"go/token"
	"path/filepath"
	"testing"
)

// The table must fit the tree: each text is found once, the changed file is Go, and names are not used twice.
func TestTableFitsTheTree(t *testing.T) {
	root := filepath.Join("..", "..")
	seen := map[string]bool{}
	for _, m := range all() {
		if seen[m.name] {
			t.Errorf("two mutants are named %q", m.name)
		}
		seen[m.name] = true
		if len(m.suites) == 0 || m.old == m.new {
			t.Errorf("%s: no suite, or no change", m.name)
		}
		text, err := m.apply(root)
		if err != nil {
			t.Error(err)
			continue
		}
		if _, err := parser.ParseFile(token.NewFileSet(), m.file, text, 0); err != nil {
			t.Errorf("%s: the changed file is no Go: %v", m.name, err)
		}
	}
	if len(seen) < 40 {
		t.Errorf("%d mutants, wanted at least 40", len(seen))
	}
}

// The reverts must fit the tree too: their mutants exist, and the texts are still there when several of a file are
// changed.
func TestRevertsFitTheTree(t *testing.T) {
	for _, back := range reverts {
		if _, err := back.writeOverlay(filepath.Join("..", ".."), t.TempDir()); err != nil {
			t.Error(err)
		}
	}
}

// What TestSeeds prints of a seed that failed names the seed and why.
func TestSeedThatFailed(t *testing.T) {
	found := seedThatFailed.FindStringSubmatch("    sim_test.go:59: seed 54: exit status 1\n        seed 54: 4 nodes\n" +
		"        --- FAIL: TestOneSeed (-1.00s)\n            one_test.go:52: seed 54: n1: a is gone\n        FAIL\n")
	if len(found) != 3 || found[1] != "54" || found[2] != "n1: a is gone" {
		t.Fatalf("%q", found)
	}
}
