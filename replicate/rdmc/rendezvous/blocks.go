package rendezvous

import (
	"io"
	"os"

	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
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

// NewBlocks reads and writes the messages of a group of that block size from and to a file, which must stay open while
// they are sent or received.
func NewBlocks(f File, blockSize int) Blocks { return Blocks{f, int64(blockSize)} }

// SendFile sends a whole file, which must not change meanwhile. It stays the caller's, and open until the transfer is
// done. At the root only.
func (m *Meeting) SendFile(f *os.File) (*rdmc.Transfer, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return m.Group.Send(rdmc.Outgoing{Size: uint64(info.Size()), Source: NewBlocks(f, m.BlockSize)})
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
