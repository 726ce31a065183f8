package fs_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// numbered is the bytes of one version: its number all over.
func numbered(version uint64, size int) []byte {
	return bytes.Repeat(binary.BigEndian.AppendUint64(nil, version), size/8)
}

// wholeVersion is the number of the version that these bytes are.
func wholeVersion(p []byte) (uint64, error) {
	if len(p) < 8 {
		return 0, fmt.Errorf("%d bytes", len(p))
	}
	v := binary.BigEndian.Uint64(p)
	if want := numbered(v, len(p)); !bytes.Equal(p, want) {
		return v, fmt.Errorf("%d bytes that begin as version %d differ from it at %d", len(p), v, firstDiff(p, want))
	}
	return v, nil
}

// Versions are committed quickly while programs read, lock, open and close. What is read by one call, or under a lock,
// is one whole version, never an older one than before, and in the end it is the last.
func TestFollowRace(t *testing.T) {
	needWholeReads(t)
	rounds := uint64(150)
	if testing.Short() {
		rounds = 60
	}
	for name, size := range map[string]int{"log": 800, "page": 4096, "store": 40_000, "large": 900_000} {
		t.Run(name, func(t *testing.T) { testFollowRace(t, size, rounds) })
	}
}

func testFollowRace(t *testing.T, size int, rounds uint64) {
	_, a, b := followPair(t)
	path := filepath.Join(a, "f")
	write(t, path, numbered(1, size))
	follow := filepath.Join(b, "f")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var readers sync.WaitGroup
	read := func(look func(f *os.File) (uint64, error)) {
		readers.Go(func() {
			if err := followRounds(ctx, follow, look); err != nil {
				t.Error(err)
			}
		})
	}
	read(func(f *os.File) (uint64, error) { return readOnce(f, size) })
	read(func(f *os.File) (uint64, error) { return readLocked(f, size) })
	readers.Go(func() {
		if err := openAndRead(ctx, follow, size); err != nil {
			t.Error(err)
		}
	})
	last := openFor(t, follow, os.O_RDONLY)
	for v := uint64(2); v <= rounds; v++ {
		write2(t, path, numbered(v, size))
	}
	stop()
	readers.Wait()
	eventuallyShows(t, last, numbered(rounds, size))
}

// write2 replaces the bytes of a file without making it empty before.
func write2(t *testing.T, path string, p []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteAt(p, 0)
	must(t, errors.Join(err, f.Close()))
}

// followRounds looks at an open file again and again.
func followRounds(ctx context.Context, path string, look func(f *os.File) (uint64, error)) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for before := uint64(0); ctx.Err() == nil; {
		now, err := look(f)
		if err != nil || now < before {
			return fmt.Errorf("version %d after %d: %w", now, before, err)
		}
		before = now
	}
	return nil
}

// readOnce reads a file by one call.
func readOnce(f *os.File, size int) (uint64, error) {
	p := make([]byte, size)
	n, err := f.ReadAt(p, 0)
	if n != size {
		return 0, fmt.Errorf("read %d of %d: %w", n, size, err)
	}
	return wholeVersion(p)
}

// readLocked reads all of a file under a lock, by many calls.
func readLocked(f *os.File, size int) (v uint64, err error) {
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, unix.Flock(int(f.Fd()), unix.LOCK_UN)) }()
	var got bytes.Buffer
	if _, err := io.CopyBuffer(struct{ io.Writer }{&got}, struct{ io.Reader }{io.NewSectionReader(f, 0, 1<<40)},
		make([]byte, 3000)); err != nil {
		return 0, err
	}
	if got.Len() != size {
		return 0, fmt.Errorf("%d bytes under a lock, want %d", got.Len(), size)
	}
	return wholeVersion(got.Bytes())
}

// openAndRead opens, reads and closes a file again and again.
func openAndRead(ctx context.Context, path string, size int) error {
	for before := uint64(0); ctx.Err() == nil; {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		now, err := readOnce(f, size)
		err = errors.Join(err, f.Close())
		if err != nil || now < before {
			return fmt.Errorf("version %d after %d: %w", now, before, err)
		}
		before = now
	}
	return nil
}

// A file grows and shrinks quickly: what is read is never a zero, which no version has, and the last version arrives.
func TestFollowRaceOfSizes(t *testing.T) {
	needWholeReads(t)
	rounds := 300
	if testing.Short() {
		rounds = 60
	}
	_, a, b := followPair(t)
	path := filepath.Join(a, "f")
	write(t, path, []byte("x"))
	last := openFor(t, filepath.Join(b, "f"), os.O_RDONLY)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for p := make([]byte, 30_000); ctx.Err() == nil; {
				n, err := last.ReadAt(p, 0)
				if err != nil && err != io.EOF {
					t.Error(err)
					return
				}
				if i := bytes.IndexByte(p[:n], 0); i >= 0 {
					t.Errorf("byte %d of %d is zero", i, n)
					return
				}
			}
		})
	}
	size := 1
	for i := range rounds {
		size = 1 + (i%8)*1500 + i
		write2(t, path, bytes.Repeat([]byte{byte('a' + i%26)}, size))
		if i%8 == 7 {
			must(t, os.Truncate(path, 1))
			eventuallyShows(t, last, []byte{byte('a' + i%26)})
		}
	}
	stop()
	readers.Wait()
	want, err := os.ReadFile(path)
	must(t, err)
	eventuallyShows(t, last, want)
}
