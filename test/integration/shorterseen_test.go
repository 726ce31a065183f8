package integration

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// lookEvery is how long an onlooker waits between two looks.
const lookEvery = 5 * time.Millisecond

// onlookers read a file at other nodes than its writer's, all the time, and remember which bytes they were shown.
type onlookers struct {
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu   sync.Mutex
	seen map[[sha256.Size]byte]string // where, and how long it was
	errs []error
}

// lookOn begins to read a file at some nodes.
func lookOn(t *testing.T, nodes []*cluster.Node, name string) *onlookers {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	o := &onlookers{stop: stop, seen: map[[sha256.Size]byte]string{}}
	for _, n := range nodes {
		o.wg.Go(func() { o.look(ctx, n, name) })
	}
	t.Cleanup(o.end)
	return o
}

// look reads the file again whenever it is another one than before.
func (o *onlookers) look(ctx context.Context, n *cluster.Node, name string) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var last os.FileInfo
	for {
		if err := o.once(n, name, &last); err != nil && !errors.Is(err, os.ErrNotExist) {
			o.mu.Lock()
			o.errs = append(o.errs, fmt.Errorf("%s: %w", n.Name(), err))
			o.mu.Unlock()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// once opens the file: what that shows is one version.
func (o *onlookers) once(n *cluster.Node, name string, last *os.FileInfo) error {
	f, err := os.Open(n.Path(name))
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if was := *last; was != nil && was.Size() == st.Size() && was.ModTime().Equal(st.ModTime()) {
		return nil
	}
	sum := sha256.New()
	size, err := io.Copy(sum, f)
	if err != nil {
		return err
	}
	*last = st
	o.mu.Lock()
	defer o.mu.Unlock()
	o.seen[[sha256.Size]byte(sum.Sum(nil))] = fmt.Sprintf("%s: %d bytes (stat: %d)", n.Name(), size, st.Size())
	return nil
}

// end makes them stop, and waits for that.
func (o *onlookers) end() {
	o.stop()
	o.wg.Wait()
}

// sawOnly fails the test if any reader saw bytes that are not of a version, or if none saw the last version.
func (o *onlookers) sawOnly(t *testing.T, versions ...[]byte) {
	t.Helper()
	o.end()
	if err := errors.Join(o.errs...); err != nil {
		t.Error(err)
	}
	for i, v := range versions {
		sum := sha256.Sum256(v)
		where, shown := o.seen[sum]
		if delete(o.seen, sum); shown {
			t.Logf("version %d of %d: %s", i+1, len(versions), where)
		} else if i == len(versions)-1 {
			t.Errorf("nobody was shown the last version, of %d bytes", len(v))
		}
	}
	for _, where := range o.seen {
		t.Errorf("%s that no version ever had", where)
	}
}
