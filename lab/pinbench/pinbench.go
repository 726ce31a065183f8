package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/internal/tools/bench"
	"github.com/rdmcfs/rdmcfs/lab/pin"
	"github.com/rdmcfs/rdmcfs/lab/uring"
)

// PinPlan says what of the registration strategies is measured.
type PinPlan struct {
	Strategies []pin.Strategy
	Sizes      []uint64 // bytes of a message, each buffer used once
	ReuseSize  uint64   // bytes of a message, each buffer used Reuses times
	Reuses     []int
	Rounds     int
	Rate       uint64 // bytes a second that the socket is paced to; 0 leaves it alone
	Link       pin.LinkConfig
}

// PinCase is one point of a curve.
type PinCase struct {
	Rate     uint64 `json:"paced_to_bytes_per_second"` // 0: not paced
	Strategy string `json:"strategy"`
	Size     uint64 `json:"message_bytes"`
	Reuse    int    `json:"uses_of_a_buffer"`
}

// PinResult is what was measured of a point.
type PinResult struct {
	PinCase
	// Seconds are, by round, the time of all uses of one buffer, each until the receiver had the message.
	Seconds []float64 `json:"seconds"`
	// GivingUp is the median time that it took the sender to give the buffer up afterwards: to deregister what was
	// kept, and unmap.
	GivingUp float64 `json:"giving_up_seconds"`
	// BytesPerSec is the rate of the median round.
	BytesPerSec float64 `json:"bytes_per_second"`
	// Registering is the time that each end spent in registering and deregistering, for a message, sender first.
	Registering [2]float64 `json:"registering_seconds"`
}

// pinRateMin is the least rate: below it a run would not end.
const pinRateMin = 1e6

// Memory is how many bytes of messages the two processes hold together: the source, what the receiver compares with,
// and what it gets.
func (p *PinPlan) Memory() uint64 { return 3 * p.largest() }

// Check refuses what makes no sense, with bench.ErrUsage.
func (p *PinPlan) Check() error {
	if p.Rounds < 1 || p.Rounds > 10000 || len(p.Strategies) == 0 {
		return bad("%d rounds of %d strategies: give 1 to 10000 rounds of one or more", p.Rounds, len(p.Strategies))
	}
	for i, s := range p.Strategies {
		if slices.Contains(p.Strategies[:i], s) {
			return bad("strategy %v is there twice", s)
		}
	}
	if len(p.cases()) == 0 {
		return bad("no sizes and no reuse: there is nothing to measure")
	}
	if p.Rate > 0 && p.Rate < pinRateMin {
		return bad("%d bytes a second: give 1MB or more, or 0 for no pacing", p.Rate)
	}
	if err := p.Link.Check(); err != nil {
		return bad("%v", err)
	}
	for _, c := range p.cases() {
		if c.Size == 0 || c.Size > 1<<30 || c.Reuse < 1 || c.Reuse > 10000 {
			return bad("messages of %d bytes, buffers used %d times: give 1 byte to 1 GiB, 1 to 10000 times", c.Size, c.Reuse)
		}
	}
	return nil
}

// cases are the points in the order of their measurement, strategies in turn.
func (p *PinPlan) cases() (out []PinCase) {
	for _, size := range p.Sizes {
		for _, s := range p.Strategies {
			out = append(out, PinCase{p.Rate, s.String(), size, 1})
		}
	}
	for _, n := range p.Reuses {
		for _, s := range p.Strategies {
			out = append(out, PinCase{p.Rate, s.String(), p.ReuseSize, n})
		}
	}
	return out
}

