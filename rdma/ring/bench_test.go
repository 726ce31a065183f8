package ring

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"
)

// figures has TestFigures print what the paper's figures 11, 12, 13 and 20 show.
var figures = flag.Bool("figures", false, "measure and print the figures of the paper")
var (
	figureRounds = flag.Int("figures.rounds", 31, "rounds of each figure, short ones by turns")
	figureTimes  = flag.Int("figures.times", 100, "round trips of a round, and messages")
	figureOn     = flag.String("figures.on", "", "only this provider")
)

// ways are the two that are compared: both poll while they wait.
var ways = map[string]Config{
	"ring": {Spin: time.Second, Linger: time.Second, Keepalive: time.Hour, Slots: 32, Receives: 32},
	"send": {Spin: time.Second, Linger: time.Second, Keepalive: time.Hour, Slots: 32, Receives: 32, SetLimit: -1},
}

func BenchmarkLatency(b *testing.B) {
	for _, p := range providers() {
		for _, way := range []string{"ring", "send"} {
			for _, size := range []int{4, 256, 2048} {
				b.Run(fmt.Sprintf("%s/%s/%d", p.name, way, size), func(b *testing.B) {
					l := newLink(b, p, ways[way])
					b.ReportAllocs()
					b.ResetTimer()
					if err := l.pingPong(size, b.N); err != nil {
						b.Fatal(err)
					}
				})
			}
		}
	}
}

func BenchmarkBandwidth(b *testing.B) {
	for _, p := range providers() {
		for _, way := range []string{"ring", "send"} {
			for _, size := range []int{4, 256, 2048} {
				b.Run(fmt.Sprintf("%s/%s/%d", p.name, way, size), func(b *testing.B) {
					l := newLink(b, p, ways[way])
					b.SetBytes(int64(size))
					b.ResetTimer()
					if err := l.push(size, (b.N+pushed-1)/pushed); err != nil {
						b.Fatal(err)
					}
				})
			}
		}
	}
}

// BenchmarkPolling is figure 20: a look at all channels of the set, none of which has a message, compared with a look
// at the completion queue (figure 3).
func BenchmarkPolling(b *testing.B) {
	for n := 1; n <= 128; n *= 2 {
		b.Run(fmt.Sprintf("channels/%d", n), func(b *testing.B) {
			e := idleSet(b, n)
			for b.Loop() {
				e.pollSetLocked()
			}
		})
	}
	for _, p := range providers() {
		b.Run("queue/"+p.name, func(b *testing.B) {
			l := newLink(b, p, ways["send"])
			e := l.end[0]
			e.poll.Lock()
			defer e.poll.Unlock()
			for b.Loop() {
				e.cq.Poll(e.out[:])
			}
		})
	}
}

