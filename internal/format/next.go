//go:build nextformat

package format

// A program with the tag nextformat stands for the next release in the tests of upgrades: it knows one format more,
// in which nothing differs but the number.
const (
	oldest = First
	newest = First + 1
)
