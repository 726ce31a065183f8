package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/terminal"
	"github.com/rdmcfs/rdmcfs/internal/units"
)

const (
	barWidth   = 24
	plainEvery = time.Second // between the lines of one transfer without a terminal

	// what is drawn over later takes one row for each line: a terminal cuts off what does not fit
	wrapOff, wrapOn = "\x1b[?7l", "\x1b[?7h"
)

// progress prints transfers as they run: on a terminal one line per member, drawn over in place; else a line per
// transfer now and then, and one at its end.
type progress struct {
	out   io.Writer
	tty   bool
	order []string // sessions, in order of appearance
	now   map[string]admin.Transfer
	said  map[string]time.Time // plain: last line of a session
	drawn int                  // lines on the terminal that the next draw goes over
	rows  func() int           // of the terminal; 0 is unknown
}

func newProgress(out io.Writer) *progress {
	return &progress{out: out, tty: isTerminal(out), now: map[string]admin.Transfer{}, said: map[string]time.Time{},
		rows: func() int { return terminalRows(out) }}
}

func isTerminal(w io.Writer) bool {
	fd, ok := descriptor(w)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	return err == nil
}

// terminalRows is how many rows a terminal has; 0 if that is not known.
func terminalRows(w io.Writer) int {
	fd, ok := descriptor(w)
	if !ok {
		return 0
	}
	size, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Row)
}

// descriptor is that of the file that is written to, if it is one.
func descriptor(w io.Writer) (fd int, ok bool) {
	if p, ok := w.(*printer); ok {
		w = p.w
	}
	if f, ok := w.(*os.File); ok {
		return int(f.Fd()), true
	}
	return 0, false
}

// event takes one event of a watch.
func (p *progress) event(ev admin.Event) {
	switch {
	case ev.Transfer != nil && ev.Kind == "transfer-end":
		p.end(*ev.Transfer)
	case ev.Transfer != nil:
		p.update(*ev.Transfer, ev.Time)
	case ev.Node != nil:
		p.line(ev.Node.Name + " is " + stateText(*ev.Node) + drainText(*ev.Node))
	case ev.Version != nil:
		p.line(fmt.Sprintf("%s: version %d, %s", ev.Version.Path, ev.Version.Version, units.Bytes(ev.Version.SizeBytes)))
	case ev.Change != nil:
		p.line(changeLine(ev))
	case ev.Kind == "position":
		p.line(fmt.Sprintf("%d position", ev.Position))
	case ev.Message != "": // ends were missed: there will be news again of what still runs
		p.erase()
		p.order = nil
		clear(p.now)
		p.line(ev.Message)
	}
}

// changeLine is a position to go on from, and what is at a path now.
func changeLine(ev admin.Event) string {
	c := ev.Change
	line := fmt.Sprintf("%d %s %s", ev.Position, c.What, c.Path)
	if c.What == "file" {
		line += fmt.Sprintf(": version %d, %s", c.Version, units.Bytes(c.SizeBytes))
	}
	return line
}

func (p *progress) update(tr admin.Transfer, at time.Time) {
	if _, known := p.now[tr.Session]; !known {
		p.order = append(p.order, tr.Session)
	}
	p.now[tr.Session] = tr
	if p.tty {
		p.erase()
		p.draw()
		return
	}
	if at.Sub(p.said[tr.Session]) >= plainEvery {
		p.said[tr.Session] = at
		terminal.Println(p.out, summaryLine(tr))
	}
}

// end prints the last state of a transfer above what still runs.
func (p *progress) end(tr admin.Transfer) {
	delete(p.now, tr.Session)
	delete(p.said, tr.Session)
	kept := p.order[:0]
	for _, s := range p.order {
		if s != tr.Session {
			kept = append(kept, s)
		}
	}
	p.order = kept
	p.line(endLine(tr))
}

// line prints text above the transfers.
func (p *progress) line(text string) {
	p.erase()
	terminal.Println(p.out, strings.TrimSpace(text))
	p.draw()
}

func (p *progress) erase() {
	if p.drawn > 0 {
		terminal.Printf(p.out, "\x1b[%dA\x1b[J", p.drawn)
		p.drawn = 0
	}
}

// draw prints what runs, one row for each line, so that the next draw knows how many it goes over.
func (p *progress) draw() {
	if !p.tty || len(p.order) == 0 {
		return
	}
	lines := p.lines()
	if most := p.rows() - 1; most > 0 && len(lines) > most { // what has left the screen can't be drawn over
		left := len(lines) - most + 1
		lines = append(lines[:most-1], fmt.Sprintf("and %d lines more", left))
	}
	var text strings.Builder
	for _, line := range lines {
		terminal.Println(&text, line)
	}
	io.WriteString(p.out, wrapOff+text.String()+wrapOn)
	p.drawn = len(lines)
}

