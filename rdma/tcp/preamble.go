package tcp

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
)

// PreambleByte is the first byte of every data connection. A TLS connection starts with 0x16.
const PreambleByte = 0xD1

// The three messages that open a connection: the dialer's hello, the acceptor's answer, the dialer's
// confirmation. All have fixed sizes, so nothing is allocated by what a stranger says.
const (
	tokenBytes   = 16
	secretBytes  = 32
	nonceBytes   = 16
	proofBytes   = sha256.Size
	helloBytes   = 8 + 2*tokenBytes + nonceBytes + proofBytes
	acceptBytes  = 8 + tokenBytes + nonceBytes + proofBytes
	confirmBytes = 8 + proofBytes
)

var (
	errProtocol = errors.New("tcp: protocol violation")
	errProof    = errors.New("tcp: peer does not know the secret")
	magic       = [3]byte{PreambleByte, 'R', 'Q'}
)

// version is the wire version, the fourth byte of every message of the preamble.
const version = 1

type token [tokenBytes]byte

// hello is the dialer's first message: to whom, from whom, and a proof that it knows the secret in the
// acceptor's address. That keeps strangers from parking connections.
type hello struct {
	to, from token
	nonce    [nonceBytes]byte
	raw      [helloBytes]byte
}

// preambleHead writes the 8 bytes every message starts with: magic, version, and a number.
func preambleHead(b []byte, number uint32) {
	copy(b, magic[:])
	b[3] = version
	binary.LittleEndian.PutUint32(b[4:], number)
}

// checkHead checks the same 8 bytes and returns the number.
func checkHead(b []byte) (uint32, error) {
	if [3]byte(b[:3]) != magic {
		return 0, fmt.Errorf("tcp: preamble magic %x: %w", b[:3], errProtocol)
	}
	if b[3] != version {
		return 0, fmt.Errorf("tcp: wire version %d, this is %d: %w", b[3], version, errProtocol)
	}
	return binary.LittleEndian.Uint32(b[4:]), nil
}

func encodeHello(to, from token, nonce [nonceBytes]byte, secret []byte) [helloBytes]byte {
	var b [helloBytes]byte
	preambleHead(b[:], 0)
	copy(b[8:], to[:])
	copy(b[24:], from[:])
	copy(b[40:], nonce[:])
	copy(b[56:], proof(secret, "hello", b[:56]))
	return b
}

// decodeHello reads the fields; the proof is checked by verifyHello, once the secret is looked up.
func decodeHello(b []byte) (hello, error) {
	if len(b) != helloBytes {
		return hello{}, fmt.Errorf("tcp: hello of %d bytes: %w", len(b), errProtocol)
	}
	number, err := checkHead(b)
	if err != nil {
		return hello{}, err
	}
	if number != 0 {
		return hello{}, fmt.Errorf("tcp: hello with number %d: %w", number, errProtocol)
	}
	return hello{to: token(b[8:24]), from: token(b[24:40]), nonce: [nonceBytes]byte(b[40:56]), raw: [helloBytes]byte(b)},
		nil
}

func (h *hello) verify(secret []byte) error {
	if !hmac.Equal(h.raw[56:], proof(secret, "hello", h.raw[:56])) {
		return fmt.Errorf("tcp: hello: %w", errProof)
	}
	return nil
}

// encodeAccept answers a hello; credit is the number of receives posted so far.
func encodeAccept(to token, nonce [nonceBytes]byte, credit uint32, key []byte, helloRaw []byte) [acceptBytes]byte {
	var b [acceptBytes]byte
	preambleHead(b[:], credit)
	copy(b[8:], to[:])
	copy(b[24:], nonce[:])
	copy(b[40:], proof(key, "accept", helloRaw, b[:40]))
	return b
}

// decodeAccept checks an answer to helloRaw and returns the acceptor's credit.
func decodeAccept(b []byte, self token, key []byte, helloRaw []byte) (uint32, error) {
	if len(b) != acceptBytes {
		return 0, fmt.Errorf("tcp: accept of %d bytes: %w", len(b), errProtocol)
	}
	credit, err := checkHead(b)
	if err != nil {
		return 0, err
	}
	if !hmac.Equal(b[40:], proof(key, "accept", helloRaw, b[:40])) || token(b[8:24]) != self {
		return 0, fmt.Errorf("tcp: accept: %w", errProof)
	}
	return credit, checkCredit(credit)
}

func encodeConfirm(credit uint32, key, helloRaw, acceptRaw []byte) [confirmBytes]byte {
	var b [confirmBytes]byte
	preambleHead(b[:], credit)
	copy(b[8:], proof(key, "confirm", helloRaw, acceptRaw, b[:8]))
	return b
}

func decodeConfirm(b []byte, key, helloRaw, acceptRaw []byte) (uint32, error) {
	if len(b) != confirmBytes {
		return 0, fmt.Errorf("tcp: confirm of %d bytes: %w", len(b), errProtocol)
	}
	credit, err := checkHead(b)
	if err != nil {
		return 0, err
	}
	if !hmac.Equal(b[8:], proof(key, "confirm", helloRaw, acceptRaw, b[:8])) {
		return 0, fmt.Errorf("tcp: confirm: %w", errProof)
	}
	return credit, checkCredit(credit)
}

func checkCredit(n uint32) error {
	if n > maxQueueDepth {
		return fmt.Errorf("tcp: %d receives posted: %w", n, errProtocol)
	}
	return nil
}

// proof is an HMAC over a label and the parts, all of fixed sizes.
func proof(key []byte, label string, parts ...[]byte) []byte {
	m := hmac.New(sha256.New, key)
	m.Write([]byte(label))
	for _, p := range parts {
		m.Write(p)
	}
	return m.Sum(nil)
}

// pairKey is the key both sides derive from both secrets.
func pairKey(dialer, acceptor []byte) []byte {
	h := sha256.New()
	h.Write([]byte("rdmcfs tcp pair"))
	h.Write(dialer)
	h.Write(acceptor)
	return h.Sum(nil)
}
