package node

import (
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
)

// CrashByFile as Config.CrashAt lets the file crash-at of the data directory name the point, as soon as that file
// exists.
const CrashByFile = "file"

const crashFile = "crash-at"

// crasher ends the process at a labelled point (docs/TESTING.md), as kill -9 would. It is for tests: without
// Config.CrashAt it does nothing.
type crasher struct {
	at   string // NAME, NAME:COUNT, CrashByFile or ""
	file string
	log  *slog.Logger
	// passed is called at each point; it may be nil.
	passed func(name string)

	mu    sync.Mutex
	asked string // the point that count belongs to
	count int    // passed since asked
}

// point is called at each labelled point.
func (c *crasher) point(name string) {
	if c.passed != nil {
		c.passed(name)
	}
	if c.at == "" || !c.reached(name) {
		return
	}
	c.log.Warn("crash point", "name", name)
	if self, err := os.FindProcess(os.Getpid()); err == nil {
		self.Kill()
	}
	select {} // until the signal arrives
}

// reached counts how often the point was passed, and reports when it is time.
func (c *crasher) reached(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	asked := c.at
	if asked == CrashByFile {
		raw, err := os.ReadFile(c.file)
		if err != nil {
			return false
		}
		asked = strings.TrimSpace(string(raw))
	}
	if asked != c.asked {
		c.asked, c.count = asked, 0
	}
	want, times, _ := strings.Cut(asked, ":")
	if want != name {
		return false
	}
	c.count++
	n, err := strconv.Atoi(times)
	return err != nil || c.count >= n
}
