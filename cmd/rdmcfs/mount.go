package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/rdmcfs/rdmcfs/fs"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/exitcode"
	"github.com/rdmcfs/rdmcfs/internal/terminal"
)

// madePoll is how often the daemon is asked for a mount that is to come.
const madePoll = 100 * time.Millisecond

type mountCmd struct {
	Dir        string   `arg:"" help:"Directory to mount on."`
	Background bool     `short:"d" aliases:"detach" help:"Return when mounted; the daemon goes on in the background."`
	Option     []string `short:"o" sep:"none" help:"Mount options, comma separated, as of mount(8)." placeholder:"OPT,..."`
	DryRun     bool     `hidden:"" help:"Do all but the mount."`
	Source     string   `hidden:"" help:"What df and mount show as the source."`
	logFlags
	daemonFlags
}

// Run mounts with the daemon that runs, or becomes it. In the foreground it returns when the mount has ended, and
// SIGINT or SIGTERM end the mount.
func (c *mountCmd) Run(a *app) error {
	dir, err := absDir(c.Dir)
	if err != nil {
		return err
	}
	words, err := mountOptions(c.Option)
	if err != nil {
		return err
	}
	req := admin.MountRequest{Dir: dir, Source: c.Source, Flags: words.flags, Options: words.options}
	switch {
	case c.DryRun:
		return nil
	case words.remount:
		return remount(dir, words)
	}
	_, err = a.status()
	running := err == nil
	if err != nil && admin.CodeOf(err) != admin.CodeNotRunning {
		return err
	}
	if !running && !c.Background {
		return c.become(a, req)
	}
	if !running {
		if err := a.startDaemon(a.ctx, append(c.daemonFlags.words(), c.logFlags.words()...)...); err != nil {
			return err
		}
	}
	return c.ask(a, req)
}

// remount changes the flags of a mount. The daemon has no part in it.
func remount(dir string, words mountWords) error {
	for option := range words.options {
		return withCode(exitcode.Usage, "remount can't change %s: unmount %s, and mount it again with that option", option,
			dir)
	}
	err := fs.Remount(dir, words.change)
	if errors.Is(err, fs.ErrNotMounted) {
		return withCode(exitcode.NotFound, "%v", err)
	}
	return err
}

// ask makes the running daemon mount.
func (c *mountCmd) ask(a *app, req admin.MountRequest) error {
	ctx, cancel := context.WithTimeout(a.ctx, startTimeout)
	defer cancel()
	st, err := a.client.Ready(ctx)
	if err != nil {
		return err
	}
	warnNotServing(a, st)
	if err := a.awaitMade(ctx, st, req.Dir); err != nil {
		return withCode(exitcode.Timeout, "%s is not mounted, since this node still rebuilds its state: repeat the command "+
			"when 'rdmcfs status' says that it serves: %v", req.Dir, err)
	}
	if _, err := a.client.Mount(ctx, req); err != nil {
		return err
	}
	if c.Background {
		return nil
	}
	terminal.Printf(a.err, "Mounted on %s. Ctrl-C unmounts.\n", req.Dir)
	err = a.untilUnmounted(a.ctx, req.Dir)
	if a.ctx.Err() == nil {
		return err
	}
	end, cancelEnd := context.WithTimeout(context.Background(), stopTimeout)
	defer cancelEnd()
	return a.client.Unmount(end, admin.UnmountRequest{Dir: req.Dir})
}

// warnNotServing says at a mount why the node is not well: such a mount shows old state, and changes fail.
func warnNotServing(a *app, st admin.Status) {
	if st.State == "serving" {
		return
	}
	for _, warning := range st.Warnings {
		terminal.Printf(a.err, "! %s\n", warning)
	}
}

// become runs the daemon in this process until the mount ends.
func (c *mountCmd) become(a *app, req admin.MountRequest) error {
	ctx, cancel := context.WithCancel(a.ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		st, err := a.client.Ready(ctx)
		if err != nil {
			return
		}
		warnNotServing(a, st)
		if a.awaitMade(ctx, st, req.Dir) != nil {
			return
		}
		terminal.Printf(a.err, "Mounted on %s. Ctrl-C unmounts.\n", req.Dir)
		if err := a.untilUnmounted(ctx, req.Dir); err == nil {
			cancel() // nothing is left to do here
		}
	}()
	err := a.runDaemon(ctx, []admin.MountRequest{req}, c.daemonFlags, c.logFlags)
	cancel()
	<-ended
	return err
}

// awaitMade waits until a daemon that rebuilds its state has done so. The mount that it was started with comes after
// the state, and until then it makes no other.
func (a *app) awaitMade(ctx context.Context, st admin.Status, dir string) (err error) {
	tick := time.NewTicker(madePoll)
	defer tick.Stop()
	for st.State == "rebuilding" && !slices.ContainsFunc(st.Mounts, func(m admin.Mount) bool { return m.Dir == dir }) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		if st, err = a.client.Ready(ctx); err != nil {
			return err
		}
	}
	return nil
}

// untilUnmounted waits for the end of a mount that was there. A mount that the daemon does not know any more has ended
// already.
func (a *app) untilUnmounted(ctx context.Context, dir string) error {
	err := a.client.MountWait(ctx, admin.MountWaitRequest{Dir: dir})
	if admin.CodeOf(err) == admin.CodeNotFound {
		return nil
	}
	return err
}

type umountCmd struct {
	Dir  string `arg:"" optional:"" help:"The mount point; all mounts of the node if not given."`
	Lazy bool   `short:"l" help:"Detach at once, although files are open."`
}

// Run asks the daemon, or removes what a dead daemon left.
func (c *umountCmd) Run(a *app) error {
	dir := ""
	if c.Dir != "" {
		var err error
		if dir, err = absDir(c.Dir); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(a.ctx, stopTimeout)
	defer cancel()
	err := a.client.Unmount(ctx, admin.UnmountRequest{Dir: dir, Lazy: c.Lazy})
	if admin.CodeOf(err) != admin.CodeNotRunning || dir == "" {
		return err
	}
	return unmountDead(dir, err)
}

// unmountDead detaches a mount whose daemon is gone.
func unmountDead(dir string, notRunning error) error {
	if !fs.IsMount(dir) {
		return errors.Join(withCode(exitcode.NotFound, "%s is no mount of rdmcfs", dir), notRunning)
	}
	if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount %s: %w", dir, err)
	}
	return nil
}
