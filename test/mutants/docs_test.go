package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The table in the docs names every mutant, in the order of the list and no other, and its killers are tests that
// exist.
func TestEveryMutantHasItsKillerInTheDocs(t *testing.T) {
	root := filepath.Join("..", "..")
	raw, err := os.ReadFile(filepath.Join(root, docsFile))
	if err != nil {
		t.Fatal(err)
	}
	text, killers, listed := string(raw), readTable(string(raw)), map[string]bool{}
	for _, m := range all() {
		listed[m.name] = true
		k, ok := killers[m.name]
		if !ok {
			t.Errorf("%q has no killer in %s", m.name, docsFile)
		} else if !hasTest(t, filepath.Join(root, k.pkg), k.test) {
			t.Errorf("%q is killed by %s, which does not exist", m.name, k)
		}
	}
	for name := range killers {
		if !listed[name] {
			t.Errorf("%s has %q, which is no mutant", docsFile, name)
		}
	}
	if again, err := withTable(text, killers); err != nil || !t.Failed() && again != text {
		t.Errorf("the table is not as it would be written: another order, or a row twice (%v)", err)
	}
}

// hasTest reports whether a package has a test.
func hasTest(t *testing.T, pkg, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(pkg, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "\nfunc "+name+"(") {
			return true
		}
	}
	return false
}

// A table that was written is read back, in the order of the list; the text around it stays.
func TestTableInTheDocs(t *testing.T) {
	first, second := all()[0].name, all()[1].name
	killers := map[string]killer{second: {"./meta", "TestB"}, first: {"./meta", "TestA"}, "gone": {"./fs", "TestC"}}
	got, err := withTable("before\n"+tableBegin+"old\n"+tableEnd+"after\n", killers)
	if err != nil {
		t.Fatal(err)
	}
	want := "before\n" + tableBegin + tableHead + "| " + first + " | meta TestA |\n| " + second + " | meta TestB |\n" +
		tableEnd + "after\n"
	if got != want {
		t.Errorf("got\n%s\nwanted\n%s", got, want)
	}
	if read := readTable(got); len(read) != 2 || read[first] != killers[first] || read[second] != killers[second] {
		t.Errorf("read back: %v", read)
	}
	if _, err := withTable("no markers\n", killers); err == nil {
		t.Error("a text without a table was taken")
	}
}

// The culprit is the test that failed, or else the one that ran when the process ended.
func TestCulprit(t *testing.T) {
	for out, want := range map[string]string{
		"=== RUN   TestA\n--- PASS: TestA (0.00s)\n=== RUN   TestB\n--- FAIL: TestB (0.00s)\n" +
			"    --- FAIL: TestB/x (0.00s)\n": "TestB",
		"=== RUN   TestA\n--- PASS: TestA (0.00s)\n=== RUN   TestB\n=== RUN   TestB/x\npanic: boom\n": "TestB",
		"=== RUN   TestA\n--- PASS: TestA (0.00s)\nPASS\nleak\n":                                      "",
	} {
		if got := culprit(out); got != want {
			t.Errorf("%q: culprit %q, wanted %q", out, got, want)
		}
	}
}
