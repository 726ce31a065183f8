package credentials

import (
	"testing"

	"github.com/rdmcfs/rdmcfs/test/codertest"
)

// Tokens that were given out have these characters.
func TestGoldenToken(t *testing.T) {
	var token Token
	codertest.Fill(&token)
	word := token.String()
	codertest.Golden(t, map[string][]byte{"token": []byte(word)})
	if back, err := ParseToken(word); err != nil || back != token {
		t.Errorf("%+v, %v", back, err)
	}
}
