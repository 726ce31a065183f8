package demo

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
)

const (
	progressInterval = 250 * time.Millisecond
	barWidth         = 30
)

// show copies the file in on the first node and reads it back on all.
func (d *demo) show(ctx context.Context) error {
	file := d.opts.File
	if file == "" {
		file = filepath.Join(d.dir, "random.img")
		d.say("Making up %d MiB of random bytes\n", d.opts.Size>>20)
		if err := madeUp(file, d.opts.Size); err != nil {
			return err
		}
	}
	want, size, err := digest(ctx, file)
	if err != nil {
		return err
	}
	name := filepath.Base(file)
	d.say("\n$ cp %s %s/\n", file, d.nodes[0].mount)
	start := time.Now()
	if err := d.copyIn(ctx, file); err != nil {
		return err
	}
	took := time.Since(start)
	if err := d.sayHolders(ctx, name, size, took); err != nil {
		return err
	}
	return d.compare(ctx, name, want)
}

// sayHolders explains what the exit of cp means: which nodes hold the file now, and which are still owed it.
func (d *demo) sayHolders(ctx context.Context, name string, size int64, took time.Duration) error {
	where, err := d.nodes[0].client().Where(ctx, admin.WhereRequest{Path: "/" + name})
	if err != nil {
		return fmt.Errorf("demo: who holds %s: %w", name, err)
	}
	holding := 0
	for _, h := range where.Holders {
		if h.Holds {
			holding++
			continue
		}
		d.say("  %s is owed the file (%s); it gets it in the background\n", h.Name, h.Reason)
	}
	d.say("cp exited 0 after %.2f s (%.0f MB/s): %d of %d nodes hold the file, verified and durable\n\n",
		took.Seconds(), float64(size)/1e6/took.Seconds(), holding, len(where.Holders))
	return nil
}

func (d *demo) compare(ctx context.Context, name, want string) error {
	differ := false
	d.say("%s  the source\n", want)
	for _, n := range d.nodes {
		path := filepath.Join(n.mount, name)
		got, _, err := digest(ctx, path)
		if err != nil {
			return err
		}
		d.say("%s  %s\n", got, path)
		differ = differ || got != want
	}
	if differ {
		return ErrDiffers
	}
	d.say("All %d nodes show the same bytes.\n", len(d.nodes))
	return nil
}

// copyIn runs cp and shows the progress of each node while it runs.
func (d *demo) copyIn(ctx context.Context, file string) error {
	cmd := exec.CommandContext(ctx, "cp", file, d.nodes[0].mount+"/")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("demo: cp: %w", err)
	}
	watching, stop := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		d.watch(watching)
	}()
	err := cmd.Wait()
	stop()
	<-watched
	if err != nil {
		return fmt.Errorf("demo: cp: %w: %s", err, stderr.String())
	}
	return nil
}

// watch prints a line per node and step until ctx ends.
func (d *demo) watch(ctx context.Context) {
	client := d.nodes[0].client()
	client.Watch(ctx, admin.WatchRequest{Interval: progressInterval}, func(ev admin.Event) error {
		if ev.Transfer != nil && len(ev.Transfer.Members) > 0 {
			d.progress(ev.Transfer)
		}
		return nil
	})
}

func (d *demo) progress(t *admin.Transfer) {
	for _, m := range t.Members {
		part := 1.0
		if t.SizeBytes > 0 {
			part = min(1, float64(m.Bytes)/float64(t.SizeBytes))
		}
		full := int(part * barWidth)
		d.say("  %-8s [%s%s] %3.0f%%  %6.1f MB/s  %s\n", m.Name, strings.Repeat("#", full),
			strings.Repeat(".", barWidth-full),
			part*100, float64(m.BytesPerSec)/1e6, m.State)
	}
	d.say("\n")
}

func digest(ctx context.Context, path string) (string, int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", 0, fmt.Errorf("demo: %w", err)
	}
	defer f.Close()
	stop := context.AfterFunc(ctx, func() { f.Close() })
	defer stop()
	h := sha256.New()
	n, err := io.Copy(h, f)
	if err != nil {
		return "", 0, fmt.Errorf("demo: read %s: %w", path, err)
	}
	return fmt.Sprintf("%x", h.Sum(nil)), n, nil
}
