package rendezvous

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/mem"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

const sessionBlock = 4 << 10

var errTest = errors.New("made by the test")

// store is a message in memory; each is called for each block, if set.
type store struct {
	mu   sync.Mutex
	data []byte
	each func(i uint64) error
}

func (s *store) ReadBlock(i uint64, buf []byte) error {
	if s.each != nil {
		if err := s.each(i); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	copy(buf, s.data[i*sessionBlock:])
	return nil
}

func (s *store) WriteBlock(i uint64, buf []byte) error {
	if s.each != nil {
		if err := s.each(i); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	copy(s.data[i*sessionBlock:], buf)
	return nil
}

func randomBytes(seed uint64, size int) []byte {
	b := make([]byte, size)
	rand.NewChaCha8([32]byte{byte(seed)}).Read(b)
	return b
}

// party is a session whose members run in this process, over a fabric in memory that can fail.
type party struct {
	t        *testing.T
	fabric   *mem.Fabric
	listener *ledger
	n        int
	configs  []Config
	sessions []*Session
}

// ledger is a listener that remembers its connections.
type ledger struct {
	net.Listener
	mu    sync.Mutex
	conns []net.Conn
}

func (l *ledger) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		l.conns = append(l.conns, conn)
	}
	return conn, err
}

func (l *ledger) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, conn := range l.conns {
		conn.Close()
	}
}

func newParty(t *testing.T, n int, adapt func(*Config)) *party {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &party{t: t, n: n, listener: &ledger{Listener: inner}, sessions: make([]*Session, n),
		fabric: mem.NewFabric(mem.Config{Seed: 1, DelayMax: 200 * time.Microsecond, PeerTimeout: 200 * time.Millisecond})}
	for rank := range n {
		device := p.fabric.Device(fmt.Sprint(rank))
		t.Cleanup(func() { device.Close() })
		engine, err := rdmc.NewEngine(rdmc.EngineConfig{Device: device})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { engine.Close() })
		cfg := Config{Rank: rank, Room: inner.Addr().String(), Engine: engine, Members: n, BlockSize: sessionBlock, Detect: 4 * time.Second}
		if rank == 0 {
			cfg.Listener = p.listener
		}
		adapt(&cfg)
		p.configs = append(p.configs, cfg)
	}
	return p
}

