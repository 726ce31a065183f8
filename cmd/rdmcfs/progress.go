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
}

func newProgress(out io.Writer) *progress {
	return &progress{out: out, tty: isTerminal(out), now: map[string]admin.Transfer{}, said: map[string]time.Time{}}
}

func isTerminal(w io.Writer) bool {
	if p, ok := w.(*printer); ok {
		w = p.w
	}
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
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
	case ev.Message != "": // ends were missed: there will be news again of what still runs
		p.erase()
		p.order = nil
		clear(p.now)
		p.line(ev.Message)
	}
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

func (p *progress) draw() {
	if !p.tty {
		return
	}
	for _, s := range p.order {
		tr := p.now[s]
		terminal.Printf(p.out, "%s, %s\n", tr.Path, units.Bytes(tr.SizeBytes))
		for _, m := range tr.Members {
			terminal.Printf(p.out, "  %s\n", memberLine(tr, m, barWidth))
		}
		p.drawn += 1 + len(tr.Members)
	}
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
	if p.Mending > 0 {
		text += fmt.Sprintf(", %s to be mended", countText(p.Mending, "content"))
	}
	if !c.tty {
		terminal.Println(c.out, text)
		return
	}
	terminal.Printf(c.out, "\r\x1b[K%s", text)
	c.drawn = true
}

// end takes the line away.
func (c *counter) end() {
	if c.drawn {
		terminal.Printf(c.out, "\r\x1b[K")
	}
}
