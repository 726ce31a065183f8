package detsim

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	forkedFilesMax = 20
	forkedMax      = time.Minute
)

// fork is the end of a run of two nodes of which one votes: the voter is put back to an older copy of its disks, and
// goes on from there while the other node is away. Both histories have been acknowledged. When the two meet, neither
// follows the other: both say what is wrong, and each shows its own files.
func (w *world) fork() {
	stay := w.staying()
	if len(stay) != 2 || w.voters() != 1 || w.failed() {
		return
	}
	voter, other := stay[0], stay[1]
	if !w.votes(voter) {
		voter, other = other, voter
	}
	w.eachLine(func(from, to string) {
		w.net.heal(from, to)
		w.fabric.Heal(from, to)
	})
	if !w.until(settleMax, 100*time.Millisecond, func() bool { return w.unsettled() == "" }) {
		w.fail("not settled after the machines could reach each other again: %s", w.unsettled())
		return
	}
	older := voter.keep(filepath.Join(w.dir, voter.host+".fork"))
	if !w.put(other, "lost") {
		return
	}
	if _, err := other.db.Sync(); err != nil { // else it may forget, and then has the voter's history
		w.fail("%v", err)
	}
	other.kill(false, "it is away")
	voter.kill(false, "its disks are put back")
	voter.restore(older)
	voter.start()
	w.until(gatherMax, 100*time.Millisecond, voter.ready)
	files := 1 + w.intn(forkedFilesMax)
	for i := range files {
		if !w.put(voter, fmt.Sprint("new", i)) {
			return
		}
	}
	other.start()
	said := func() bool { return voter.saysOlder() && other.saysOlder() && other.ready() }
	if !w.until(forkedMax, 100*time.Millisecond, said) && !w.failed() {
		w.fail("%s was put back to an older copy and has gone on: %s says so: %t, and %s: %t", voter.host, voter.host,
			voter.saysOlder(),
			other.host, other.saysOlder())
		return
	}
	for i := range files {
		w.shows(voter, fmt.Sprint("new", i), true)
		w.shows(other, fmt.Sprint("new", i), false)
	}
	w.shows(voter, "lost", false)
	w.shows(other, "lost", true)
}

// ready reports whether programs can use the machine's mount.
func (m *machine) ready() bool { return m.p != nil && m.p.ready() }

// put makes a program on a machine write a file of its name, and reports whether that is acknowledged.
func (w *world) put(m *machine, name string) bool {
	no := syscall.ENOTCONN
	if prog := w.program(m); prog != nil {
		var f *file
		if f, no = prog.openCreate(name, syscall.O_WRONLY); no == 0 {
			no = f.write([]byte(name), 0)
			no = max(no, f.close())
		}
	}
	if no != 0 {
		w.fail("%s: %s can't be written: %v", m.host, name, no)
	}
	return no == 0
}

// shows checks that a machine shows a file that put has written, or does not.
func (w *world) shows(m *machine, name string, wanted bool) {
	got, no := w.look(m, name)
	want := state{gone: true}
	if wanted {
		want = stateOf([]byte(name))
	}
	if no != 0 || got != want {
		w.fail("%s shows %s of one of two histories as %v (%v), want %v", m.host, name, got, no, want)
	}
}

// saysOlder reports whether the machine's node says in its status that one of the two has an older copy.
func (m *machine) saysOlder() bool {
	h := m.handlers()
	if h == nil {
		return false
	}
	st, err := h.Status(context.Background())
	return err == nil && strings.Contains(strings.Join(st.Warnings, "\n"), "older copy")
}
