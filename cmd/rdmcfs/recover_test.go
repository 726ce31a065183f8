package main

import (
	"strings"
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/exitcode"
)

// What `recover` prints is what the operator goes by: what the node has, and the line for the others.
func TestRecoverSaysWhatToDo(t *testing.T) {
	d := dataDir(t)
	for _, want := range []string{"node 2 (", "2 files and directories, ", "that is left.\nChoose the voter",
		"voter, term 5, index 77", "node 1 (n1) at 10.0.0.1:7400, voter",
		"signing key", "Nothing was changed", "--begin"} {
		if out := expect(t, exitcode.OK, want, "recover", "--data", d); strings.Contains(out, "\x1b") {
			t.Errorf("a name goes to the terminal as it is: %q", out)
		} else if strings.Contains(out, `\n`) {
			t.Errorf("a newline of the program's own is escaped: %q", out)
		}
	}
	expect(t, exitcode.OK, `"term": 5`, "recover", "--json", "--data", d)
	expect(t, exitcode.OK, "rdmcfs recover --follow 2 --generation 1234\n", "recover", "--begin", "--data", d)
	expect(t, exitcode.OK, "takes the state of n2", "recover", "--follow", "n2", "--generation", "4321", "--data", d)
	for _, args := range [][]string{{"--follow", "n2"}, {"--generation", "3"}, {"--force"},
		{"--begin", "--follow", "n2", "--generation", "3"}} {
		expect(t, exitcode.Usage, "want --begin", append([]string{"recover", "--data", d}, args...)...)
	}
}
