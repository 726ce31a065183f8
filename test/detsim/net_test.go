package detsim

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"
)

// TestSlowLineThatIsFastAgain: what a slow line has not carried yet is there at once when the line is fast again, and
// what is sent then does not wait for it.
func TestSlowLineThatIsFastAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1, t.TempDir(), func(string) {})
		a, b := &process{host: "a"}, &process{host: "b"}
		l, err := w.net.listen(b, "b:1")
		if err != nil {
			t.Fatal(err)
		}
		from, err := w.net.dial(context.Background(), a, "b:1")
		if err != nil {
			t.Fatal(err)
		}
		to, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		const bytes = 100_000
		w.net.setRate("a", bytes/100) // 100 s
		if _, err := from.Write(make([]byte, bytes)); err != nil {
			t.Fatal(err)
		}
		pass(time.Second)
		w.net.setRate("a", 0)
		if _, err := from.Write(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if _, err := io.ReadFull(to, make([]byte, bytes+1)); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("arrives %v after the line is fast again", took)
		}
		from.Close()
		to.Close()
		l.Close()
	})
}
