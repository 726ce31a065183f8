package strike

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rdmcfs/rdmcfs/test/bench/links"
)

// Times of a fault run, in addition to the times that depend on the detection bound.
const (
	// wakeTimeout bounds how long a process takes to end.
	wakeTimeout = 20 * time.Second
	// slackTime is added to all bounds that depend on the size.
	slackTime = 60 * time.Second
)

// trial is a cluster whose nodes are processes, and one of them is struck while a file is replicated.
type trial struct {
	plan   Plan
	nodes  *links.Links
	victim int
	folder string // of the stores
	crew   []*process
	log    *history
	events chan event // written by the readers of the processes
	struck time.Time
	down   <-chan time.Time // when the victim is declared down; nil if it is not going to be
	result Result
	digest string          // of the last message
	held   map[int]string  // last digests by rank
	ended  map[int]bool    // processes that ended with an error
	early  []event         // deliveries that came before they were waited for: pipes have no common order
	timely context.Context // the bound of the run
}

// process is one member process.
type process struct {
	cmd    *exec.Cmd
	input  io.WriteCloser
	stderr strings.Builder
	exited chan struct{} // closed when it has ended, after its last event
	err    error         // how; set before exited is closed
}

// Run lets processes on this machine replicate files as the daemon does: one file that is not disturbed, and one in
// whose middle the plan's victim is struck; with None only files of the first kind. command is the program with the
// arguments that make it call RunMember; nodes are where the members run, nil for the loopback device. The files lie in
// a folder of os.TempDir. Run returns when all processes have ended. Its error is about the run itself; Result.Check
// reports what the sessions did wrong.
func Run(ctx context.Context, plan Plan, command []string, nodes *links.Links) (Result, error) {
	if err := plan.Check(); err != nil {
		return Result{}, fmt.Errorf("strike: %w", err)
	}
	if nodes != nil && nodes.Nodes() < plan.Members {
		return Result{}, fmt.Errorf("strike: %d members on %d nodes", plan.Members, nodes.Nodes())
	}
	victim, err := plan.victim()
	if err != nil {
		return Result{}, err
	}
	folder, err := os.MkdirTemp("", "rdmcfs-strike-")
	if err != nil {
		return Result{}, fmt.Errorf("strike: %w", err)
	}
	defer os.RemoveAll(folder)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &trial{
		folder: folder,
		plan:   plan, nodes: nodes, victim: victim, events: make(chan event, plan.Members), held: make(map[int]string),
		ended:  make(map[int]bool),
		timely: ctx,
		result: Result{Plan: plan, VictimRank: victim, Told: make(map[int]float64), Ended: make(map[int]float64)},
	}
	r.log = newHistory(r.tell)
	defer r.log.db.Close()
	defer r.end(cancel)
	if err := r.start(ctx, command); err != nil {
		return r.result, err
	}
	if err := r.run(); err != nil {
		return r.result, fmt.Errorf("strike: %w%s", err, r.lastWords())
	}
	return r.result, nil
}

// start starts the processes.
func (r *trial) start(ctx context.Context, command []string) error {
	for rank := range r.plan.Members {
		task := task{Plan: r.plan, Rank: rank, Listen: "127.0.0.1:0", Folder: filepath.Join(r.folder, strconv.Itoa(rank))}
		cmd := exec.CommandContext(ctx, command[0], command[1:]...)
		if r.nodes != nil {
			cmd = r.nodes.Command(ctx, rank, command...)
			task.Listen = r.nodes.Address(rank) + ":0"
		}
		task.Drops = r.nodes == nil && rank == r.victim && r.plan.Fault == Cut
		p, err := r.startOne(cmd, task)
		if err != nil {
			return fmt.Errorf("strike: start member %d: %w", rank, err)
		}
		r.crew = append(r.crew, p)
	}
	return nil
}

func (r *trial) startOne(cmd *exec.Cmd, task task) (*process, error) {
	p := &process{cmd: cmd, exited: make(chan struct{})}
	cmd.Stderr, cmd.WaitDelay = &p.stderr, 5*time.Second
	var err error
	if p.input, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() { // end waits for it
		defer close(p.exited)
		r.read(output)
		p.err = cmd.Wait()
	}()
	return p, json.NewEncoder(p.input).Encode(task)
}

// read hands on events until the process ends, or the run.
func (r *trial) read(output io.Reader) {
	decoder := json.NewDecoder(output)
	for {
		var e event
		if err := decoder.Decode(&e); err != nil {
			io.Copy(io.Discard, output) // let it end
			return
		}
		select {
		case r.events <- e:
		case <-r.timely.Done():
		}
	}
}