// rounds gives the rounds in their order: the strategies of a point take turns. The first round of each is not counted.
func (p *PinPlan) rounds(do func(i int, c PinCase, s pin.Strategy, counted bool) error) error {
	cases := p.cases()
	for first := 0; first < len(cases); first += len(p.Strategies) {
		for round := range p.Rounds + 1 {
			for k, s := range p.Strategies {
				if err := do(first+k, cases[first+k], s, round > 0); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (p *PinPlan) largest() (n uint64) {
	for _, c := range p.cases() {
		n = max(n, c.Size)
	}
	return n
}

// pinTask is what the receiving process reads, and pinHello its answer.
type pinTask struct {
	Plan    PinPlan
	Address []byte
}

type pinHello struct{ Address []byte }

// pinReport is what the receiving process says in the end: seconds spent in registering by case.
type pinReport struct{ Registering []float64 }

// pinEnd is one process's device and link. It belongs to the thread that made it.
type pinEnd struct {
	dev  *uring.Device
	dom  *pin.Domain
	link *pin.Link
}

func newPinEnd(p *PinPlan) (*pinEnd, error) {
	dev, err := uring.New(uring.Config{PacingBytesPerSec: p.Rate})
	if err != nil {
		return nil, err
	}
	e := &pinEnd{dev: dev, dom: pin.NewDomain(dev, pin.Config{})}
	if e.link, err = pin.NewLink(e.dom, p.Link); err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	return e, nil
}

func (e *pinEnd) close() error { return errors.Join(e.link.Close(), e.dev.Close()) }

// registering is the time spent so far.
func (e *pinEnd) registering() float64 {
	s := e.dev.Spent()
	return (s.Registering + s.Deregistering).Seconds()
}

// onThread runs do on a thread of its own.
func onThread(do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		done <- do()
	}()
	return <-done
}

// Pin measures a plan between this process and one that it starts by command, which calls RunPinMember.
func Pin(ctx context.Context, p PinPlan, command []string) (results []PinResult, err error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.WaitDelay = 5 * time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("bench: start the receiver: %w", err)
	}
	err = onThread(func() (err error) {
		results, err = pinSender(ctx, p, in, json.NewDecoder(out))
		return err
	})
	in.Close()
	if err != nil {
		cancel()
	}
	if waitErr := cmd.Wait(); waitErr != nil {
		err = pinCause(err, &receiverError{text: strings.TrimSpace(stderr.String()), code: cmd.ProcessState.ExitCode(),
			err: waitErr})
	}
	return results, err
}

// bad is an error that matches bench.ErrUsage.
func bad(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{bench.ErrUsage}, args...)...)
}

// receiverError is the receiving process's end, with the last thing it said. Its exit code is negative if it was
// killed.
type receiverError struct {
	text string
	code int
	err  error
}

func (e *receiverError) Error() string {
	if e.text != "" {
		return "receiver: " + e.text
	}
	return fmt.Sprintf("receiver: %v", e.err)
}

func (e *receiverError) Unwrap() error { return e.err }

// pinCause is why both ends ended: what they said, unless the receiver was only killed because of the sender.
func pinCause(sender error, receiver *receiverError) error {
	if sender != nil && receiver.code < 0 {
		return sender
	}
	return errors.Join(receiver, sender)
}

func pinSender(ctx context.Context, p PinPlan, in io.Writer, out *json.Decoder) ([]PinResult, error) {
	e, err := newPinEnd(&p)
	if err != nil {
		return nil, err
	}
	defer e.close()
	if err := json.NewEncoder(in).Encode(pinTask{p, e.link.Address()}); err != nil {
		return nil, err
	}
	var hello pinHello
	if err := out.Decode(&hello); err != nil {
		return nil, fmt.Errorf("bench: receiver's address: %w", err)
	}
	if err := e.link.Connect(ctx, hello.Address); err != nil {
		return nil, err
	}
	file, err := pinSource(p.largest())
	if err != nil {
		return nil, err
	}
	defer file.Close()
	results := make([]PinResult, len(p.cases()))
	giving := make([][]float64, len(results))
	err = p.rounds(func(i int, c PinCase, s pin.Strategy, counted bool) error {
		before := e.registering()
		took, gave, err := e.sendRound(ctx, file, c, s)
		if err != nil || !counted {
			return err
		}
		r := &results[i]
		r.PinCase = c
		r.Seconds, giving[i] = append(r.Seconds, took), append(giving[i], gave)
		r.Registering[0] += (e.registering() - before) / float64(p.Rounds*c.Reuse)
		return nil
	})
	if err != nil {
		return nil, err
	}
	var report pinReport
	if err := out.Decode(&report); err != nil || len(report.Registering) != len(results) {
		return nil, fmt.Errorf("bench: receiver's report: %w", err)
	}
	for i := range results {
		r := &results[i]
		r.Registering[1] = report.Registering[i]
		r.GivingUp = bench.Median(giving[i])
		r.BytesPerSec = float64(r.Size) * float64(r.Reuse) / bench.Median(r.Seconds)
	}
	return results, nil
}

