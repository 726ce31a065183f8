package credentials

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strings"
	"time"
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
	tokenPrefix    = "rdmcfs1_"
	tokenBodyBytes = 16 + 16 + 32 + 8
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// NewToken makes a token that is good until expires, cut to whole seconds.
func NewToken(cluster ClusterID, keyHash [32]byte, expires time.Time) Token {
	t := Token{Cluster: cluster, KeyHash: keyHash, Expires: expires.Truncate(time.Second).UTC()}
	rand.Read(t.Secret[:])
	return t
}

// SecretHash is what the log stores and checks: the token itself is nowhere kept. replaces is the name of the
// node that the token may replace, or "" for one that only adds a node: the same secret has another hash for
// each, so a token is good only for what it was made for.
func (t Token) SecretHash(replaces string) [32]byte {
	b := append([]byte("rdmcfs join token\x00"), t.Secret[:]...)
	return sha256.Sum256(append(b, replaces...))
}

// String is the word for the user.
func (t Token) String() string {
	b := make([]byte, 0, tokenBodyBytes+4)
	b = append(b, t.Cluster[:]...)
	b = append(b, t.Secret[:]...)
	b = append(b, t.KeyHash[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(t.Expires.Unix()))
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(b)
}

// ParseToken reads what String wrote. The error is ErrTokenMalformed. Whether the token has expired is the
// caller's to check.
func ParseToken(s string) (Token, error) {
	body, found := strings.CutPrefix(strings.TrimSpace(s), tokenPrefix)
	if !found || len(body) != base64.RawURLEncoding.EncodedLen(tokenBodyBytes+4) {
		return Token{}, fmt.Errorf("credentials: token of %d characters: %w", len(s), ErrTokenMalformed)
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(body)
	if err != nil || len(b) != tokenBodyBytes+4 || crc32.Checksum(b[:tokenBodyBytes], castagnoli) != binary.BigEndian.Uint32(b[tokenBodyBytes:]) {
		return Token{}, fmt.Errorf("credentials: token: %w", ErrTokenMalformed)
	}
	t := Token{
		Cluster: ClusterID(b[0:16]),
		Secret:  [16]byte(b[16:32]),
		KeyHash: [32]byte(b[32:64]),
		Expires: time.Unix(int64(binary.BigEndian.Uint64(b[64:72])), 0).UTC(),
	}
	return t, nil
}
