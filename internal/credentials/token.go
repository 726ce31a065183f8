package credentials

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strings"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/coder"
)

// Token lets one machine join. The string form is one word:
//
//	rdmcfs1_ + base64url( cluster 16 | secret 16 | authority key hash 32 | expiry 8 | crc32c 4 )
//
// all big endian, expiry in seconds since 1970.
type Token struct {
	Cluster ClusterID
	Secret  [16]byte
	KeyHash [32]byte // of the authority's public key
	Expires time.Time
}

const (
	tokenPrefix = "rdmcfs1_"
	tokenBytes  = 16 + 16 + 32 + 8 + 4
)

// NewToken makes a token that is good until expires, cut to whole seconds.
func NewToken(cluster ClusterID, keyHash [32]byte, expires time.Time) Token {
	t := Token{Cluster: cluster, KeyHash: keyHash, Expires: expires.Truncate(time.Second).UTC()}
	rand.Read(t.Secret[:])
	return t
}

// SecretHash is what the log stores and checks: the token itself is stored nowhere. replaces is the name of the node
// that the token may replace, or "" for one that only adds a node: the same secret has another hash for each, so a
// token is good only for what it was made for.
func (t Token) SecretHash(replaces string) [32]byte {
	b := append([]byte("rdmcfs join token\x00"), t.Secret[:]...)
	return sha256.Sum256(append(b, replaces...))
}

// code lists the fields of the token's bytes.
func (t *Token) code(c *coder.Coder) {
	mark := c.Mark()
	c.Fixed(t.Cluster[:])
	c.Fixed(t.Secret[:])
	c.Fixed(t.KeyHash[:])
	expires := t.Expires.Unix()
	if c.I64(&expires); c.Reading() {
		t.Expires = time.Unix(expires, 0).UTC()
	}
	c.Sum(mark)
}

// String is the word for the user.
func (t Token) String() string {
	c := coder.Writer(nil, coder.Big)
	t.code(&c)
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(c.Written())
}

// ParseToken reads what String wrote. The error is ErrTokenMalformed. Whether the token has expired is the
// caller's to check.
func ParseToken(s string) (t Token, err error) {
	body, found := strings.CutPrefix(strings.TrimSpace(s), tokenPrefix)
	if !found || len(body) != base64.RawURLEncoding.EncodedLen(tokenBytes) {
		return Token{}, fmt.Errorf("credentials: token of %d characters: %w", len(s), ErrTokenMalformed)
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(body)
	c := coder.Reader(b, coder.Big)
	if t.code(&c); err != nil || c.Finish() != nil {
		return Token{}, fmt.Errorf("credentials: token: %w", ErrTokenMalformed)
	}
	return t, nil
}
