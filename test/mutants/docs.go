package main

import (
	"fmt"
	"os"
	"strings"
)

// docsFile has the table of mutants and what killed each, between two markers. It is written by this program only.
const docsFile = "docs/MUTANTS.md"

const (
	tableBegin = "<!-- mutants: written by go run ./test/mutants -table -->\n"
	tableEnd   = "<!-- end of mutants -->\n"
	tableHead  = "| mutant | killed by |\n|-|-|\n"
)

// readTable gives what killed each mutant the last time.
func readTable(text string) map[string]killer {
	out := map[string]killer{}
	_, rest, _ := strings.Cut(text, tableBegin)
	table, _, _ := strings.Cut(rest, tableEnd)
	for line := range strings.Lines(strings.TrimPrefix(table, tableHead)) {
		cells := strings.Split(strings.Trim(line, "| \n"), " | ")
		if len(cells) != 2 {
			continue
		}
		if pkg, test, ok := strings.Cut(cells[1], " "); ok {
			out[cells[0]] = killer{"./" + pkg, test}
		}
	}
	return out
}

// withTable gives the text with a new table, which has the order of the list of mutants.
func withTable(text string, killers map[string]killer) (string, error) {
	before, rest, began := strings.Cut(text, tableBegin)
	_, after, ended := strings.Cut(rest, tableEnd)
	if !began || !ended {
		return "", fmt.Errorf("no table of mutants in %s", docsFile)
	}
	var b strings.Builder
	b.WriteString(before + tableBegin + tableHead)
	for _, m := range all() {
		if k, ok := killers[m.name]; ok {
			fmt.Fprintf(&b, "| %s | %s |\n", m.name, k)
		}
	}
	b.WriteString(tableEnd + after)
	return b.String(), nil
}

// saveTable writes the table into the docs.
func saveTable(file string, killers map[string]killer) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	out, err := withTable(string(text), killers)
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(out), 0o600)
}