// lines are what runs: a line for each transfer, and one for each of its members.
func (p *progress) lines() (lines []string) {
	for _, s := range p.order {
		tr := p.now[s]
		lines = append(lines, fmt.Sprintf("%s, %s", tr.Path, units.Bytes(tr.SizeBytes)))
		for _, m := range tr.Members {
			lines = append(lines, "  "+memberLine(tr, m, barWidth))
		}
	}
	return lines
}

// memberLine is one member's progress: name, bar, share, rate, time left, state.
func memberLine(tr admin.Transfer, m admin.TransferMember, width int) string {
	name := m.Name
	if name == "" {
		name = fmt.Sprintf("node %d", m.Node)
	}
	filled := share(m.Bytes, tr.SizeBytes, width)
	bar := strings.Repeat("#", filled) + strings.Repeat(".", width-filled)
	text := fmt.Sprintf("%-12s %s %3d%% %10s/s", name, bar, share(m.Bytes, tr.SizeBytes, 100), units.Bytes(m.BytesPerSec))
	if left := tr.SizeBytes - m.Bytes; left > 0 && m.BytesPerSec > 0 {
		text += fmt.Sprintf(" %5s", (time.Duration(left/m.BytesPerSec) * time.Second).String())
	}
	text += " " + m.State
	if m.Reason != "" {
		text += " (" + m.Reason + ")"
	}
	return text
}

// summaryLine is a transfer in one line: each member's share.
func summaryLine(tr admin.Transfer) string {
	parts := make([]string, len(tr.Members))
	for i, m := range tr.Members {
		parts[i] = fmt.Sprintf("%s %d%%", m.Name, share(m.Bytes, tr.SizeBytes, 100))
		if m.State == "ejected" {
			parts[i] += " " + m.State
		}
		if m.Reason != "" && tr.Outcome != "" {
			parts[i] += " (" + m.Reason + ")"
		}
		if m.Behind {
			parts[i] += ", behind"
		}
	}
	text := fmt.Sprintf("%s, %s", tr.Path, units.Bytes(tr.SizeBytes))
	if len(parts) > 0 {
		text += ": " + strings.Join(parts, ", ")
	}
	return text
}

// endLine is the last state of a transfer: its outcome, and each member's share.
func endLine(tr admin.Transfer) string {
	text := fmt.Sprintf("%s in %v", tr.Outcome, tr.Ended.Sub(tr.Started).Round(time.Millisecond))
	if tr.Reason != "" {
		text += " (" + tr.Reason + ")"
	}
	return text + ": " + summaryLine(tr)
}

// share is the whole part of n that done is of all; it is n only when all is done.
func share(done, all int64, n int) int {
	if all <= 0 || done >= all {
		return n
	}
	return max(0, int(float64(done)/float64(all)*float64(n)))
}

// counter shows how far one request is, on a line that is drawn over on a terminal; else on a new line when there is
// news.
type counter struct {
	out   io.Writer
	what  string
	tty   bool
	last  admin.Progress
	drawn bool
	next  time.Time // of the news that pace shows
}

// pace shows news that come often about once a second.
func (c *counter) pace(p admin.Progress) {
	if now := time.Now(); now.After(c.next) {
		c.next = now.Add(plainEvery)
		c.show(p)
	}
}

func newCounter(out io.Writer, what string) *counter {
	return &counter{out: out, what: what, tty: isTerminal(out)}
}

// show takes news of the progress.
func (c *counter) show(p admin.Progress) {
	if p == c.last {
		return
	}
	c.last = p
	text := fmt.Sprintf("%s: %s of %s", c.what, units.Bytes(p.Bytes), units.Bytes(p.SizeBytes))
	if p.Step != "" {
		text = c.what + ": " + terminal.Escape(p.Step)
		if p.Count > 0 {
			text += fmt.Sprintf(", %d", p.Count)
		}
		if p.Of > 0 {
			text += fmt.Sprintf(" of %d", p.Of)
		}
	}
	if p.Mending > 0 {
		text += fmt.Sprintf(", %s to be mended", countText(p.Mending, "content"))
	}
	if !c.tty {
		terminal.Println(c.out, text)
		return
	}
	io.WriteString(c.out, "\r\x1b[K"+wrapOff+terminal.Escape(text)+wrapOn)
	c.drawn = true
}

// end takes the line away.
func (c *counter) end() {
	if c.drawn {
		terminal.Printf(c.out, "\r\x1b[K")
		c.drawn = false
	}
}
