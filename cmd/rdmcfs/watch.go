package main

import (
	"errors"
	"time"

	"context"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
)

type watchCmd struct {
	Path     string        `arg:"" optional:"" help:"Only what lies here, below a mount."`
	Interval time.Duration `help:"Between two looks at one transfer." default:"500ms"`
	JSON     bool          `name:"json" help:"Print one JSON value per line."`
}

// Run prints events until Ctrl-C, which is its normal end.
func (c *watchCmd) Run(a *app) error {
	req := admin.WatchRequest{Interval: c.Interval}
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
