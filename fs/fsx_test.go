package fs_test

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/rdmcfs/rdmcfs/fs/fstest"
	"golang.org/x/sys/unix"
)

var (
	fsxSeed = flag.Uint64("seed", 1, "seed of the random operations")
	fsxOps  = flag.Int("ops", 0, "number of random operations; 0 = default")
)

const fsxSizeMax = 1 << 20

// fsx does random operations on one file and on a model of it.
type fsx struct {
	t     *testing.T
	rnd   *rand.Rand
	path  string
	other string // on the other node
	f     *os.File
	maps  *mapper
	model []byte
	step  int
}

func TestRandomOperations(t *testing.T) {
	ops := *fsxOps
	if ops == 0 {
		ops = 3000
		if testing.Short() {
			ops = 500
		}
	}
	eachPair(t, func(t *testing.T, c *fstest.Cluster, a, b string) {
		t.Logf("-seed %d", *fsxSeed)
		x := &fsx{
			t: t, rnd: rand.New(rand.NewPCG(*fsxSeed, 0)),
			path: filepath.Join(a, "f"), other: filepath.Join(b, "f"), maps: newMapper(t),
		}
		write(t, x.path, nil)
		x.open()
		for x.step = range ops {
			x.do()
			if t.Failed() {
				return
			}
		}
		x.reopen()
		must(t, x.f.Close())
	})
}

func (x *fsx) must(what string, err error) {
	x.t.Helper()
	if err != nil {
		x.t.Fatalf("seed %d step %d: %s: %v", *fsxSeed, x.step, what, err)
	}
}

func (x *fsx) open() {
	var err error
	x.f, err = os.OpenFile(x.path, os.O_RDWR, 0)
	x.must("open", err)
}

func (x *fsx) do() {
	off := x.rnd.IntN(fsxSizeMax)
	n := 1 + x.rnd.IntN(min(64<<10, fsxSizeMax-off))
	switch p := x.rnd.IntN(100); {
	case p < 35:
		x.write(off, n)
	case p < 60:
		x.read(off, n)
	case p < 67:
		x.truncate(off)
	case p < 74:
		x.mapped(off, n)
	case p < 80:
		x.punch(off, n)
	case p < 85:
		x.append(n)
	case p < 90:
		x.must("fsync", x.f.Sync())
		x.compare(x.other)
	case p < 95:
		x.reopen()
	case p < 97:
		x.truncateByPath(off)
	default:
		x.compare(x.path)
	}
}

func (x *fsx) grow(size int) {
	if size > len(x.model) {
		x.model = append(x.model, make([]byte, size-len(x.model))...)
	}
}

func (x *fsx) bytes(n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(x.rnd.Uint32())
	}
	return p
}

func (x *fsx) write(off, n int) {
	p := x.bytes(n)
	_, err := x.f.WriteAt(p, int64(off))
	x.must("write", err)
	x.grow(off + n)
	copy(x.model[off:], p)
}

func (x *fsx) append(n int) {
	if len(x.model)+n > fsxSizeMax {
		return
	}
	f, err := os.OpenFile(x.path, os.O_WRONLY|os.O_APPEND, 0)
	x.must("open for append", err)
	p := x.bytes(n)
	_, err = f.Write(p)
	x.must("append", err)
	x.must("close", f.Close())
	x.model = append(x.model, p...)
}

func (x *fsx) read(off, n int) {
	p := make([]byte, n)
	got, err := x.f.ReadAt(p, int64(off))
	if err != io.EOF {
		x.must("read", err)
	}
	want := []byte{}
	if off < len(x.model) {
		want = x.model[off:min(off+n, len(x.model))]
	}
	x.equal("read", p[:got], want)
}

func (x *fsx) equal(what string, got, want []byte) {
	x.t.Helper()
	if !bytes.Equal(got, want) {
		x.t.Fatalf("seed %d step %d: %s: %d bytes, want %d, first difference at %d",
			*fsxSeed, x.step, what, len(got), len(want), firstDiff(got, want))
	}
}

func (x *fsx) truncate(size int) {
	x.must("truncate", x.f.Truncate(int64(size)))
	x.resize(size)
}

func (x *fsx) resize(size int) {
	if size < len(x.model) {
		x.model = x.model[:size:size]
	}
	x.grow(size)
}

func (x *fsx) truncateByPath(size int) {
	x.must("truncate by path", os.Truncate(x.path, int64(size)))
	x.resize(size)
	x.compare(x.other)
}

func (x *fsx) mapped(off, n int) {
	n = min(n, 4096)
	if off+n > len(x.model) {
		return
	}
	p := x.bytes(n)
	x.equal("mapping", x.maps.do(x.t, x.path, off, p, true), x.model[off:off+n])
	copy(x.model[off:], p)
}

func (x *fsx) punch(off, n int) {
	x.must("punch", unix.Fallocate(int(x.f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(off),
		int64(n)))
	if off < len(x.model) {
		clear(x.model[off:min(off+n, len(x.model))])
	}
}

func (x *fsx) reopen() {
	x.must("close", x.f.Close())
	x.compare(x.other)
	x.open()
}

func (x *fsx) compare(path string) {
	x.t.Helper()
	got, err := os.ReadFile(path)
	x.must("read "+path, err)
	x.equal(fmt.Sprint("whole file ", path), got, x.model)
	st, err := os.Stat(path)
	x.must("stat", err)
	if st.Size() != int64(len(x.model)) {
		x.t.Fatalf("seed %d step %d: size of %s %d, want %d", *fsxSeed, x.step, path, st.Size(), len(x.model))
	}
}