// pinSource is a staged file: a memfd whose pages are in memory, with bytes from a seed.
func pinSource(size uint64) (*os.File, error) {
	fd, err := unix.MemfdCreate("bench", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("bench: memfd: %w", err)
	}
	f := os.NewFile(uintptr(fd), "memfd:bench")
	rng, buf := pinBytes(), make([]byte, 1<<20)
	for at := uint64(0); at < size; at += uint64(len(buf)) {
		_, _ = rng.Read(buf)
		if _, err := f.Write(buf[:min(uint64(len(buf)), size-at)]); err != nil {
			return nil, errors.Join(fmt.Errorf("bench: fill memfd: %w", err), f.Close())
		}
	}
	return f, nil
}

// pinBytes is where both ends know the bytes from.
func pinBytes() *rand.ChaCha8 { return rand.NewChaCha8([32]byte{1}) }

// sendRound maps the file again, which leaves the page tables cold, and sends it as often as the case says.
func (e *pinEnd) sendRound(
	ctx context.Context, file *os.File, c PinCase, s pin.Strategy,
) (took, gave float64, err error) {
	m, err := pin.NewFile(e.dom, file, int64(c.Size))
	if err != nil {
		return 0, 0, err
	}
	none := func(int64) (pin.Memory, error) { return pin.Bytes(nil), nil }
	if _, err := e.link.Receive(ctx, none); err != nil { // the receiver is ready
		return 0, 0, err
	}
	began := time.Now()
	for range c.Reuse {
		if err := e.link.Send(ctx, s, m); err != nil {
			return 0, 0, err
		}
	}
	ended := time.Now()
	err = m.Unmap(ctx)
	return ended.Sub(began).Seconds(), time.Since(ended).Seconds(), err
}

// RunPinMember is the receiving process.
func RunPinMember(ctx context.Context, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	input := bufio.NewReader(in)
	line, err := input.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("bench: receiver's task: %w", err)
	}
	var task pinTask
	if err := json.Unmarshal(line, &task); err != nil {
		return fmt.Errorf("bench: receiver's task: %w", err)
	}
	go func() { // ends with the process at the latest
		_, _ = io.Copy(io.Discard, input)
		cancel()
	}()
	return onThread(func() error { return pinReceiver(ctx, &task, json.NewEncoder(out)) })
}

func pinReceiver(ctx context.Context, task *pinTask, out *json.Encoder) error {
	p := &task.Plan
	e, err := newPinEnd(p)
	if err != nil {
		return err
	}
	defer e.close()
	if err := out.Encode(pinHello{e.link.Address()}); err != nil {
		return err
	}
	if err := e.link.Connect(ctx, task.Address); err != nil {
		return err
	}
	want := make([]byte, p.largest())
	_, _ = pinBytes().Read(want)
	report := pinReport{Registering: make([]float64, len(p.cases()))}
	err = p.rounds(func(i int, c PinCase, _ pin.Strategy, counted bool) error {
		before := e.registering()
		var same []byte
		if !counted {
			same = want[:c.Size]
		}
		err := e.receiveRound(ctx, c, same)
		if counted {
			report.Registering[i] += (e.registering() - before) / float64(p.Rounds*c.Reuse)
		}
		return err
	})
	if err != nil {
		return err
	}
	return out.Encode(report)
}

// receiveRound receives into anonymous memory that nobody has touched, and compares it where want is given.
func (e *pinEnd) receiveRound(ctx context.Context, c PinCase, want []byte) error {
	mem, err := unix.Mmap(-1, 0, int(c.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("bench: map %d bytes: %w", c.Size, err)
	}
	if err := e.link.Send(ctx, pin.Copy, pin.Bytes(nil)); err != nil {
		return err
	}
	for range c.Reuse {
		if _, err := e.link.Receive(ctx, func(int64) (pin.Memory, error) { return pin.Bytes(mem), nil }); err != nil {
			return err
		}
	}
	if want != nil && !bytes.Equal(mem, want) {
		return fmt.Errorf("bench: %s of %d bytes: %w", c.Strategy, c.Size, bench.ErrDiffers)
	}
	err = e.dom.Invalidate(mem)
	if err == nil {
		err = e.dom.Drain(ctx, mem)
	}
	return errors.Join(err, unix.Munmap(mem))
}
