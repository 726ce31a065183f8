package fs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/rdmcfs/rdmcfs/fs"
	"github.com/rdmcfs/rdmcfs/fs/fstest"
)

func benchMount(b *testing.B, change func(*fs.Options)) string {
	n := fstest.New(b, 1).Node(1)
	n.Instant()
	return n.Mount(b, change)
}

func eachModeBench(b *testing.B, f func(b *testing.B, mnt string)) {
	for name, change := range modes {
		b.Run(name, func(b *testing.B) { f(b, benchMount(b, change)) })
	}
}

// BenchmarkCreate4K is what the file system itself costs for a small file: the cluster answers at once.
func BenchmarkCreate4K(b *testing.B) {
	eachModeBench(b, func(b *testing.B, mnt string) {
		data := make([]byte, 4096)
		data[0] = 1
		for i := 0; b.Loop(); i++ {
			write(b, filepath.Join(mnt, fmt.Sprint("f", i)), data)
		}
	})
}

// BenchmarkRawCreate4K is the same on the file system below.
func BenchmarkRawCreate4K(b *testing.B) {
	dir := b.TempDir()
	data := make([]byte, 4096)
	for i := 0; b.Loop(); i++ {
		write(b, filepath.Join(dir, fmt.Sprint("f", i)), data)
	}
}

func BenchmarkStat(b *testing.B) {
	mnt := benchMount(b, nil)
	write(b, filepath.Join(mnt, "f"), []byte("x"))
	for b.Loop() {
		if _, err := os.Stat(filepath.Join(mnt, "f")); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkOpenReadClose(b *testing.B) {
	eachModeBench(b, func(b *testing.B, mnt string) {
		write(b, filepath.Join(mnt, "f"), make([]byte, 4000))
		for b.Loop() {
			if _, err := os.ReadFile(filepath.Join(mnt, "f")); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkSequentialWrite is to be compared with BenchmarkRawWrite. Closing is not counted: it reads everything.
func BenchmarkSequentialWrite(b *testing.B) {
	eachModeBench(b, func(b *testing.B, mnt string) { sequentialWrite(b, mnt) })
}

func BenchmarkRawWrite(b *testing.B) { sequentialWrite(b, b.TempDir()) }

func sequentialWrite(b *testing.B, dir string) {
	const total = 256 << 20
	buf := make([]byte, 1<<20)
	b.SetBytes(total)
	for b.Loop() {
		f, err := os.Create(filepath.Join(dir, "f"))
		must(b, err)
		for off := int64(0); off < total; off += int64(len(buf)) {
			_, err := f.WriteAt(buf, off)
			must(b, err)
		}
		b.StopTimer()
		must(b, os.Remove(f.Name()))
		must(b, f.Close())
		b.StartTimer()
	}
}

func BenchmarkSequentialRead(b *testing.B) {
	for name, change := range modes {
		b.Run(name, func(b *testing.B) {
			sequentialRead(b, fstest.New(b, 1).Node(1).Mount(b, change))
		})
	}
}

func BenchmarkRawRead(b *testing.B) { sequentialRead(b, b.TempDir()) }

func sequentialRead(b *testing.B, dir string) {
	const total = 64 << 20
	path := filepath.Join(dir, "f")
	write(b, path, pattern(1, total))
	buf := make([]byte, 1<<20)
	b.SetBytes(total)
	for b.Loop() {
		f, err := os.Open(path)
		must(b, err)
		for off := int64(0); off < total; off += int64(len(buf)) {
			_, err := f.ReadAt(buf, off)
			must(b, err)
		}
		must(b, f.Close())
	}
}