// end ends all processes and waits for them.
func (r *trial) end(cancel context.CancelFunc) {
	for _, p := range r.crew {
		p.input.Close()
	}
	if r.victim >= 0 && r.victim < len(r.crew) {
		r.crew[r.victim].cmd.Process.Signal(syscall.SIGCONT) // its end may have been kept from it
	}
	patience := time.NewTimer(wakeTimeout)
	defer patience.Stop()
	for _, p := range r.crew {
		select {
		case <-p.exited:
		case <-patience.C:
			cancel()
		case <-r.timely.Done():
		}
	}
	cancel()
	for _, p := range r.crew {
		<-p.exited
	}
}

// lastWords are what processes printed as errors.
func (r *trial) lastWords() string {
	var all strings.Builder
	for rank, p := range r.crew {
		select {
		case <-p.exited:
			if text := strings.TrimSpace(p.stderr.String()); text != "" {
				fmt.Fprintf(&all, "; rank %d: %s", rank, text)
			}
		default:
		}
	}
	return all.String()
}

// run goes through the messages.
func (r *trial) run() error {
	if err := r.begin(); err != nil {
		return fmt.Errorf("the nodes did not start: %w", err)
	}
	for message := 1; message <= r.plan.messages(); message++ {
		if message == r.plan.messages() && r.victim >= 0 {
			return r.disturbed(message)
		}
		if err := r.undisturbed(message); err != nil {
			return err
		}
	}
	return r.finish()
}

// begin makes a cluster of the processes.
func (r *trial) begin() error {
	addresses := make([]string, r.plan.Members)
	all := r.plan.survivors(-1)
	err := r.await(all, slackTime, func(e event) bool {
		if e.Event == eventListens {
			addresses[e.Rank] = e.Address
		}
		return e.Event == eventListens
	})
	if err == nil {
		err = r.log.found(r.plan.Members)
	}
	if err != nil {
		return err
	}
	r.tell(order{Order: orderBegin, Addresses: addresses})
	return r.await(all, slackTime, func(e event) bool { return e.Event == eventReady })
}

// undisturbed sends a message that nobody is struck in. A node that is left out all the same is noted.
func (r *trial) undisturbed(message int) error {
	if err := r.order(0, order{Order: orderSend, Message: message}); err != nil {
		return err
	}
	return r.awaitDelivery(message, r.still())
}

// awaitDelivery waits until the root's close has returned and the ranks have the message, except ranks that were left
// out.
func (r *trial) awaitDelivery(message int, ranks []int) error {
	published := func(e event) bool {
		if e.Event != eventPublished || e.Message != message {
			return false
		}
		r.digest, r.result.Groups = e.Digest, max(r.result.Groups, e.Groups)
		r.result.Out = append(r.result.Out, e.Out...)
		if r.victim >= 0 && message == r.plan.messages() {
			r.result.Total = e.Seconds
		} else {
			r.result.Undisturbed = append(r.result.Undisturbed, e.Seconds)
		}
		return true
	}
	if err := r.await([]int{0}, r.allowed(), published); err != nil {
		return err
	}
	ranks = slices.DeleteFunc(slices.Clone(ranks), r.isOut)
	return r.await(ranks, r.allowed(), func(e event) bool {
		if e.Event != eventDelivered || e.Message != message {
			return false
		}
		r.held[e.Rank] = e.Digest
		return true
	})
}

func (r *trial) isOut(rank int) bool {
	return slices.ContainsFunc(r.result.Out, func(l Lost) bool { return l.Rank == rank })
}

// still are the ranks that are in the session.
func (r *trial) still() []int {
	return slices.DeleteFunc(r.plan.survivors(-1), func(rank int) bool { return r.ended[rank] })
}

// allowed is how long a message may take: at 1 MB/s at the least.
func (r *trial) allowed() time.Duration {
	return slackTime + 10*r.plan.Detect + time.Duration(r.plan.Size/1e6)*time.Second
}

// disturbed sends the message in which the victim is struck.
func (r *trial) disturbed(message int) error {
	if err := r.order(0, order{Order: orderSend, Message: message}); err != nil {
		return err
	}
	if err := r.await([]int{0}, r.allowed(), func(e event) bool { return e.Event == eventReached }); err != nil {
		return fmt.Errorf("the message did not get so far: %w", err)
	}
	if err := r.strike(); err != nil {
		return err
	}
	if r.plan.Hold && (r.victim != 0 || r.plan.Fault != Kill) {
		if err := r.order(0, order{Order: orderGoOn}); err != nil {
			return err
		}
	}
	survivors := r.plan.survivors(r.victim)
	if r.victim == 0 {
		err := r.await(survivors, r.allowed(), func(e event) bool { return e.Event == eventFenced })
		return errors.Join(err, r.wake())
	}
	if err := r.awaitDelivery(message, survivors); err != nil {
		return err
	}
	if len(r.result.Out) == 0 {
		return errors.New("the message was over before the victim was struck: take a larger -size, or a lower -rate")
	}
	if err := r.wake(); err != nil {
		return err
	}
	return r.finish()
}

