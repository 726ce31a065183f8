package integration

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
)

// blob is what a file holds: pieces of endless streams of pseudo-random bytes. Nothing of it is stored, so the oracle
// of a storm needs no file system.
type blob []piece

// piece is a part of the stream of a seed.
type piece struct {
	seed      uint64
	at, bytes int64
}

func newBlob(seed uint64, bytes int64) blob { return blob{{seed: seed, bytes: bytes}} }

func (b blob) size() (n int64) {
	for _, p := range b {
		n += p.bytes
	}
	return n
}

// cut is the part of a blob from one offset to another.
func (b blob) cut(from, to int64) (out blob) {
	at := int64(0)
	for _, p := range b {
		lo, hi := max(from, at), min(to, at+p.bytes)
		if lo < hi {
			out = append(out, piece{seed: p.seed, at: p.at + lo - at, bytes: hi - lo})
		}
		at += p.bytes
	}
	return out
}

// patched is the blob with other bytes at an offset inside it; they may go beyond its end.
func (b blob) patched(off int64, by blob) blob {
	out := append(b.cut(0, off), by...)
	return append(out, b.cut(off+by.size(), b.size())...)
}

// read fills buf with the bytes at an offset, and returns how many there are.
func (b blob) read(buf []byte, off int64) (n int) {
	for _, p := range b.cut(off, off+int64(len(buf))) {
		p.fill(buf[n : n+int(p.bytes)])
		n += int(p.bytes)
	}
	return n
}

// fill writes the bytes of a piece. Word i of a stream is a hash of the seed and i.
func (p piece) fill(buf []byte) {
	var word [8]byte
	for at := p.at; len(buf) > 0; {
		x := p.seed*0x9E3779B97F4A7C15 + uint64(at/8)*0xD1B54A32D192ED03
		x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
		x = (x ^ x>>27) * 0x94D049BB133111EB
		binary.LittleEndian.PutUint64(word[:], x^x>>31)
		n := copy(buf, word[at%8:])
		buf, at = buf[n:], at+int64(n)
	}
}

// writeTo writes the blob at an offset of a file, in steps as cp does, and returns how much of it was written.
func (b blob) writeTo(f *os.File, off int64) (done int64, err error) {
	buf := make([]byte, 256<<10)
	for {
		n := b.read(buf, done)
		if n == 0 {
			return done, nil
		}
		wrote, err := f.WriteAt(buf[:n], off+done)
		done += int64(wrote)
		if err != nil {
			return done, err
		}
	}
}

// differs compares a file with the blob: "" if they are equal, else where they begin to differ.
func (b blob) differs(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	got, want := make([]byte, 1<<20), make([]byte, 1<<20)
	for off := int64(0); ; {
		n, err := io.ReadFull(f, got)
		if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
			return "", fmt.Errorf("read at %d: %w", off, err)
		}
		m := b.read(want, off)
		if n != m {
			return fmt.Sprintf("it ends at %d, not at %d", off+int64(n), b.size()), nil
		}
		if !bytes.Equal(got[:n], want[:n]) {
			for i := range n {
				if got[i] != want[i] {
					return fmt.Sprintf("byte %d of %d is %#x, not %#x", off+int64(i), b.size(), got[i], want[i]), nil
				}
			}
		}
		if n < len(got) {
			return "", nil
		}
		off += int64(n)
	}
}
