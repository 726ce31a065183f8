package replicate

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/rdmcfs/rdmcfs/meta"
)

// BenchmarkPublish is a push of one file to 3 others of 4 nodes, all in this process, over TCP on loopback for the
// large ones: every byte is read, hashed, stored and synced four times on this machine.
func BenchmarkPublish(b *testing.B) {
	for _, size := range []int{1000, 4096, 64 << 10, 1 << 20, 16 << 20, 128 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			c, _ := onFabric(b, "tcp", 4)
			data := randomBytes(1, size)
			ino := c.create(1, "f")
			base := meta.ContentID{}
			b.SetBytes(int64(size))
			for b.Loop() {
				out, err := c.node(1).rep.Publish(b.Context(), Push{
					Ino: ino, Base: base, Size: int64(size), Source: bytes.NewReader(data), Data: []Extent{{0, int64(size)}},
				})
				if err != nil {
					b.Fatal(err)
				}
				if len(out.Result.Owed) > 0 {
					b.Fatalf("owed %v", out.Result.Owed)
				}
				base = out.Content
			}
		})
	}
}
