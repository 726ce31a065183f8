//go:build !nextformat

package format

// The formats that this version knows.
const (
	oldest = First
	newest = First
)
