package integration

import "time"

// stopwatch takes the time that something needs, without the times for which the machine ran nobody: a bound of
// seconds that the program promises cannot be held while it stands still.
type stopwatch struct {
	begin      time.Time
	stop, done chan struct{}
	late       time.Duration // the watcher's, until done is closed
}

// watchStep is how often the watcher wakes; what it comes later than twice that is the machine's.
const watchStep = 20 * time.Millisecond

func startWatch() *stopwatch {
	w := &stopwatch{begin: time.Now(), stop: make(chan struct{}), done: make(chan struct{})}
	go w.watch()
	return w
}

func (w *stopwatch) watch() {
	defer close(w.done)
	last := time.Now()
	for {
		timer := time.NewTimer(watchStep)
		var over bool
		select {
		case <-timer.C:
		case <-w.stop:
			timer.Stop()
			over = true
		}
		now := time.Now()
		if gap := now.Sub(last); gap > 2*watchStep {
			w.late += gap - watchStep
		}
		if last = now; over {
			return
		}
	}
}

// took ends the measurement.
func (w *stopwatch) took() time.Duration {
	took := time.Since(w.begin)
	close(w.stop)
	<-w.done
	return took - w.late
}
