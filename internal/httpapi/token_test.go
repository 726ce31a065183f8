package httpapi

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/durable"
)

// The token is made once, for its owner only, and survives a power failure.
func TestTokenIsMadeOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), TokenFile)
	stop := durable.Record()
	first, err := OpenToken(path)
	if synced := stop(); err != nil || !slices.Contains(synced, filepath.Dir(path)) {
		t.Fatalf("%v, synced %v", err, synced)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	word, err := first.read()
	if err != nil || len(word) != 2*tokenBytes || !first.Is(word) {
		t.Errorf("%q, %v", word, err)
	}
	again, err := OpenToken(path)
	if err != nil || !again.Is(word) {
		t.Error(err)
	}
	other, err := OpenToken(filepath.Join(t.TempDir(), TokenFile))
	if err != nil || other.Is(word) {
		t.Errorf("two nodes have one token: %v", err)
	}
}

// A token that was copied there with the rights of others becomes its owner's. What is no file is no token, and holds
// nobody up.
func TestTokenFileOfOthers(t *testing.T) {
	path := filepath.Join(t.TempDir(), TokenFile)
	if err := os.WriteFile(path, []byte(strings.Repeat("n", tokenCharsMin)), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenToken(path); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != tokenMode {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	pipe := filepath.Join(t.TempDir(), TokenFile)
	if err := syscall.Mkfifo(pipe, tokenMode); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenToken(pipe); !errors.Is(err, ErrToken) {
		t.Errorf("a pipe: %v", err)
	}
}

// Another word in the file counts at once, and the old one no more. A file without a token lets nobody in.
func TestTokenIsReadAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), TokenFile)
	token, err := OpenToken(path)
	if err != nil {
		t.Fatal(err)
	}
	old, _ := token.read()
	next := strings.Repeat("n", tokenCharsMin)
	if err := os.WriteFile(path, []byte(" "+next+"\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if !token.Is(next) || token.Is(old) {
		t.Error("the file was not read again")
	}
	for _, bad := range []string{"", "\n", next[1:], next + " " + next, next + "\x00", "ä" + next,
		strings.Repeat("n", tokenCharsMax+1), strings.Repeat("n", 1<<20)} {
		if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if token.Is(strings.TrimSpace(bad)) || token.Is("") {
			t.Errorf("%.40q lets somebody in", bad)
		}
		if _, err := OpenToken(path); !errors.Is(err, ErrToken) {
			t.Errorf("%.40q: %v", bad, err)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if token.Is(next) || token.Is("") {
		t.Error("a token that is gone lets somebody in")
	}
}
