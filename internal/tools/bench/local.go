package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// childConfig is what a member process that was started here reads from its input. It ends when the input ends.
type childConfig struct {
	Plan         Plan
	Rank         int
	Room, Listen string
	HasListener  bool // of the room, as roomFD
	Wait         time.Duration
}

const (
	// roomFD is the descriptor of the room's listener at rank 0: the first of exec.Cmd.ExtraFiles.
	roomFD = 3
	// childWait bounds the start of processes of this machine.
	childWait = 60 * time.Second
	namedPort = ":7001"
)

// Local starts all members of a plan on this machine. command is the program with the arguments that make it call
// RunChild. nodes are where they run; nil for the loopback device. The processes end when it returns.
func Local(ctx context.Context, plan Plan, command []string, nodes *Links, onResult func(Result)) error {
	if _, err := plan.Cases(); err != nil {
		return err
	}
	if nodes != nil && nodes.Nodes() < plan.Members {
		return usage("%d members on %d nodes", plan.Members, nodes.Nodes())
	}
	caller := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	room, file, err := localRoom(nodes)
	if err != nil {
		return err
	}
	if file != nil {
		defer file.Close()
	}
	errs := make([]error, plan.Members)
	var wg sync.WaitGroup
	for rank := range plan.Members {
		own := childConfig{Plan: plan, Rank: rank, Room: room, Listen: "127.0.0.1:0", Wait: childWait}
		cmd := exec.CommandContext(ctx, command[0], command[1:]...)
		if nodes != nil {
			cmd = nodes.Command(ctx, rank, command...)
			own.Listen = nodes.Address(rank) + ":0"
		}
		if rank == 0 && file != nil {
			cmd.ExtraFiles, own.HasListener = []*os.File{file}, true
		}
		// theirs is stronger
		cmd.Env = append([]string{fmt.Sprintf("GOMAXPROCS=%d", max(1, runtime.NumCPU()/plan.Members))}, cmd.Environ()...)
		cmd.WaitDelay = 5 * time.Second
		wg.Go(func() {
			if errs[rank] = startChild(cmd, own, onResult); errs[rank] != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	err = firstCause(errs)
	switch {
	case err == nil || caller.Err() == nil:
		return err
	case causeGrade(err) < 3: // killed, or left by one that was
		return fmt.Errorf("bench: stopped before all was measured: %w", context.Cause(caller))
	}
	return fmt.Errorf("bench: stopped before all was measured: %w; %w", context.Cause(caller), err)
}

// localRoom is the address of the room, and on the loopback device its listener.
func localRoom(nodes *Links) (string, *os.File, error) {
	if nodes != nil {
		return nodes.Address(0) + namedPort, nil, nil
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, fmt.Errorf("bench: %w", err)
	}
	defer listener.Close()
	file, err := listener.(*net.TCPListener).File()
	return listener.Addr().String(), file, err
}

// childError is a member's end, with the last thing it said.
type childError struct {
	rank int
	text string
	code int // its exit code, -1 if it was killed
	err  error
}

func (e *childError) Error() string {
	if e.text == "" {
		return fmt.Sprintf("bench: member %d: %v", e.rank, e.err)
	}
	return fmt.Sprintf("member %d: %s", e.rank, e.text)
}

func (e *childError) Unwrap() error { return e.err }

// ExitCode is the exit code of the member process that failed first, if err comes from one that ended by itself.
func ExitCode(err error) (int, bool) {
	var child *childError
	if errors.As(err, &child) && child.code > 0 {
		return child.code, true
	}
	return 0, false
}

// firstCause is the error that says most: of a member that ended by itself for a reason other than another's end.
func firstCause(errs []error) error {
	var best error
	grade := 0
	for _, err := range errs {
		if g := causeGrade(err); g > grade {
			best, grade = err, g
		}
	}
	return best
}

func causeGrade(err error) int {
	var child *childError
	switch {
	case err == nil:
		return 0
	case errors.Is(err, context.Canceled):
		return 1 // another one's end kept it from starting
	case !errors.As(err, &child):
		return 4
	case child.code < 0:
		return 1
	case strings.Contains(child.text, ErrLeft.Error()):
		return 2
	}
	return 3
}

// startChild runs a member process to its end. It prints results as JSON, at rank 0.
func startChild(cmd *exec.Cmd, own childConfig, onResult func(Result)) error {
	var stderr strings.Builder
	cmd.Stderr = &stderr
	input, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("bench: start member %d: %w", own.Rank, err)
	}
	writeErr := json.NewEncoder(input).Encode(own)
	readErr := readResults(output, onResult)
	input.Close()
	if err := cmd.Wait(); err != nil {
		return &childError{rank: own.Rank, text: strings.TrimSpace(stderr.String()), code: cmd.ProcessState.ExitCode(),
			err: err}
	}
	return errors.Join(writeErr, readErr)
}

func readResults(r io.Reader, onResult func(Result)) error {
	decoder := json.NewDecoder(r)
	for {
		var result Result
		err := decoder.Decode(&result)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			io.Copy(io.Discard, r) // let it end
			return fmt.Errorf("bench: result: %w", err)
		}
		onResult(result)
	}
}

// RunChild is a member process that Local started: it reads its task from in, prints results as JSON to out, and ends
// early when in ends.
//
// openRDMA is as in Process.
func RunChild(ctx context.Context, in io.Reader, out io.Writer, openRDMA func() (rdma.Device, error)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	input := bufio.NewReader(in)
	line, err := input.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("bench: member's task: %w", err)
	}
	var own childConfig
	if err := json.Unmarshal(line, &own); err != nil {
		return fmt.Errorf("bench: member's task: %w", err)
	}
	go func() { // ends with the process at the latest
		io.Copy(io.Discard, input)
		cancel()
	}()
	p := Process{Plan: own.Plan, Rank: own.Rank, Room: own.Room, Listen: own.Listen, Wait: own.Wait, OpenRDMA: openRDMA}
	if own.HasListener {
		file := os.NewFile(roomFD, "room")
		if p.RoomListener, err = net.FileListener(file); err != nil {
			return fmt.Errorf("bench: room: %w", err)
		}
		file.Close()
	}
	encoder := json.NewEncoder(out)
	var printErr error
	p.OnResult = func(r Result) { printErr = errors.Join(printErr, encoder.Encode(r)) }
	return errors.Join(p.Run(ctx), printErr)
}
