package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
)

// errFault is matched by what goes wrong with the member processes of Fault.
var errFault = errors.New("bench: fault run")

// Times of a fault run, beside those that depend on the detection bound.
const (
	// wakeTimeout bounds how long a victim that goes on, or is cut off, takes to end.
	wakeTimeout = 20 * time.Second
	// slackTime is added to all bounds that depend on the size.
	slackTime = 60 * time.Second
)

// faultRun is a session whose members are processes, and one of them is struck.
type faultRun struct {
	plan   FaultPlan
	nodes  *Links
	victim int
	crew   []*faultProcess
	events chan faultEvent // written by the readers of the processes
	struck time.Time
	result FaultResult
	digest string          // of the last message
	held   map[int]string  // last digests by rank
	ended  map[int]bool    // processes whose session ended with an error
	early  []faultEvent    // deliveries that came before they were waited for: pipes have no common order
	timely context.Context // the bound of the run
}

// faultProcess is one member process.
type faultProcess struct {
	cmd    *exec.Cmd
	input  io.WriteCloser
	stderr strings.Builder
	exited chan struct{} // closed when it has ended, after its last event
	err    error         // how; set before exited is closed
}

// Fault runs a session of processes on this machine in which the plan's victim is struck in mid-message, after one
// message that is not disturbed, or with FaultNone only such. command is the program with the arguments that make it
// call RunFaultMember; nodes are where the members run, nil for the loopback device. It returns when all processes
// have ended. An error is of the run; what the session did wrong is FaultResult.Check's.
func Fault(ctx context.Context, plan FaultPlan, command []string, nodes *Links) (FaultResult, error) {
	if err := plan.Check(); err != nil {
		return FaultResult{}, err
	}
	if nodes != nil && nodes.Nodes() < plan.Members {
		return FaultResult{}, usage("%d members on %d nodes", plan.Members, nodes.Nodes())
	}
	victim, err := plan.victim()
	if err != nil {
		return FaultResult{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &faultRun{
		plan: plan, nodes: nodes, victim: victim, events: make(chan faultEvent, plan.Members), held: make(map[int]string), ended: make(map[int]bool),
		timely: ctx,
		result: FaultResult{FaultPlan: plan, VictimRank: victim, Told: make(map[int]float64), Ended: make(map[int]float64)},
	}
	defer r.end(cancel)
	if err := r.start(ctx, command); err != nil {
		return r.result, err
	}
	if err := r.run(); err != nil {
		return r.result, fmt.Errorf("%w: %w%s", errFault, err, r.lastWords())
	}
	return r.result, nil
}

// start starts the processes.
func (r *faultRun) start(ctx context.Context, command []string) error {
	room, file, err := localRoom(r.nodes)
	if err != nil {
		return err
	}
	if file != nil {
		defer file.Close()
	}
	for rank := range r.plan.Members {
		task := faultTask{Plan: r.plan, Rank: rank, Room: room, Listen: "127.0.0.1:0"}
		cmd := exec.CommandContext(ctx, command[0], command[1:]...)
		if r.nodes != nil {
			cmd = r.nodes.Command(ctx, rank, command...)
			task.Listen = r.nodes.Address(rank) + ":0"
		}
		if rank == 0 && file != nil {
			cmd.ExtraFiles, task.HasListener = []*os.File{file}, true
		}
		task.Drops = r.nodes == nil && rank == r.victim && r.plan.Fault == FaultCut
		p, err := r.startOne(cmd, task)
		if err != nil {
			return fmt.Errorf("bench: start member %d: %w", rank, err)
		}
		r.crew = append(r.crew, p)
	}
	return nil
}

func (r *faultRun) startOne(cmd *exec.Cmd, task faultTask) (*faultProcess, error) {
	p := &faultProcess{cmd: cmd, exited: make(chan struct{})}
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
func (r *faultRun) read(output io.Reader) {
	decoder := json.NewDecoder(output)
	for {
		var e faultEvent
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
func (r *faultRun) end(cancel context.CancelFunc) {
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
func (r *faultRun) lastWords() string {
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
func (r *faultRun) run() error {
	all := r.plan.survivors(-1)
	if err := r.await(all, slackTime, func(e faultEvent) bool { return e.Event == eventReady }); err != nil {
		return fmt.Errorf("the session did not begin: %w", err)
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

// undisturbed sends a message that nobody is struck in. A member that is put out all the same is noted.
func (r *faultRun) undisturbed(message int) error {
	if err := r.order(0, orderSend); err != nil {
		return err
	}
	return r.await(r.still(), r.allowed(), r.delivered(message))
}

// still are the ranks that are in the session.
func (r *faultRun) still() []int {
	return slices.DeleteFunc(r.plan.survivors(-1), func(rank int) bool { return r.ended[rank] })
}

// allowed is how long a message may take: at 1 MB/s at the least.
func (r *faultRun) allowed() time.Duration {
	return slackTime + 10*r.plan.Detect + time.Duration(r.plan.Size/1e6)*time.Second
}

// delivered notes a message's deliveries.
func (r *faultRun) delivered(message int) func(faultEvent) bool {
	return func(e faultEvent) bool {
		if e.Event != eventDelivered || e.Message != message {
			return false
		}
		r.held[e.Rank] = e.Digest
		if e.Delivery == nil {
			return true
		}
		r.digest = e.Digest
		r.result.Out = append(r.result.Out, e.Delivery.Out...)
		r.result.Epochs = max(r.result.Epochs, e.Delivery.Epochs)
		if r.victim >= 0 && message == r.plan.messages() {
			r.result.Total = e.Seconds
		} else {
			r.result.Undisturbed = append(r.result.Undisturbed, e.Seconds)
		}
		return true
	}
}

// disturbed sends the message in which the victim is struck.
func (r *faultRun) disturbed(message int) error {
	if err := r.order(0, orderSend); err != nil {
		return err
	}
	if err := r.await([]int{0}, r.allowed(), func(e faultEvent) bool { return e.Event == eventReached }); err != nil {
		return fmt.Errorf("the message did not get so far: %w", err)
	}
	if err := r.strike(); err != nil {
		return err
	}
	if r.plan.Hold && (r.victim != 0 || r.plan.Fault != FaultKill) {
		if err := r.order(0, orderGoOn); err != nil {
			return err
		}
	}
	if r.victim == 0 {
		err := r.await(r.plan.survivors(0), r.allowed(), func(e faultEvent) bool { return e.Event == eventEnded })
		return errors.Join(err, r.wake())
	}
	if err := r.await(r.plan.survivors(r.victim), r.allowed(), r.delivered(message)); err != nil {
		return err
	}
	if len(r.result.Out) == 0 {
		return errors.New("the message was over before the victim was struck: take larger --sizes, or strike earlier with --at")
	}
	if err := r.wake(); err != nil {
		return err
	}
	return r.finish()
}

// strike does to the victim what the plan says.
func (r *faultRun) strike() error {
	r.struck = time.Now()
	process := r.crew[r.victim].cmd.Process
	switch r.plan.Fault {
	case FaultKill:
		return process.Kill()
	case FaultStop:
		return stop(r.timely, process)
	}
	if r.nodes != nil {
		return r.nodes.Cut(r.timely, r.victim)
	}
	if err := r.order(r.victim, orderCut); err != nil {
		return err
	}
	return r.await([]int{r.victim}, r.allowed(), func(e faultEvent) bool { return e.Event == eventCut })
}

// wake has a stopped victim go on, and waits until the victim has ended.
func (r *faultRun) wake() error {
	p := r.crew[r.victim]
	if r.plan.Fault == FaultStop {
		if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
			return err
		}
	}
	timer := time.NewTimer(wakeTimeout + 6*r.plan.Detect)
	defer timer.Stop()
	for {
		select {
		case e := <-r.events:
			r.note(e)
		case <-p.exited:
			r.noteRest()
			return nil
		case <-timer.C:
			return fmt.Errorf("the victim, rank %d, does not end", r.victim)
		case <-r.timely.Done():
			return r.timely.Err()
		}
	}
}

// noteRest notes the events that are there already.
func (r *faultRun) noteRest() {
	for {
		select {
		case e := <-r.events:
			r.note(e)
		default:
			return
		}
	}
}

// finish has all members that are left tell their digest once more, and compares.
func (r *faultRun) finish() error {
	ranks := r.still()
	ranks = slices.DeleteFunc(ranks, func(rank int) bool { return rank == r.victim })
	for _, rank := range ranks[1:] { // the root last: its end is the session's
		if err := r.order(rank, orderFinish); err != nil {
			return err
		}
	}
	final := func(e faultEvent) bool {
		if e.Event == eventFinal && e.Digest != r.held[e.Rank] {
			r.held[e.Rank] = "changed since"
		}
		return e.Event == eventFinal
	}
	if err := r.await(ranks[1:], slackTime, final); err != nil {
		return err
	}
	if err := r.order(0, orderFinish); err != nil {
		return err
	}
	if err := r.await(ranks[:1], slackTime, final); err != nil {
		return err
	}
	for _, rank := range ranks {
		if r.held[rank] == r.digest {
			r.result.Verified = append(r.result.Verified, rank)
		}
	}
	return nil
}

func (r *faultRun) order(rank int, order string) error {
	if _, err := io.WriteString(r.crew[rank].input, order+"\n"); err != nil {
		return fmt.Errorf("rank %d: %w", rank, err)
	}
	return nil
}

// await notes events until want has been true of one of each rank, or that rank's session has ended. The root's end,
// unless it was struck, is an error.
func (r *faultRun) await(ranks []int, within time.Duration, want func(faultEvent) bool) error {
	timer := time.NewTimer(within)
	defer timer.Stop()
	waiting := make(map[int]bool)
	for _, rank := range ranks {
		waiting[rank] = true
	}
	r.early = slices.DeleteFunc(r.early, func(e faultEvent) bool {
		wanted := want(e)
		if wanted {
			delete(waiting, e.Rank)
		}
		return wanted
	})
	for len(waiting) > 0 {
		select {
		case e := <-r.events:
			r.note(e)
			switch wanted := want(e); {
			case e.Event == eventEnded && e.Rank == 0 && r.victim != 0:
				return fmt.Errorf("the root: %s", e.Text)
			case wanted || e.Event == eventEnded:
				delete(waiting, e.Rank)
			case e.Event == eventDelivered:
				r.early = append(r.early, e)
			}
		case <-timer.C:
			return fmt.Errorf("%d members said nothing more within %v", len(waiting), within)
		case <-r.timely.Done():
			return r.timely.Err()
		}
	}
	return nil
}

// note keeps what an event says of the fault.
func (r *faultRun) note(e faultEvent) {
	since := time.Unix(0, e.At).Sub(r.struck).Seconds()
	switch {
	case e.Event == eventEnded && e.Rank == r.victim:
		r.ended[e.Rank] = true
		r.result.VictimSaid = e.Text
	case e.Event == eventEnded:
		r.ended[e.Rank] = true
		r.result.Ended[e.Rank] = since
		r.heard(e.Rank, since)
	case e.Event == eventTold && e.Rank != r.victim:
		r.heard(e.Rank, since)
	}
}

// heard keeps when a survivor first heard of the fault.
func (r *faultRun) heard(rank int, since float64) {
	if _, before := r.result.Told[rank]; !before && !r.struck.IsZero() {
		r.result.Told[rank] = since
	}
}
