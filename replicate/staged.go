package replicate

import "io"

// staged is what a push reads: all of its bytes, or an error.
func (s *pushSession) staged() io.ReaderAt { return whole{s.push.Source} }

// taken lets the owner of the staged bytes know that all were read.
func (s *pushSession) taken() {
	if s.push.Taken != nil {
		s.push.Taken()
	}
}

// whole reads ranges that lie within the size that is being published, where an end is not expected.
type whole struct{ src io.ReaderAt }

// ReadAt fills p or fails.
func (w whole) ReadAt(p []byte, off int64) (int, error) {
	n, err := w.src.ReadAt(p, off)
	switch {
	case n == len(p):
		return n, nil
	case err == nil || err == io.EOF:
		return n, ErrCut
	}
	return n, err
}
