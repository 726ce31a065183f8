package fs

import (
	"errors"
	"fmt"
	"time"
)

// drain waits until no publish is under way.
func (o *openFiles) drain() {
	for _, r := range o.running() {
		<-r.done
	}
}

func (o *openFiles) running() []*round {
	var rounds []*round
	for _, l := range o.allLive() {
		l.mu.Lock()
		if r := l.rounds.last(); r != nil {
			rounds = append(rounds, r)
		}
		l.mu.Unlock()
	}
	return rounds
}

func (o *openFiles) allLive() []*live {
	o.nodes.mu.Lock()
	defer o.nodes.mu.Unlock()
	var all []*live
	for _, n := range o.nodes.byID {
		if n.live != nil && !n.live.users.ended {
			all = append(all, n.live)
		}
	}
	return all
}

// keepAll ends what the kernel has left open: nobody will close it any more. Staged bytes that were not published
// are kept.
func (o *openFiles) keepAll() {
	for _, l := range o.allLive() {
		<-l.ready
		o.nodes.mu.Lock()
		ended, attrs := l.users.ended, l.attrsLeftLocked()
		l.users.ended = true
		o.nodes.mu.Unlock()
		if ended {
			continue
		}
		o.keepUnpublished(l)
		if attrs {
			_ = o.publisher.publishLeft(o.life.late, l) // it is logged
		}
		o.endLive(l)
	}
	for _, v := range o.allReading() {
		o.closeVersion(v)
	}
}

// keepUnpublished marks a live file that holds unpublished changes.
func (o *openFiles) keepUnpublished(l *live) {
	if l.stage == nil || l.isTmp() {
		return
	}
	c, err := l.changes()
	c.end(l.current, false)
	if err == nil && !c.any {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.kept == "" {
		l.kept = "the file system was unmounted while it was open"
	}
}

func (o *openFiles) allReading() []*version {
	o.nodes.mu.Lock()
	defer o.nodes.mu.Unlock()
	var all []*version
	for _, n := range o.nodes.byID {
		if n.reading != nil {
			all = append(all, n.reading)
			n.reading = nil
		}
	}
	return all
}

// abortWait is how long the kernel may take to end a connection that was cut.
const abortWait = 5 * time.Second

// disconnect waits until the kernel has let go of the file system, and cuts it off if something still holds it.
func (m *Mount) disconnect() error {
	select {
	case <-m.done:
		return nil
	default:
	}
	err := m.kernel.Abort()
	timer := time.NewTimer(abortWait)
	defer timer.Stop()
	select {
	case <-m.done:
		return nil
	case <-timer.C:
		return errors.Join(fmt.Errorf("fs: unmount %s: it is still mounted in another mount namespace", m.dir), err)
	}
}

// fineTimes reports whether each change of a staged file gives a ctime that differs from the last one that was looked
// at (multigrain time stamps, Linux 6.13 and later). Coarse time stamps stay equal for milliseconds.
func fineTimes(staging Staging) bool {
	s, err := staging.Create(StageInfo{Path: "time stamps"})
	if err != nil {
		return false
	}
	defer s.Drop()
	const tries = 8
	last := int64(0)
	for range tries {
		if _, err := s.WriteAt([]byte{1}, 0); err != nil {
			return false
		}
		st, err := s.Stat()
		if err != nil || st.Ctime == last {
			return false
		}
		last = st.Ctime
	}
	return true
}
