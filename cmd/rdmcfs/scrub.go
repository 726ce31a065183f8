package main

import (
	"fmt"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/exitcode"
	"github.com/rdmcfs/rdmcfs/internal/terminal"
	"github.com/rdmcfs/rdmcfs/internal/units"
)

type scrubCmd struct {
	Path string `arg:"" optional:"" help:"A file or a directory below a mount; all that the node holds if not given."`
	Rate string `help:"Most that is read a second, such as 50MiB; 0, the default: no bound." placeholder:"BYTES"`
	jsonFlag
}

// Run checks, and ends with an error if damage stays.
func (c *scrubCmd) Run(a *app) error {
	var req admin.ScrubRequest
	if c.Rate != "" {
		rate, err := units.ParseBytes(c.Rate)
		if err != nil || rate > 1<<62 {
			return withCode(exitcode.Usage, "--rate=%s: want bytes a second, such as 50MiB", c.Rate)
		}
		req.BytesPerSec = int64(rate)
	}
	if c.Path != "" {
		inside, err := a.inside(c.Path)
		if err != nil {
			return err
		}
		req.Path = inside
	}
	line := newCounter(a.err, "scrub")
	result, err := a.client.Scrub(a.ctx, req, line.show)
	line.end()
	if err != nil {
		return asTyped(c.Path, req.Path, err)
	}
	if c.JSON {
		if err := a.printJSON(result); err != nil {
			return err
		}
	} else {
		a.printScrub(result)
	}
	if left := result.Damaged - result.Mended; left > 0 {
		return withCode(exitcode.Damaged, "%s damaged: restore another version, or copy the files in again",
			countVerb(left, "content stays", "contents stay"))
	}
	return nil
}

func (a *app) printScrub(r admin.ScrubResult) {
	for _, d := range r.List {
		terminal.Println(a.out, scrubLine(d))
	}
	if more := r.Damaged - len(r.List); more > 0 {
		terminal.Printf(a.out, "and %d more\n", more)
	}
	what := "all are right"
	if r.Damaged > 0 {
		what = fmt.Sprintf("%s damaged, %d of them mended", countVerb(r.Damaged, "was", "were"), r.Mended)
	}
	terminal.Printf(a.out, "%s of %s checked: %s.\n", countText(r.Contents, "content"), units.Bytes(r.SizeBytes), what)
}

// scrubLine is a damaged content in one line.
func scrubLine(d admin.ScrubDamage) string {
	name := fmt.Sprintf("%s version %d", terminal.Escape(d.Path), d.Version)
	if d.State != "current" {
		name += " (" + d.State + ")"
	}
	extent := "damaged as a whole"
	if d.Blocks > 0 {
		extent = countText(d.Blocks, "damaged block")
	}
	if d.Mended {
		return name + ": " + extent + ", mended"
	}
	return name + ": " + extent + ", not mended: " + terminal.Escape(d.Reason)
}

// countVerb is a count with what fits one or many.
func countVerb(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