func (p *party) open() {
	p.t.Helper()
	var all sync.WaitGroup
	for rank := range p.n {
		all.Go(func() {
			s, err := Open(testContext(p.t), p.configs[rank])
			if err != nil {
				p.t.Errorf("rank %d: %v", rank, err)
				return
			}
			p.sessions[rank] = s
			p.t.Cleanup(func() { s.Close() })
		})
	}
	all.Wait()
	if p.t.Failed() {
		p.t.FailNow()
	}
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// member takes in the next message of a size into a sink, and returns how that ended.
func (p *party) member(rank int, sink *store) error {
	message, err := p.sessions[rank].Next(testContext(p.t))
	if err != nil {
		return err
	}
	if message.Size() != uint64(len(sink.data)) {
		return fmt.Errorf("message of %d bytes", message.Size())
	}
	return message.Receive(testContext(p.t), sink)
}

// multicast sends a message from the root; sinks are by rank, errs how it ended there.
func (p *party) multicast(source *store, sinks []*store) (d Delivery, errs []error) {
	errs = make([]error, p.n)
	var all sync.WaitGroup
	for rank := 1; rank < p.n; rank++ {
		all.Go(func() { errs[rank] = p.member(rank, sinks[rank]) })
	}
	d, errs[0] = p.sessions[0].Send(testContext(p.t), uint64(len(source.data)), source)
	all.Wait()
	return d, errs
}

func (p *party) sinks(size int) []*store {
	sinks := make([]*store, p.n)
	for i := range sinks {
		sinks[i] = &store{data: make([]byte, size)}
	}
	return sinks
}

// after calls do when a store has been asked for so many blocks.
func after(blocks int, do func()) func(uint64) error {
	var mu sync.Mutex
	return func(uint64) error {
		mu.Lock()
		defer mu.Unlock()
		if blocks--; blocks == 0 {
			do()
		}
		return nil
	}
}

func checkSame(t *testing.T, want []byte, sinks []*store, ranks []int) {
	t.Helper()
	for _, rank := range ranks {
		if rank != 0 && !bytes.Equal(sinks[rank].data, want) {
			t.Errorf("rank %d has other bytes", rank)
		}
	}
}

// TestSessionOverTCP sends messages of several sizes, an empty one among them, and closes.
func TestSessionOverTCP(t *testing.T) {
	p := newParty(t, 4, func(cfg *Config) { cfg.Engine = nil })
	p.open()
	for _, size := range []int{300*sessionBlock - 5, 1, 0, sessionBlock} {
		source, sinks := &store{data: randomBytes(uint64(size), size)}, p.sinks(size)
		d, errs := p.multicast(source, sinks)
		if err := errors.Join(errs...); err != nil || !slices.Equal(d.Members, []int{0, 1, 2, 3}) || d.Epochs != 1 || len(d.Out) != 0 {
			t.Fatalf("%d bytes: %+v, %v", size, d, err)
		}
		checkSame(t, source.data, sinks, d.Members)
	}
	if _, err := p.sessions[0].Send(testContext(t), 1, nil); !errors.Is(err, rdmc.ErrInvalid) {
		t.Errorf("a message without a source: %v", err)
	}
	if err := p.sessions[0].Close(); err != nil {
		t.Error(err)
	}
	for rank := 1; rank < p.n; rank++ {
		if _, err := p.sessions[rank].Next(testContext(t)); err != io.EOF {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
	if _, err := p.sessions[0].Send(testContext(t), 1, &store{data: []byte{1}}); !errors.Is(err, ErrEnded) {
		t.Errorf("send after the end: %v", err)
	}
}

// TestSurvivorsGetTheRest kills, stops or cuts off a member in mid-message: the others get the whole message and the
// next one; the member is told that it is out, also when it wakes later, and changes nothing any more.
func TestSurvivorsGetTheRest(t *testing.T) {
	for _, kind := range []string{"kill", "stop", "cut"} {
		for _, victim := range []int{1, 4, 5} {
			t.Run(fmt.Sprint(kind, victim), func(t *testing.T) {
				t.Parallel()
				survivorsGetTheRest(t, kind, victim)
			})
		}
	}
}

func survivorsGetTheRest(t *testing.T, kind string, victim int) {
	const n, blocks = 6, 400
	var told sync.Map
	p := newParty(t, n, func(cfg *Config) {
		rank := cfg.Rank
		cfg.OnFailure = func(epoch uint32, _ error) { told.LoadOrStore(rank, epoch) }
	})
	p.open()
	source, sinks := &store{data: randomBytes(3, blocks*sessionBlock-9)}, p.sinks(blocks*sessionBlock-9)
	source.each = after(blocks/2, func() { p.strike(kind, victim) })
	d, errs := p.multicast(source, sinks)
	want := slices.DeleteFunc([]int{0, 1, 2, 3, 4, 5}, func(r int) bool { return r == victim })
	if errs[0] != nil || !slices.Equal(d.Members, want) || len(d.Out) != 1 || d.Out[0].Rank != victim || d.Epochs != 2 {
		t.Fatalf("%+v, %v", d, errs[0])
	}
	for _, rank := range want {
		if epoch, ok := told.Load(rank); errs[rank] != nil || !ok || epoch != uint32(1) {
			t.Errorf("rank %d: %v; heard of the failure of epoch %v", rank, errs[rank], epoch)
		}
	}
	// One whose device died or was cut off sees the root vanish, maybe before the root misses it.
	if err := errs[victim]; !errors.Is(err, ErrOut) && (kind == "stop" || !errors.Is(err, ErrRootLost)) {
		t.Errorf("the victim: %v", err)
	}
	checkSame(t, source.data, sinks, want)
	if kind == "stop" {
		p.fabric.Resume(fmt.Sprint(victim))
	}
	p.again(d.Members)
	checkSame(t, source.data, sinks, want)
}

func (p *party) strike(kind string, victim int) {
	name := fmt.Sprint(victim)
	switch kind {
	case "kill":
		p.fabric.Kill(name)
	case "stop":
		p.fabric.Stop(name)
	case "cut":
		for rank := range p.n {
			if rank != victim {
				p.fabric.Cut(name, fmt.Sprint(rank))
			}
		}
	}
}

// again sends another message to those that are left.
func (p *party) again(members []int) {
	p.t.Helper()
	source, sinks := &store{data: randomBytes(8, 99_999)}, p.sinks(99_999)
	var all sync.WaitGroup
	for _, rank := range members[1:] {
		all.Go(func() {
			if err := p.member(rank, sinks[rank]); err != nil {
				p.t.Errorf("rank %d, next message: %v", rank, err)
			}
		})
	}
	d, err := p.sessions[0].Send(testContext(p.t), 99_999, source)
	all.Wait()
	if err != nil || !slices.Equal(d.Members, members) {
		p.t.Errorf("next message: %+v, %v", d, err)
	}
	checkSame(p.t, source.data, sinks, members)
}

// TestFailureAfterFailure has a second member die when the root hears of the first one's death, and a third in the
// second group.
func TestFailureAfterFailure(t *testing.T) {
	const n, blocks = 7, 400
	var p *party
	p = newParty(t, n, func(cfg *Config) {
		if cfg.Rank == 0 {
			cfg.OnFailure = func(epoch uint32, _ error) {
				if epoch == 1 {
					p.strike("kill", 5)
				}
			}
		}
	})
	p.open()
	source, sinks := &store{data: randomBytes(4, blocks*sessionBlock)}, p.sinks(blocks*sessionBlock)
	first, third := after(blocks/4, func() { p.strike("kill", 2) }), after(3*blocks/4, func() { p.strike("stop", 3) })
	source.each = func(i uint64) error { return errors.Join(first(i), third(i)) }
	d, errs := p.multicast(source, sinks)
	if errs[0] != nil || !slices.Equal(d.Members, []int{0, 1, 4, 6}) || d.Epochs > 3*n {
		t.Fatalf("%+v, %v", d, errs[0])
	}
	checkSame(t, source.data, sinks, d.Members)
	for _, victim := range []int{2, 3, 5} {
		if errs[victim] == nil {
			t.Errorf("rank %d was told that all is well", victim)
		}
	}
}

// TestTwoAtOnce stops one member and cuts off another at the same moment: no more than two are left.
func TestTwoAtOnce(t *testing.T) {
	const blocks = 400
	p := newParty(t, 4, func(*Config) {})
	p.open()
	source, sinks := &store{data: randomBytes(12, blocks*sessionBlock)}, p.sinks(blocks*sessionBlock)
	source.each = after(blocks/2, func() {
		p.strike("stop", 1)
		p.strike("cut", 2)
	})
	d, errs := p.multicast(source, sinks)
	if errs[0] != nil || !slices.Equal(d.Members, []int{0, 3}) || errs[3] != nil {
		t.Fatalf("%+v, %v", d, errs)
	}
	checkSame(t, source.data, sinks, d.Members)
}

// TestRootDies has all members told within the bound. The root's own end hears of its death in two steps: a member's
// word may reach it between them, and then it is its fabric that fails the next group.
func TestRootDies(t *testing.T) {
	const n, blocks = 6, 400
	p := newParty(t, n, func(*Config) {})
	p.open()
	source, sinks := &store{data: randomBytes(5, blocks*sessionBlock)}, p.sinks(blocks*sessionBlock)
	var struck time.Time
	source.each = after(blocks/2, func() {
		struck = time.Now()
		p.fabric.Kill("0")
		p.listener.cut()
	})
	d, errs := p.multicast(source, sinks)
	if took := time.Since(struck); took > p.configs[0].Detect+2*time.Second {
		t.Errorf("all were told after %v", took)
	}
	if !errors.Is(errs[0], ErrNobodyLeft) && !errors.Is(errs[0], rdma.ErrClosed) || len(d.Members) != 0 {
		t.Errorf("the root: %+v, %v", d, errs[0])
	}
	for rank, err := range errs[1:] {
		if !errors.Is(err, ErrRootLost) {
			t.Errorf("rank %d: %v", rank+1, err)
		}
	}
}

// TestLinkToTheRoot cuts one member off from the root alone: it says that the root is gone, and has to go.
func TestLinkToTheRoot(t *testing.T) {
	const n, blocks, victim = 5, 400, 1
	p := newParty(t, n, func(*Config) {})
	p.open()
	source, sinks := &store{data: randomBytes(6, blocks*sessionBlock)}, p.sinks(blocks*sessionBlock)
	source.each = after(blocks/2, func() { p.fabric.Cut("0", fmt.Sprint(victim)) })
	d, errs := p.multicast(source, sinks)
	if errs[0] != nil || !slices.Equal(d.Members, []int{0, 2, 3, 4}) {
		t.Fatalf("%+v, %v", d, errs[0])
	}
	checkSame(t, source.data, sinks, d.Members)
}

func TestSinkErrorCostsItsMember(t *testing.T) {
	p := newParty(t, 4, func(*Config) {})
	p.open()
	source, sinks := &store{data: randomBytes(7, 100*sessionBlock)}, p.sinks(100*sessionBlock)
	sinks[2].each = func(i uint64) error {
		if i == 50 {
			return errTest
		}
		return nil
	}
	d, errs := p.multicast(source, sinks)
	if errs[0] != nil || !slices.Equal(d.Members, []int{0, 1, 3}) || !errors.Is(errs[2], ErrOut) {
		t.Errorf("%+v, %v", d, errs)
	}
	checkSame(t, source.data, sinks, d.Members)
}

func TestSourceErrorEndsTheSession(t *testing.T) {
	p := newParty(t, 4, func(*Config) {})
	p.open()
	source := &store{data: make([]byte, 100*sessionBlock), each: func(i uint64) error {
		if i == 50 {
			return errTest
		}
		return nil
	}}
	d, errs := p.multicast(source, p.sinks(100*sessionBlock))
	if !errors.Is(errs[0], errTest) || len(d.Members) != 0 {
		t.Errorf("the root: %+v, %v", d, errs[0])
	}
	for rank, err := range errs[1:] {
		if !errors.Is(err, ErrEnded) {
			t.Errorf("rank %d: %v", rank+1, err)
		}
	}
}

// TestMemberLeaves has one member close between two messages, and one give up in the second.
func TestMemberLeaves(t *testing.T) {
	p := newParty(t, 4, func(*Config) {})
	p.open()
	if err := p.sessions[3].Close(); err != nil {
		t.Error(err)
	}
	source, sinks := &store{data: randomBytes(8, 400*sessionBlock)}, p.sinks(400*sessionBlock)
	ctx, giveUp := context.WithCancel(testContext(t))
	sinks[1].each = after(100, giveUp)
	var all sync.WaitGroup
	all.Go(func() {
		if err := p.member(2, sinks[2]); err != nil {
			t.Errorf("rank 2: %v", err)
		}
	})
	all.Go(func() {
		message, err := p.sessions[1].Next(ctx)
		if err == nil {
			err = message.Receive(ctx, sinks[1])
		}
		if !errors.Is(err, context.Canceled) {
			t.Errorf("rank 1: %v", err)
		}
	})
	d, err := p.sessions[0].Send(testContext(t), uint64(len(source.data)), source)
	all.Wait()
	if err != nil || !slices.Equal(d.Members, []int{0, 2}) {
		t.Errorf("%+v, %v", d, err)
	}
	checkSame(t, source.data, sinks, d.Members)
}

// TestReceiveWithoutASink has a member not say where a message goes: it is refused and may say it yet, and an empty
// message needs no place.
func TestReceiveWithoutASink(t *testing.T) {
	p := newParty(t, 2, func(*Config) {})
	p.open()
	source, sinks := &store{data: randomBytes(8, 3*sessionBlock)}, p.sinks(3*sessionBlock)
	var member sync.WaitGroup
	member.Go(func() {
		message, err := p.sessions[1].Next(testContext(t))
		if err != nil {
			t.Error(err)
			return
		}
		if err := message.Receive(testContext(t), nil); !errors.Is(err, rdmc.ErrInvalid) {
			t.Errorf("received into nothing: %v", err)
			return
		}
		if err := message.Receive(testContext(t), sinks[1]); err != nil {
			t.Error(err)
		}
		if message, err = p.sessions[1].Next(testContext(t)); err == nil {
			err = message.Receive(testContext(t), nil)
		}
		if err != nil {
			t.Errorf("the empty message: %v", err)
		}
	})
	for _, m := range []*store{source, {}} {
		if d, err := p.sessions[0].Send(testContext(t), uint64(len(m.data)), m); err != nil || len(d.Members) != 2 {
			t.Errorf("%+v, %v", d, err)
		}
	}
	member.Wait()
	checkSame(t, source.data, sinks, []int{1})
}

// TestReceiveTwice has a member ask for one message again, while it comes and afterwards: it is told so, and stays in
// the session.
func TestReceiveTwice(t *testing.T) {
	p := newParty(t, 2, func(*Config) {})
	p.open()
	source, sinks := &store{data: randomBytes(8, 3*sessionBlock)}, p.sinks(3*sessionBlock)
	var member sync.WaitGroup
	member.Go(func() {
		for range 2 {
			message, err := p.sessions[1].Next(testContext(t))
			if err != nil {
				t.Error(err)
				return
			}
			first := make(chan error, 1)
			go func() { first <- message.Receive(testContext(t), sinks[1]) }()
			one, other := message.Receive(testContext(t), sinks[1]), <-first
			if one == nil {
				one, other = other, one
			}
			if other != nil || !errors.Is(one, rdmc.ErrInvalid) {
				t.Errorf("received by two at once: %v, %v", one, other)
			}
			if err := message.Receive(testContext(t), sinks[1]); !errors.Is(err, rdmc.ErrInvalid) {
				t.Errorf("received again: %v", err)
			}
		}
	})
	for range 2 {
		if d, err := p.sessions[0].Send(testContext(t), uint64(len(source.data)), source); err != nil || len(d.Members) != 2 {
			t.Errorf("%+v, %v", d, err)
		}
	}
	member.Wait()
	checkSame(t, source.data, sinks, []int{1})
}

// TestAlgorithmsForTheSurvivors re-forms a hypercube, which has no schedule for three.
func TestAlgorithmsForTheSurvivors(t *testing.T) {
	p := newParty(t, 4, func(cfg *Config) { cfg.Algorithm = schedule.Hypercube })
	p.open()
	source, sinks := &store{data: randomBytes(9, 200*sessionBlock)}, p.sinks(200*sessionBlock)
	source.each = after(100, func() { p.strike("kill", 2) })
	d, errs := p.multicast(source, sinks)
	if errs[0] != nil || !slices.Equal(d.Members, []int{0, 1, 3}) {
		t.Errorf("%+v, %v", d, errs[0])
	}
	checkSame(t, source.data, sinks, d.Members)
}

// TestBlocksOfAFile sends one file into others.
func TestBlocksOfAFile(t *testing.T) {
	p := newParty(t, 3, func(*Config) {})
	p.open()
	open := func(name string, content []byte) *os.File {
		name = filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	want := randomBytes(11, 50*sessionBlock+7)
	copies := []*os.File{open("source", want), open("1", nil), open("2", nil)}
	var all sync.WaitGroup
	for rank := 1; rank < 3; rank++ {
		s := p.sessions[rank]
		all.Go(func() {
			message, err := s.Next(testContext(t))
			if err == nil {
				err = message.Receive(testContext(t), s.Blocks(copies[rank]))
			}
			if err != nil {
				t.Errorf("rank %d: %v", rank, err)
			}
		})
	}
	root := p.sessions[0]
	if _, err := root.SendFile(testContext(t), copies[0]); err != nil {
		t.Error(err)
	}
	all.Wait()
	for rank, f := range copies {
		if got, err := os.ReadFile(f.Name()); err != nil || !bytes.Equal(got, want) {
			t.Errorf("rank %d has %d bytes, %v", rank, len(got), err)
		}
	}
}

// TestGivenUpInTheMeeting has the root's application give up when a member is lost: the others hear that the session
// has ended, and are not said to have missed the meeting.
func TestGivenUpInTheMeeting(t *testing.T) {
	ctx, giveUp := context.WithCancel(testContext(t))
	p := newParty(t, 3, func(cfg *Config) {
		if cfg.Rank == 0 {
			cfg.OnFailure = func(uint32, error) { giveUp() }
		}
	})
	p.open()
	source, sink := &store{data: randomBytes(15, 100*sessionBlock)}, &store{data: make([]byte, 100*sessionBlock)}
	source.each = after(5, func() { p.strike("kill", 2) })
	var all sync.WaitGroup
	all.Go(func() {
		if err := p.member(1, sink); !errors.Is(err, ErrEnded) {
			t.Errorf("rank 1: %v", err)
		}
	})
	d, err := p.sessions[0].Send(ctx, uint64(len(source.data)), source)
	all.Wait()
	if !errors.Is(err, context.Canceled) || len(d.Out) != 1 || d.Out[0].Rank != 2 {
		t.Errorf("%+v, %v", d, err)
	}
}

// endingFile says that it is at its end together with the last bytes, as an io.ReaderAt may.
type endingFile struct{ *bytes.Reader }

func (f endingFile) ReadAt(b []byte, off int64) (int, error) {
	n, err := f.Reader.ReadAt(b, off)
	if err == nil && off+int64(n) == f.Size() {
		err = io.EOF
	}
	return n, err
}

func (endingFile) WriteAt([]byte, int64) (int, error) { return 0, errTest }

// TestBlocksToTheEnd reads the last block of a file.
func TestBlocksToTheEnd(t *testing.T) {
	want := randomBytes(17, 10)
	blocks, got := Blocks{endingFile{bytes.NewReader(want)}, 8}, make([]byte, 2)
	if err := blocks.ReadBlock(1, got); err != nil || !bytes.Equal(got, want[8:]) {
		t.Errorf("%x, %v", got, err)
	}
	if err := blocks.ReadBlock(1, make([]byte, 3)); err != io.EOF {
		t.Errorf("behind the end: %v", err)
	}
}
