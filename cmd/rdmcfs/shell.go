package main

import (
	"cmp"
	"context"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"github.com/alecthomas/kong"

	"github.com/rdmcfs/rdmcfs/internal/cmdline"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/exitcode"
)

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// Run prints the script that a shell loads.
func (c *completionCmd) Run(a *app) error {
	script, err := cmdline.Script(c.Shell)
	if err == nil {
		_, err = a.out.Write(script)
	}
	return err
}

type completeCmd struct {
	Words []string `arg:"" optional:""`
}

// Run answers a completion script.
func (c *completeCmd) Run(a *app, kctx *kong.Context) error {
	return cmdline.Complete(a.out, kctx.Model, c.Words, a.nodeWords)
}

// askAtTab is how long a user waits for names after a TAB.
const askAtTab = 2 * time.Second

// plainName is a name that is one word to a shell, and plain letters to a terminal.
var plainName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// nodeWords are the names of the nodes; none where no daemon answers, or where the user may not ask it.
func (a *app) nodeWords(data string) (words []cmdline.Word) {
	client := a.client
	if abs, err := filepath.Abs(data); err == nil && data != "" {
		client = admin.NewClient(admin.SocketPath(abs))
	}
	ctx, cancel := context.WithTimeout(a.ctx, askAtTab)
	defer cancel()
	st, err := client.Status(ctx)
	if err != nil {
		return nil
	}
	for _, n := range st.Nodes {
		if plainName.MatchString(n.Name) {
			id := strconv.FormatUint(uint64(n.ID), 10)
			words = append(words, cmdline.Word{Text: n.Name, Help: "node " + id + ", " + n.State})
		}
	}
	return words
}

type manCmd struct {
	Date string `help:"Date of the page; today if not given." placeholder:"YYYY-MM-DD"`
}

// Run prints the man page.
func (c *manCmd) Run(a *app, kctx *kong.Context) error {
	codes := cmdline.Section{Title: "EXIT STATUS"}
	for code, c := range exitcode.Codes {
		codes.Terms = append(codes.Terms, [2]string{strconv.Itoa(code) + " " + c.Name, c.Meaning})
	}
	_, err := a.out.Write(cmdline.Man(kctx.Model, cmdline.Page{
		Section: 8, Date: cmp.Or(c.Date, time.Now().Format(time.DateOnly)), Version: versionString(),
		Summary: "directory that is the same on many machines",
		Sections: []cmdline.Section{codes, {Title: "FILES", Terms: [][2]string{
			{defaultData, "The data directory. `node.json` in it is this node, `log/rdmcfs.log` the log of a daemon that " +
				"`init`, `join` or `mount -d` started."},
			{"/etc/default/rdmcfs", "Variables for the daemon that systemd starts."},
		}}},
		SeeAlso: "`mount.fuse.rdmcfs`(8), `systemctl`(1)",
	}))
	return err
}
