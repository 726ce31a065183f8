package tidy

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// docsWidth bounds the lines of documents: prose is wrapped, and a table keeps a dozen words a cell.
const docsWidth = 120

func TestDocsAreNotTooWide(t *testing.T) {
	root := filepath.Join("..", "..")
	count := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || (strings.HasPrefix(d.Name(), ".") && len(d.Name()) > 2)) {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".md") {
			return nil
		}
		count++
		text, err := os.ReadFile(path)
		checkDocsWidth(t, filepath.ToSlash(path), string(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if count < 10 {
		t.Fatalf("only %d documents found: the walk is wrong", count)
	}
}

// checkDocsWidth reports the wide lines of a document. A table that a program writes is between two comments and may
// be wider.
func checkDocsWidth(t *testing.T, path, text string) {
	t.Helper()
	written := false
	for i, line := range strings.Split(text, "\n") {
		switch {
		case strings.HasPrefix(line, "<!-- ") && strings.Contains(line, ": written by "):
			written = true
		case strings.HasPrefix(line, "<!-- end of "):
			written = false
		}
		if n := utf8.RuneCountInString(line); n > docsWidth && !written {
			t.Errorf("%s:%d: a line of %d characters, at most %d", path, i+1, n, docsWidth)
		}
	}
}
