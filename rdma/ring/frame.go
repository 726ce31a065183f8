package ring

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"sync/atomic"
	"unsafe"
)

// ErrProtocol is wrapped by what ends a channel whose peer breaks the rules, or whose memory was changed on the way.
var ErrProtocol = errors.New("ring: protocol violated by the peer")

// Layout of a message, little endian, in a slot and in a receive (there without the tail word):
//
//	0   head word: flag, kind, size u16, and the complement of each: ^size u16, ^kind, ^flag
//	8   CRC32C u32 of all from 12 to the end of the bytes, going on from the first half of the head word
//	12  number u32
//	16  ring slots freed u32, receives freed u32 (running counts)
//	24  state of the polling set u16, state seen of the peer's u16, zero u32
//	32  bytes, and zero to seven more up to a multiple of 8
//	    tail word
const (
	wordBytes     = 8
	headerBytes   = 32
	overheadBytes = headerBytes + wordBytes
	checkedFrom   = 12
	sizeMax       = 1<<16 - 1
)

// kind is what a message is.
type kind uint8

const (
	kindData  kind = 1 // numbered: bytes
	kindEnd   kind = 2 // numbered: the sender closes
	kindState kind = 4 // counts and states only
	kindLast  kind = 6 // 3, 5 and 6 are reserved: earlier versions had large messages
)

func (k kind) numbered() bool { return k == kindData || k == kindEnd }

// flagValue is the value that head and tail word agree on.
type flagValue uint8

const (
	flagPrimary   flagValue = 1
	flagSecondary flagValue = 2
)

// tailOf is the tail word for a flag.
func tailOf(f flagValue) uint64 {
	if f == flagSecondary {
		return 0x5ec0_da47_1a67_7a11
	}
	return 0x9413_a277_1a67_7a11
}

// head is the head word.
type head struct {
	flag flagValue
	kind kind
	size int
}

// word is the head word's value. Every bit is there twice, once as its complement: over a cleared word a part of it
// is no valid head, so it may be polled although only the last word of a write becomes visible in one piece.
func (h head) word() uint64 {
	half := uint64(h.flag) | uint64(h.kind)<<8 | uint64(h.size)<<16
	inverse := ^half
	return half | (inverse>>16&sizeMax)<<32 | (inverse>>8&0xff)<<48 | (inverse&0xff)<<56
}

// decodeHead is the inverse of word; ok is false if w is not a whole head word.
func decodeHead(w uint64) (h head, ok bool) {
	h = head{flag: flagValue(w), kind: kind(w >> 8), size: int(w >> 16 & sizeMax)}
	return h, h.word() == w && (h.flag == flagPrimary || h.flag == flagSecondary) && h.kind >= kindData &&
		h.kind <= kindLast
}

// frame is a message without its bytes.
type frame struct {
	kind        kind
	size        int
	number      uint32
	slotsFreed  uint32
	recvsFreed  uint32
	set, setSaw uint16
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum goes on from flag, kind and size as from the checksum of bytes before.
func checksum(w uint64, b []byte, size int) uint32 {
	return crc32.Update(uint32(w), castagnoli, b[checkedFrom:headerBytes+size])
}

// encode writes the head word and the header in front of the f.size bytes that are at headerBytes of b already.
func (f *frame) encode(b []byte, fl flagValue) {
	w := head{flag: fl, kind: f.kind, size: f.size}.word()
	binary.LittleEndian.PutUint64(b, w)
	binary.LittleEndian.PutUint32(b[12:], f.number)
	binary.LittleEndian.PutUint32(b[16:], f.slotsFreed)
	binary.LittleEndian.PutUint32(b[20:], f.recvsFreed)
	binary.LittleEndian.PutUint16(b[24:], f.set)
	binary.LittleEndian.PutUint16(b[26:], f.setSaw)
	binary.LittleEndian.PutUint32(b[28:], 0)
	binary.LittleEndian.PutUint32(b[8:], checksum(w, b, f.size))
}

// decode reads the message at b whose head word was w; b holds at least the size it names.
func decode(b []byte, w uint64) (frame, error) {
	h, ok := decodeHead(w)
	if !ok || len(b) < headerBytes+h.size {
		return frame{}, fmt.Errorf("%w: head word %#x in %d bytes", ErrProtocol, w, len(b))
	}
	if got, want := checksum(w, b, h.size), binary.LittleEndian.Uint32(b[8:]); got != want {
		return frame{}, fmt.Errorf("%w: checksum %#x of a message of %d bytes, which names %#x", ErrProtocol, got, h.size,
			want)
	}
	return frame{
		kind: h.kind, size: h.size,
		number:     binary.LittleEndian.Uint32(b[12:]),
		slotsFreed: binary.LittleEndian.Uint32(b[16:]),
		recvsFreed: binary.LittleEndian.Uint32(b[20:]),
		set:        binary.LittleEndian.Uint16(b[24:]),
		setSaw:     binary.LittleEndian.Uint16(b[26:]),
	}, nil
}

// decodeReceived reads a message from a receive of n bytes.
func decodeReceived(b []byte, n int) (frame, error) {
	if n < headerBytes || n > len(b) {
		return frame{}, fmt.Errorf("%w: message of %d bytes", ErrProtocol, n)
	}
	f, err := decode(b[:n], binary.LittleEndian.Uint64(b))
	if err == nil && headerBytes+f.size != n {
		err = fmt.Errorf("%w: message of %d bytes that names %d", ErrProtocol, n, headerBytes+f.size)
	}
	return f, err
}

// tailOffset is where the tail word of a message is.
func tailOffset(size int) int { return headerBytes + (size+wordBytes-1)&^(wordBytes-1) }

// seal makes the message complete in the sender's slot, whose f.size bytes are in place, and returns how many bytes to
// write. The flag is one that the tail's place does not have already (section 4.2): sender's and receiver's slots have
// equal bytes.
func seal(slot []byte, f *frame) int {
	at, fl := tailOffset(f.size), flagPrimary
	if binary.LittleEndian.Uint64(slot[at:]) == tailOf(flagPrimary) {
		fl = flagSecondary
	}
	f.encode(slot, fl)
	binary.LittleEndian.PutUint64(slot[at:], tailOf(fl))
	return at + wordBytes
}

// arrived reports whether a whole message is in the receiver's slot, and its head word. A slot that can never become
// one is an error.
func arrived(slot []byte) (w uint64, ok bool, err error) {
	w = loadWord(slot, 0)
	if w == 0 {
		return 0, false, nil
	}
	h, ok := decodeHead(w)
	if !ok {
		return 0, false, nil
	}
	if h.size > len(slot)-overheadBytes {
		return 0, false, fmt.Errorf("%w: message of %d bytes in a slot for %d", ErrProtocol, h.size, len(slot)-overheadBytes)
	}
	return w, loadWord(slot, tailOffset(h.size)) == tailOf(h.flag), nil
}

// loadWord reads an aligned word that the device may be writing.
func loadWord(mem []byte, at int) uint64 {
	w := atomic.LoadUint64((*uint64)(unsafe.Pointer(&mem[at])))
	var b [wordBytes]byte
	binary.NativeEndian.PutUint64(b[:], w)
	return binary.LittleEndian.Uint64(b[:])
}

// clearHead makes a slot empty.
func clearHead(mem []byte) { atomic.StoreUint64((*uint64)(unsafe.Pointer(&mem[0])), 0) }
