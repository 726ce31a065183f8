package rdmc

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"testing"
)

const echoVariable = "RDMC_TEST_ECHO"

// echo is the other process of the raw round trip: it sends back what it gets.
func echo(address string) error {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = io.Copy(struct{ io.Writer }{conn}, struct{ io.Reader }{conn})
	return err
}

// rawRoundTrip sends 64 bytes to another process and back, over a plain TCP connection.
func rawRoundTrip(b *testing.B) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	other := exec.Command(os.Args[0])
	other.Env = append(os.Environ(), echoVariable+"="+l.Addr().String())
	if err := other.Start(); err != nil {
		b.Fatal(err)
	}
	conn, err := l.Accept()
	if err != nil {
		b.Fatal(err)
	}
	buf := make([]byte, 64)
	for b.Loop() {
		if _, err := conn.Write(buf); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(conn, buf); err != nil {
			b.Fatal(err)
		}
	}
	conn.Close()
	if err := other.Wait(); err != nil {
		b.Fatal(err)
	}
}

func smallGroup(b testing.TB) []*Group {
	b.Helper()
	c := &cluster{t: b}
	for _, d := range tcpDevices(b, 5) {
		e, err := NewEngine(EngineConfig{Device: d})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { e.Close() })
		c.engines = append(c.engines, e)
	}
	return c.all(GroupConfig{Number: 1, BlockSize: 4096, SmallBytes: DefaultSmallBytes, Small: func(uint64, []byte) {}})
}

// BenchmarkSmallSend measures issue 3's figures: the latency of 64 bytes to 4 members, until the root has every
// member's acknowledgement, beside the raw round trip between two processes; and 1-byte messages per second.
func BenchmarkSmallSend(b *testing.B) {
	b.Run("raw round trip", rawRoundTrip)
	b.Run("64 bytes to 4", smallLatency)
	for _, size := range []int{1, 1 << 10, DefaultSmallBytes} {
		b.Run(fmt.Sprintf("%d bytes to 4", size), func(b *testing.B) { smallRate(b, size) })
	}
}

func smallLatency(b *testing.B) {
	g := smallGroup(b)[0]
	ctx := testContext(b)
	data := make([]byte, 64)
	for b.Loop() {
		seq, err := g.SendSmall(data)
		if err != nil {
			b.Fatal(err)
		}
		if err := g.WaitDelivered(ctx, seq); err != nil {
			b.Fatal(err)
		}
	}
}

func smallRate(b *testing.B, size int) {
	g := smallGroup(b)[0]
	data := make([]byte, size)
	var last uint64
	for b.Loop() {
		last = sendSmall(b, g, data)
	}
	if err := g.WaitDelivered(testContext(b), last); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
}

// BenchmarkSmallByBlocks is the same latency by the schedule of large messages, announced, for the size up to which
// the small way pays.
func BenchmarkSmallByBlocks(b *testing.B) {
	for _, size := range []int{64, 1 << 10, 8 << 10, 32 << 10, 64 << 10} {
		b.Run(fmt.Sprintf("%d bytes by blocks", size), func(b *testing.B) {
			groups := newCluster(b, tcpDevices(b, 5)).all(GroupConfig{Number: 1, BlockSize: 64 << 10})
			for b.Loop() {
				runOne(b, groups, 1, size)
			}
		})
		b.Run(fmt.Sprintf("%d bytes small", size), func(b *testing.B) {
			g := newCluster(b, tcpDevices(b, 5)).all(GroupConfig{Number: 1, SmallBytes: 64 << 10,
				Small: func(uint64, []byte) {}})[0]
			data := make([]byte, size)
			for b.Loop() {
				if err := g.WaitDelivered(testContext(b), sendSmall(b, g, data)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
