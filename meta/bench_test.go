package meta_test

import (
	"fmt"
	"testing"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/meta/metatest"
)

func benchStores(b *testing.B, fn func(b *testing.B, c *metatest.Cluster)) {
	b.Run("memory", func(b *testing.B) { fn(b, metatest.New(b, 3)) })
	b.Run("disk", func(b *testing.B) { fn(b, metatest.Over(b, openDisk(b, b.TempDir()), 3)) })
}

// BenchmarkCreatePublish applies the two entries of one small file.
func BenchmarkCreatePublish(b *testing.B) {
	benchStores(b, func(b *testing.B, c *metatest.Cluster) {
		data := make([]byte, 512)
		dir := mkdir(c, meta.RootIno, "d")
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			if i%1000 == 0 {
				dir = mkdir(c, meta.RootIno, fmt.Sprint("d", i))
			}
			ino := c.Do(1, &meta.Create{Parent: dir, Name: fmt.Sprint("file", i), Kind: meta.KindFile, Mode: 0o644}).Ino
			c.Do(1, &meta.Publish{Ino: ino, Session: c.Session(1), Size: int64(len(data)), Inline: data})
			if i++; i%5000 == 0 {
				c.Events()
				if _, err := c.DB.Sync(); err != nil {
					b.Fatal(err)
				}
			}
		}
		b.ReportMetric(2*float64(b.N)/b.Elapsed().Seconds(), "applies/s")
	})
}

func BenchmarkLookup(b *testing.B) {
	benchStores(b, func(b *testing.B, c *metatest.Cluster) {
		dir := mkdir(c, meta.RootIno, "d")
		const files = 30000
		for i := range files {
			c.Do(1, &meta.Create{Parent: dir, Name: fmt.Sprint("file", i), Kind: meta.KindFIFO, Mode: 0o644})
		}
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			if _, err := c.DB.Lookup(dir, fmt.Sprint("file", i*7919%files), meta.Lease{}); err != nil {
				b.Fatal(err)
			}
			i++
		}
	})
}

// BenchmarkReadDir lists 100 entries of a large directory.
func BenchmarkReadDir(b *testing.B) {
	benchStores(b, func(b *testing.B, c *metatest.Cluster) {
		dir := mkdir(c, meta.RootIno, "d")
		const files = 30000
		for i := range files {
			c.Do(1, &meta.Create{Parent: dir, Name: fmt.Sprint("file", i), Kind: meta.KindFIFO, Mode: 0o644})
		}
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			list, err := c.DB.ReadDir(dir, fmt.Sprint("file", i*7919%9000), 100, meta.Lease{})
			if err != nil || len(list) == 0 {
				b.Fatal(err)
			}
			i++
		}
	})
}
