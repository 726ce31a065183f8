package main

import "testing"

// A table that was written is read back, in the order of the list; the text around it stays.
func TestTableInTheDocs(t *testing.T) {
	first, second := all()[0].name, all()[1].name
	killers := map[string]killer{second: {"./meta", "TestB"}, first: {"./meta", "TestA"}, "gone": {"./fs", "TestC"}}
	got, err := withTable("before\n"+tableBegin+"old\n"+tableEnd+"after\n", killers)
	if err != nil {
		t.Fatal(err)
	}
	want := "before\n" + tableBegin + tableHead + "| " + first + " | meta TestA |\n| " + second + " | meta TestB |\n" + tableEnd + "after\n"
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
		"=== RUN   TestA\n--- PASS: TestA (0.00s)\n=== RUN   TestB\n--- FAIL: TestB (0.00s)\n    --- FAIL: TestB/x (0.00s)\n": "TestB",
		"=== RUN   TestA\n--- PASS: TestA (0.00s)\n=== RUN   TestB\n=== RUN   TestB/x\npanic: boom\n":                         "TestB",
		"=== RUN   TestA\n--- PASS: TestA (0.00s)\nPASS\nleak\n":                                                              "",
		"": "",
	} {
		if got := culprit(out); got != want {
			t.Errorf("%q: culprit %q, wanted %q", out, got, want)
		}
	}
}