// strike does to the victim what the plan says.
func (r *trial) strike() error {
	r.struck = time.Now()
	r.down = time.After(downAfter)
	process := r.crew[r.victim].cmd.Process
	switch r.plan.Fault {
	case Kill:
		return process.Kill()
	case Stop:
		return stop(r.timely, process)
	}
	if r.nodes != nil {
		return r.nodes.Cut(r.timely, r.victim)
	}
	if err := r.order(r.victim, order{Order: orderCut}); err != nil {
		return err
	}
	return r.await([]int{r.victim}, r.allowed(), func(e event) bool { return e.Event == eventCut })
}

// wake makes a stopped victim go on.
func (r *trial) wake() error {
	if r.plan.Fault != Stop {
		return nil
	}
	return r.crew[r.victim].cmd.Process.Signal(syscall.SIGCONT)
}

// finish makes all live processes report once more what they hold, and compares.
func (r *trial) finish() error {
	ranks := r.still()
	if r.plan.Fault == Kill {
		ranks = slices.DeleteFunc(ranks, func(rank int) bool { return rank == r.victim })
	}
	for _, rank := range ranks {
		if err := r.order(rank, order{Order: orderFinish}); err != nil {
			return err
		}
	}
	final := make(map[int]string)
	err := r.await(ranks, slackTime, func(e event) bool {
		if e.Event == eventFinal {
			final[e.Rank] = e.Digest
		}
		return e.Event == eventFinal
	})
	if err != nil {
		return err
	}
	for _, rank := range ranks {
		has := final[rank] == r.digest
		switch {
		case rank == r.victim:
			r.result.VictimHas = has
		case has && r.held[rank] == r.digest:
			r.result.Verified = append(r.result.Verified, rank)
		}
	}
	return nil
}

// tell gives an order to all processes. A process that can't get it will not answer.
func (r *trial) tell(o order) {
	for rank := range r.crew {
		_ = r.order(rank, o)
	}
}

func (r *trial) order(rank int, o order) error {
	if err := json.NewEncoder(r.crew[rank].input).Encode(o); err != nil {
		return fmt.Errorf("rank %d: %w", rank, err)
	}
	return nil
}

// await notes events until want has been true of one of each rank, or that rank's session has ended. The root's end,
// unless it was struck, is an error.
func (r *trial) await(ranks []int, within time.Duration, want func(event) bool) error {
	timer := time.NewTimer(within)
	defer timer.Stop()
	waiting := make(map[int]bool)
	for _, rank := range ranks {
		waiting[rank] = true
	}
	r.early = slices.DeleteFunc(r.early, func(e event) bool {
		wanted := want(e)
		if wanted {
			delete(waiting, e.Rank)
		}
		return wanted
	})
	for len(waiting) > 0 {
		select {
		case e := <-r.events:
			if err := r.note(e); err != nil {
				return err
			}
			switch wanted := want(e); {
			case e.Event == eventEnded && e.Rank == 0 && r.victim != 0:
				return fmt.Errorf("the root: %s", e.Text)
			case wanted || e.Event == eventEnded:
				delete(waiting, e.Rank)
			case e.Event == eventDelivered || e.Event == eventPublished:
				r.early = append(r.early, e)
			}
		case <-r.down:
			r.down = nil
			if err := r.log.declareDown(r.victim); err != nil {
				return err
			}
		case <-timer.C:
			return fmt.Errorf("%d members said nothing more within %v", len(waiting), within)
		case <-r.timely.Done():
			return r.timely.Err()
		}
	}
	return nil
}

// note keeps what an event says of the fault, and appends to the log.
func (r *trial) note(e event) error {
	since := time.Unix(0, e.At).Sub(r.struck).Seconds()
	switch e.Event {
	case eventPropose:
		return r.log.propose(e.Rank, e.Entry, e.Call)
	case eventEnded:
		r.ended[e.Rank] = true
	case eventFenced:
		r.result.Ended[e.Rank] = since
		r.heard(e.Rank, since) // a node that had not heard of the message yet hears by the log
	case eventTold:
		r.heard(e.Rank, since)
	}
	return nil
}

// heard keeps when a survivor first heard of the fault.
func (r *trial) heard(rank int, since float64) {
	if _, before := r.result.Told[rank]; !before && !r.struck.IsZero() && rank != r.victim {
		r.result.Told[rank] = since
	}
}
