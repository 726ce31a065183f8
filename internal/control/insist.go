package control

import (
	"context"
	"net"
	"time"
)

const (
	// dialAgain is how long one attempt to connect is alone before the next one begins beside it. The kernel repeats a
	// lost first packet only after 1, 3 and 7 s, so a node whose line works again would be found late.
	dialAgain = 250 * time.Millisecond
	// dialsMost is the most attempts at a time. The kernel goes on with them.
	dialsMost = 8
)

// insisting returns a dial function that starts another attempt beside one that has had no answer. The first answer
// counts, also if it is a refusal.
func insisting(dial DialFunc) DialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		d := &dials{answers: make(chan dialed, dialsMost)}
		defer d.rest(cancel)
		again := time.NewTicker(dialAgain)
		defer again.Stop()
		for {
			d.open++
			go func() {
				conn, err := dial(ctx, network, addr)
				d.answers <- dialed{conn, err}
			}()
			next := again.C
			if d.open == dialsMost {
				next = nil
			}
			select {
			case a := <-d.answers:
				d.open--
				return a.conn, a.err
			case <-next:
			}
		}
	}
}

// dials are the attempts to connect of one call.
type dials struct {
	open    int
	answers chan dialed
}

type dialed struct {
	conn net.Conn
	err  error
}

// rest ends the attempts that nobody waits for any more.
func (d *dials) rest(cancel context.CancelFunc) {
	cancel()
	for ; d.open > 0; d.open-- {
		if a := <-d.answers; a.conn != nil {
			a.conn.Close()
		}
	}
}
