package main

import (
	"fmt"
	"strings"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/exitcode"
	"github.com/rdmcfs/rdmcfs/internal/terminal"
	"github.com/rdmcfs/rdmcfs/internal/units"
)

type fsckCmd struct {
	Path     string `arg:"" optional:"" help:"A file or a directory below a mount; everything if not given."`
	Contents bool   `help:"Also read all bytes on all nodes."`
	JSON     bool   `name:"json" help:"Print one JSON value per line: findings, then what was checked."`
}

// fsckLine is one line of fsck --json: a finding, or in the last line what was looked at.
type fsckLine struct {
	Finding *admin.FsckFinding `json:"finding,omitempty"`
	Result  *admin.FsckResult  `json:"result,omitempty"`
}

// Run checks, and ends with an error if something does not heal by itself.
func (c *fsckCmd) Run(a *app) error {
	req := admin.FsckRequest{Contents: c.Contents}
	if c.Path != "" {
		inside, err := a.inside(c.Path)
		if err != nil {
			return err
		}
		req.Path = inside
	}
	line := newCounter(a.err, "fsck")
	result, err := a.client.Fsck(a.ctx, req, line.show, func(f admin.FsckFinding) error {
		line.end()
		if c.JSON {
			return a.printJSONLine(fsckLine{Finding: &f})
		}
		terminal.Println(a.out, findingLine(f))
		return a.ctx.Err()
	})
	line.end()
	if err != nil {
		return asTyped(c.Path, req.Path, err)
	}
	if c.JSON {
		if err := a.printJSONLine(fsckLine{Result: &result}); err != nil {
			return err
		}
	} else {
		a.printFsck(result)
	}
	if result.Left > 0 {
		return withCode(exitcode.Faulty, "%s by %s: see the lines above",
			countVerb(result.Left, "finding does not heal", "findings do not heal"), itselfText(result.Left))
	}
	return nil
}

func itselfText(n int) string {
	if n == 1 {
		return "itself"
	}
	return "themselves"
}

// findingLine is a finding in one line.
func findingLine(f admin.FsckFinding) string {
	var at []string
	switch {
	case len(f.Paths) > 0:
		at = append(at, severalText(f))
	case f.Path != "":
		at = append(at, terminal.Escape(f.Path))
	}
	if f.Version > 0 {
		at = append(at, fmt.Sprintf("version %d", f.Version))
	}
	if f.Name != "" {
		at = append(at, "on "+terminal.Escape(f.Name))
	}
	if f.Count > 1 && len(f.Paths) == 0 {
		at = append(at, fmt.Sprintf("(%d)", f.Count))
	}
	text := f.Kind + ": "
	if len(at) > 0 {
		text += strings.Join(at, " ") + ": "
	}
	text += terminal.Escape(f.Text)
	if f.Heals {
		text += " (heals by itself)"
	}
	return text
}

// severalText names some of several files.
func severalText(f admin.FsckFinding) string {
	names := make([]string, len(f.Paths))
	for i, p := range f.Paths {
		names[i] = terminal.Escape(p)
	}
	text := fmt.Sprintf("%s of %s (%s", countText(f.Count, "content"), units.Bytes(f.SizeBytes), strings.Join(names, ", "))
	if f.Count > len(names) {
		text += ", ..."
	}
	return text + ")"
}

func (a *app) printFsck(r admin.FsckResult) {
	checked := 0
	for _, n := range r.Nodes {
		if n.Checked {
			checked++
		}
		if n.UnneededCount > 0 {
			terminal.Printf(a.out, "%s has %s of %s that nothing needs; they are deleted by and by.\n",
				terminal.Escape(n.Name), countText(n.UnneededCount, "content"), units.Bytes(n.UnneededBytes))
		}
	}
	what := "nothing is wrong"
	switch {
	case r.Left > 0:
		what = fmt.Sprintf("%s, %s by %s", countText(r.Findings, "finding"), countVerb(r.Left,
			"of them does not heal", "of them do not heal"), itselfText(r.Left))
	case r.Findings > 0:
		what = countText(r.Findings, "finding") + ", all of which heal by themselves"
	}
	terminal.Printf(a.out, "%s and %s of %s checked on %d of %s, at log index %d: %s.\n",
		countText(int(r.Inodes), "inode"), countText(int(r.Contents), "content"), units.Bytes(r.SizeBytes), checked,
		countText(len(r.Nodes), "node"), r.Index, what)
}
