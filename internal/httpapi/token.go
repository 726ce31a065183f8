package httpapi

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"github.com/rdmcfs/rdmcfs/internal/durable"
)

const (
	// TokenFile is the name of the token's file in a data directory.
	TokenFile = "http-token"

	tokenMode     = 0o600
	tokenBytes    = 32 // of randomness, written as hex
	tokenCharsMin = 32 // of one that somebody else has written
	tokenCharsMax = 256
)

// ErrToken is returned for a file that holds no token.
var ErrToken = fmt.Errorf("want one word of %d to %d characters: write one into it, or remove the file and start the "+
	"daemon again, which makes one", tokenCharsMin, tokenCharsMax)

// Token is a file with the word by which a client may read. The file is read at each look, so another word in it counts
// at once, and a word that is gone counts no more.
type Token struct{ path string }

// OpenToken returns the token in the file at path. It makes the file, durably and with mode 0600, if there is none.
func OpenToken(path string) (Token, error) {
	t := Token{path}
	_, err := t.read()
	switch {
	case errors.Is(err, os.ErrNotExist):
		err = durable.WriteFile(path, []byte(newWord()+"\n"))
	case err == nil:
		err = os.Chmod(path, tokenMode) // one that was copied there
	}
	if err != nil {
		err = fmt.Errorf("httpapi: token: %w", err)
	}
	return t, err
}

func newWord() string {
	var raw [tokenBytes]byte
	rand.Read(raw[:])
	return hex.EncodeToString(raw[:])
}

// Is reports whether a word is the token. How long that takes says nothing about the token.
func (t Token) Is(word string) bool {
	right, err := t.read()
	if err != nil {
		return false
	}
	a, b := sha256.Sum256([]byte(right)), sha256.Sum256([]byte(word))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// read returns the word in the file, which is long enough to be none by mistake.
func (t Token) read() (string, error) {
	f, err := os.OpenFile(t.path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe would make it wait
	if err != nil {
		return "", err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return "", errors.Join(fmt.Errorf("%s: %w", t.path, ErrToken), err)
	}
	raw, err := io.ReadAll(io.LimitReader(f, 2*tokenCharsMax))
	if err != nil {
		return "", err
	}
	word := strings.TrimSpace(string(raw))
	if len(word) < tokenCharsMin || len(word) > tokenCharsMax || strings.ContainsFunc(word, unfit) {
		return "", fmt.Errorf("%s: %w", t.path, ErrToken)
	}
	return word, nil
}

// unfit reports whether a character can't be in a token: a header of HTTP carries it.
func unfit(r rune) bool { return r <= ' ' || r > '~' }
