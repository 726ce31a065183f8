package rendezvous

import (
	"context"
	"fmt"
	"io"
	"os"
)

// File is what Blocks reads and writes; *os.File is one.
type File interface {
	io.ReaderAt
	io.WriterAt
}

// Blocks is a message in a file, from its start: a Source and a Sink.
type Blocks struct {
	file  File
	block int64
}

// Blocks gives and takes the session's messages in a file, which must stay open while they are sent or received.
func (s *Session) Blocks(f File) Blocks { return Blocks{f, int64(s.BlockSize())} }

// SendFile is Send of a whole file, which must not change meanwhile. It stays the caller's.
func (s *Session) SendFile(ctx context.Context, f *os.File) (Delivery, error) {
	info, err := f.Stat()
	if err != nil {
		return Delivery{}, fmt.Errorf("rendezvous: %w", err)
	}
	return s.Send(ctx, uint64(info.Size()), s.Blocks(f))
}

// ReadBlock reads a block.
func (b Blocks) ReadBlock(i uint64, buf []byte) error {
	n, err := b.file.ReadAt(buf, int64(i)*b.block)
	if n == len(buf) {
		return nil // io.EOF may come with the last bytes
	}
	return err
}

// WriteBlock writes a block.
func (b Blocks) WriteBlock(i uint64, buf []byte) error {
	_, err := b.file.WriteAt(buf, int64(i)*b.block)
	return err
}