// idleSet is an endpoint that polls n channels.
func idleSet(t testing.TB, n int) *Endpoint {
	t.Helper()
	d, _, _ := memDevices(t)
	e, err := newEndpoint(d, Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	for range n {
		c, err := e.NewChannel()
		if err != nil {
			t.Fatal(err)
		}
		e.set = append(e.set, c)
	}
	return e
}

// pushed is how many messages are sent until the receiver answers (section 6.3.1).
const pushed = 100

// pingPong makes n round trips. One thread does both ends: with a processor for each, and those of the device,
// figures would be of the machine's scheduling where there are two.
func (l *link) pingPong(size, n int) error {
	ctx := context.Background()
	msg, buf := make([]byte, size), make([]byte, size)
	for range n {
		for i := range 2 {
			if err := l.c[i].Send(ctx, msg); err != nil {
				return err
			}
			if _, err := l.c[1-i].Recv(ctx, buf); err != nil {
				return err
			}
		}
	}
	return nil
}

// under is how many messages push has under way.
const under = 16

// push sends n times 100 messages, each time with an answer, by one thread too.
func (l *link) push(size, n int) error {
	ctx := context.Background()
	msg, buf := make([]byte, size), make([]byte, max(size, 4))
	for range n {
		for left := pushed; left > 0; left -= under {
			for range min(left, under) {
				if err := l.c[0].Send(ctx, msg); err != nil {
					return err
				}
			}
			for range min(left, under) {
				if _, err := l.c[1].Recv(ctx, buf); err != nil {
					return err
				}
			}
		}
		if err := l.c[1].Send(ctx, buf[:4]); err != nil {
			return err
		}
		if _, err := l.c[0].Recv(ctx, buf); err != nil {
			return err
		}
	}
	return nil
}

// TestFigures prints the figures, ring and send/receive by turns.
func TestFigures(t *testing.T) {
	if !*figures {
		t.Skip("measures: -figures")
	}
	for _, p := range providers() {
		times := *figureTimes
		if p.name == "mem" || *figureOn != "" && *figureOn != p.name {
			continue
		}
		l := pair{newLink(t, p, ways["ring"]), newLink(t, p, ways["send"])}
		fmt.Printf("\nFigure 11, %s: latency of a message, one way, us (%d rounds of %d)\n", p.name, *figureRounds, times)
		title("ring", "send/receive")
		for _, size := range []int{4, 16, 64, 256, 1024, 2048} {
			row(t, l, size, 1, func(l *link) (float64, error) {
				began := time.Now()
				err := l.pingPong(size, times)
				return time.Since(began).Seconds() * 1e6 / float64(2*times), err
			})
		}
		fmt.Printf("\nFigures 12 and 13, %s: bandwidth, 100 messages and an answer, MB/s (%d rounds)\n", p.name,
			*figureRounds)
		title("ring", "send/receive")
		for _, size := range []int{4, 16, 64, 256, 1024, 2048} {
			n := max(times/pushed, 1)
			row(t, l, size, -1, func(l *link) (float64, error) {
				began := time.Now()
				err := l.push(size, n)
				return float64(size*n*pushed) / 1e6 / time.Since(began).Seconds(), err
			})
		}
		fmt.Printf("ring: %+v\nsend/receive: %+v\n", countsOf(l[0].c[0]), countsOf(l[1].c[0]))
		fmt.Printf("\nFigure 3, %s: a look at the completion queue %.3f us\n", p.name, queueTime(l[1].end[0]))
	}
	fmt.Printf("\nFigure 20: polling time of ring channels, us\n")
	for n := 1; n <= 128; n *= 2 {
		e := idleSet(t, n)
		fmt.Printf("%8d %12.3f\n", n, pollingTime(e))
	}
}

// pair is the two links that are compared.
type pair [2]*link

func title(first, second string) {
	fmt.Printf("%8s %25s %25s %20s\n", "", first, second, first+" is ahead")
	fmt.Printf("%8s %12s %12s %12s %12s %12s %7s\n", "bytes", "median", "best", "median", "best", "median", "best")
}

// row measures one size both ways, by turns, and prints how far the first is ahead. sense is 1 where less is better,
// else -1.
func row(t *testing.T, l pair, size, sense int, measure func(*link) (float64, error)) {
	t.Helper()
	var got [2][]float64
	for i := range *figureRounds {
		for k := range 2 {
			way := (i + k) % 2
			v, err := measure(l[way])
			if err != nil {
				t.Fatal(err)
			}
			got[way] = append(got[way], v)
		}
	}
	for _, v := range got {
		slices.Sort(v)
		if sense < 0 {
			slices.Reverse(v)
		}
	}
	mid := *figureRounds / 2
	ahead := func(i int) float64 {
		if sense < 0 {
			return got[0][i] / got[1][i]
		}
		return got[1][i] / got[0][i]
	}
	fmt.Printf("%8d %12.3f %12.3f %12.3f %12.3f %12.2f %7.2f\n", size, got[0][mid], got[0][0], got[1][mid], got[1][0],
		ahead(mid), ahead(0))
}

const pollingRounds = 20000

func pollingTime(e *Endpoint) float64 {
	began := time.Now()
	for range pollingRounds {
		e.pollSetLocked()
	}
	return time.Since(began).Seconds() * 1e6 / pollingRounds
}

func queueTime(e *Endpoint) float64 {
	e.poll.Lock()
	defer e.poll.Unlock()
	began := time.Now()
	for range pollingRounds {
		e.cq.Poll(e.out[:])
	}
	return time.Since(began).Seconds() * 1e6 / pollingRounds
}
