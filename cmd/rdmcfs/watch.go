package main

import (
	"errors"
	"time"

	"context"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/exitcode"
)

type watchCmd struct {
	Path     string        `arg:"" optional:"" help:"Only what lies here, below a mount."`
	Interval time.Duration `help:"Between two looks at one transfer." default:"500ms"`
	Changes  bool          `help:"Print names and files that change instead, on whatever node, once they show here."`
	After    *uint64       `help:"Go on with --changes after this position." placeholder:"POSITION"`
	JSON     bool          `name:"json" help:"Print one JSON value per line."`
}

// Run prints events until Ctrl-C, which is its normal end.
func (c *watchCmd) Run(a *app) error {
	if c.After != nil && !c.Changes {
		return withCode(exitcode.Usage, "--after needs --changes")
	}
	req := admin.WatchRequest{Interval: c.Interval, Changes: c.Changes, After: c.After}
	if c.Path != "" {
		var err error
		if req.Path, err = a.inside(c.Path); err != nil {
			return err
		}
	}
	bars := newProgress(a.out)
	err := a.client.Watch(a.ctx, req, func(ev admin.Event) error {
		if c.JSON {
			return a.printJSONLine(ev)
		}
		bars.event(ev)
		return nil
	})
	if errors.Is(err, context.Canceled) && a.ctx.Err() != nil {
		return nil
	}
	return err
}
