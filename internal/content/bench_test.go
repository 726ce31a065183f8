package content

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/blockset"
)

// BenchmarkSmallCommits measures durable small contents: begin, write, finish, commit.
func BenchmarkSmallCommits(b *testing.B) {
	for _, size := range []int64{4096, 65536, 200 << 10} {
		for _, workers := range []int{1, 8, 32} {
			b.Run(fmt.Sprintf("bytes=%d/workers=%d", size, workers), func(b *testing.B) {
				s := openStore(b, b.TempDir(), Options{})
				p := randomBytes(1, size)
				var next atomic.Int64
				b.ResetTimer()
				var group sync.WaitGroup
				for range workers {
					group.Go(func() {
						for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
							id := ID{0: 1}
							binary.BigEndian.PutUint64(id[8:], uint64(i))
							if _, err := s.Put(context.Background(), id, Shape{Size: size}, bytes.NewReader(p)); err != nil {
								b.Error(err)
							}
							if err := s.Commit(id); err != nil {
								b.Error(err)
							}
						}
					})
				}
				group.Wait()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "contents/s")
			})
		}
	}
}

// BenchmarkReceive measures one large content from blocks in memory to stored.
func BenchmarkReceive(b *testing.B) {
	const blocks = 256
	s := openStore(b, b.TempDir(), Options{})
	p := randomBytes(1, BlockBytes)
	leaf := Leaf(p)
	leaves := make([]Hash, blocks)
	for i := range leaves {
		leaves[i] = leaf
	}
	root := Root(blocks*BlockBytes, leaves)
	b.SetBytes(blocks * BlockBytes)
	for n := range b.N {
		id := ID{0: 1, 8: byte(n >> 8), 9: byte(n)}
		r, err := s.Begin(id, Shape{Size: blocks * BlockBytes})
		if err != nil {
			b.Fatal(err)
		}
		err = eachBlock(context.Background(), blocks, func(i int64, _ *scratch) error { return r.WriteBlock(i, p, nil) })
		if err != nil {
			b.Fatal(err)
		}
		if err := r.Finish(context.Background(), root); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		_ = s.Delete(id)
		b.StartTimer()
	}
}

// BenchmarkOpenStore measures Open with 20,000 small contents.
func BenchmarkOpenStore(b *testing.B) {
	dir := b.TempDir()
	s := openStore(b, dir, Options{})
	var next atomic.Uint32
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			for n := next.Add(1); n <= 20_000; n = next.Add(1) {
				p := []byte("small content")
				if _, err := s.Put(context.Background(), numberedID(n), Shape{Size: int64(len(p))},
					bytes.NewReader(p)); err != nil {
					b.Error(err)
				}
				if err := s.Commit(numberedID(n)); err != nil {
					b.Error(err)
				}
			}
		})
	}
	group.Wait()
	for b.Loop() {
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
		s = openStore(b, dir, Options{})
		if n := len(s.List(Committed)); n != 20_000 {
			b.Fatalf("%d contents", n)
		}
	}
}

// BenchmarkReadSmall measures open, read and close of a small content.
func BenchmarkReadSmall(b *testing.B) {
	s := openStore(b, b.TempDir(), Options{})
	put(b, s, testID(1), Shape{Size: 4096}, randomBytes(1, 4096))
	p := make([]byte, 4096)
	for b.Loop() {
		r, err := s.Open(testID(1))
		if err != nil {
			b.Fatal(err)
		}
		if _, err := r.ReadAt(p, 0); err != nil {
			b.Fatal(err)
		}
		r.Close()
	}
}

// BenchmarkRead measures checked reads of 128 KiB and of 4 KiB from the page cache.
func BenchmarkRead(b *testing.B) {
	s := openStore(b, b.TempDir(), Options{})
	put(b, s, testID(1), Shape{Size: 64 << 20}, randomBytes(1, 64<<20))
	r, err := s.Open(testID(1))
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	for _, n := range []int64{4 << 10, 128 << 10, 1 << 20} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			p := make([]byte, n)
			b.SetBytes(n)
			off := int64(0)
			for b.Loop() {
				if _, err := r.ReadAt(p, off); err != nil {
					b.Fatal(err)
				}
				off = (off + n) % (64 << 20)
			}
		})
	}
}

// BenchmarkDeltaPublish measures 4 KiB changed in a large content: snapshot, store, finish.
func BenchmarkDeltaPublish(b *testing.B) {
	s := openStore(b, b.TempDir(), Options{})
	put(b, s, numberedID(1), Shape{Size: 1 << 30, Holes: blockset.Ranges{{First: 64, Count: 960}}},
		append(randomBytes(1, 64<<20), make([]byte, 960<<20)...))
	o, err := s.NewOverlay(numberedID(1), Origin{})
	if err != nil {
		b.Fatal(err)
	}
	defer o.Drop()
	p := randomBytes(2, 4096)
	n := uint32(1)
	for b.Loop() {
		if _, err := o.WriteAt(p, int64(n)*12345*4096%(64<<20)); err != nil {
			b.Fatal(err)
		}
		snap, err := o.Snapshot()
		if err != nil {
			b.Fatal(err)
		}
		n++
		if _, err := s.Put(context.Background(), numberedID(n), snap.Shape(), snap); err != nil {
			b.Fatal(err)
		}
		if err := s.Commit(numberedID(n)); err != nil {
			b.Fatal(err)
		}
		if err := snap.Published(numberedID(n)); err != nil {
			b.Fatal(err)
		}
		if n%16 == 0 {
			if err := s.Merge(context.Background(), numberedID(n)); err != nil {
				b.Fatal(err)
			}
		}
	}
}
