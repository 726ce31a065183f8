//go:build linux && (amd64 || arm64) && !nordma

package verbs

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"net/netip"

	"github.com/rdmcfs/rdmcfs/internal/coder"
	"github.com/rdmcfs/rdmcfs/rdma"
)

// The first bytes of addresses and messages: provider and version.
const (
	wireKind    = 'V'
	wireVersion = 1
)

const (
	tokenBytes   = 16
	secretBytes  = 32
	proofBytes   = sha256.Size
	addressBytes = 88
	messageBytes = 4 + 2*tokenBytes + proofBytes
	numberMask   = 1<<24 - 1 // queue pair and packet numbers have 24 bits
)

type token [tokenBytes]byte

// address is what a pair sends its peer.
type address struct {
	token   token // names the pair in messages
	secret  [secretBytes]byte
	gid     [16]byte
	lid     uint16
	mtu     uint8 // code
	link    uint8 // link layer
	readsIn uint8 // reads of the peer that are served at a time
	qpn     uint32
	psn     uint32 // of the first packet
	bellQPN uint32 // queue pair for datagrams
	bellKey uint32
}

// fresh fills in what is random.
func (a *address) fresh() {
	rand.Read(a.token[:])
	rand.Read(a.secret[:])
	var psn [4]byte
	rand.Read(psn[:])
	c := coder.Reader(psn[:], coder.Little)
	c.U32(&a.psn)
	a.psn &= numberMask
}

func (a *address) code(c *coder.Coder) {
	c.Same8("provider", wireKind)
	c.Same8("version of addresses", wireVersion)
	c.Fixed(a.token[:])
	c.Fixed(a.secret[:])
	c.Fixed(a.gid[:])
	c.U16(&a.lid)
	c.U8(&a.mtu)
	c.U8(&a.link)
	c.U8(&a.readsIn)
	c.Zeros(1)
	c.U32(&a.qpn)
	c.U32(&a.psn)
	c.U32(&a.bellQPN)
	c.U32(&a.bellKey)
}

func (a *address) encode() []byte {
	c := coder.Writer(make([]byte, 0, addressBytes), coder.Little)
	a.code(&c)
	return c.Written()
}

func decodeAddress(b []byte) (a address, err error) {
	c := coder.Reader(b, coder.Little)
	if a.code(&c); c.Finish() != nil {
		return address{}, fmt.Errorf("verbs: address of %d bytes: %w: %w", len(b), rdma.ErrRequest, c.Err())
	}
	if mtuBytes(uint32(a.mtu)) == 0 || a.qpn > numberMask || a.psn > numberMask || a.bellQPN > numberMask ||
		(a.link != linkInfiniBand && a.link != linkEthernet) {
		return address{}, fmt.Errorf("verbs: address with numbers out of range: %w", rdma.ErrRequest)
	}
	return a, nil
}

// where is the GID as people write it.
func (a *address) where() netip.Addr { return netip.AddrFrom16(a.gid).Unmap() }

// pairKey is the key that both sides derive from both secrets.
func pairKey(a, b *address) []byte {
	if bytes.Compare(a.token[:], b.token[:]) > 0 {
		a, b = b, a
	}
	h := sha256.New()
	h.Write([]byte("rdmcfs verbs pair"))
	h.Write(a.secret[:])
	h.Write(b.secret[:])
	return h.Sum(nil)
}

// messageKind is what a datagram says.
type messageKind uint8

const (
	messageReady messageKind = iota + 1 // the sender's pair takes requests
	messageGone                         // the sender's pair is in error
)

// message is a datagram between the two sides of a pair.
type message struct {
	kind     messageKind
	seen     bool // of ready: the sender has heard the other side; no answer is needed
	to, from token
}

func (m *message) encode(key []byte) [messageBytes]byte {
	var b [messageBytes]byte
	b[0], b[1], b[2] = wireKind, wireVersion, byte(m.kind)
	if m.seen {
		b[3] = 1
	}
	copy(b[4:], m.to[:])
	copy(b[4+tokenBytes:], m.from[:])
	copy(b[4+2*tokenBytes:], proof(key, b[:4+2*tokenBytes]))
	return b
}

// decodeMessage reads a datagram; its proof is checked by proven, once the key is looked up.
func decodeMessage(b []byte) (message, bool) {
	if len(b) != messageBytes || b[0] != wireKind || b[1] != wireVersion || b[3] > 1 {
		return message{}, false
	}
	m := message{kind: messageKind(b[2]), seen: b[3] == 1, to: token(b[4:]), from: token(b[4+tokenBytes:])}
	return m, m.kind == messageReady || m.kind == messageGone && !m.seen
}

// proven reports whether the sender of the datagram knows the key.
func proven(b, key []byte) bool {
	const signed = 4 + 2*tokenBytes
	return hmac.Equal(b[signed:], proof(key, b[:signed]))
}

func proof(key, b []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write(b)
	return h.Sum(nil)
}
