package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/backup"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/exitcode"
	"github.com/rdmcfs/rdmcfs/internal/terminal"
	"github.com/rdmcfs/rdmcfs/internal/units"
	"github.com/rdmcfs/rdmcfs/meta"
)

type backupCmd struct {
	File  string `arg:"" help:"The file to write."`
	Check bool   `help:"Check a backup that is there, and say what it is."`
	jsonFlag
}

// backupInfo describes a backup.
type backupInfo struct {
	File   string    `json:"file"`
	Index  uint64    `json:"index"`
	Time   time.Time `json:"time"`
	Inodes uint64    `json:"inodes"`
	Bytes  uint64    `json:"bytes"`
}

// Run writes a backup, or checks one.
func (c *backupCmd) Run(a *app) error {
	var of meta.Snapshotted
	var err error
	if c.Check {
		of, err = backup.Check(c.File)
	} else {
		of, err = backup.Save(c.File, func(w io.Writer) error { return a.client.Backup(a.ctx, w) })
	}
	if errors.Is(err, meta.ErrSnapshot) {
		return withCode(exitcode.Damaged, "%s is no whole backup: %v", c.File, err)
	}
	if err != nil {
		return err
	}
	info := backupInfo{c.File, of.Index, time.Unix(0, of.Time), of.Files, of.Bytes}
	if c.JSON {
		return a.printJSON(info)
	}
	terminal.Printf(a.out,
		"%s is a backup of %s at log index %d, of %s. Of their contents, %s, it has those up to 4 KiB.\n",
		terminal.Escape(c.File), countText(int(info.Inodes), "inode"), info.Index, info.Time.Format(time.DateTime),
		units.Bytes(int64(info.Bytes)))
	return nil
}

type restoreBackupCmd struct {
	File  string   `arg:"" help:"A file that 'rdmcfs backup' wrote."`
	Dir   string   `arg:"" help:"An empty directory below a mount."`
	Files []string `help:"A directory with copies of the files, at the same paths; may be repeated." placeholder:"DIR" sep:"none"`
	Store []string `help:"The data directory of a stopped node of the old cluster; may be repeated." placeholder:"DATA" sep:"none"`
	JSON  bool     `name:"json" help:"Print one JSON value per line: what is not restored, then what is."`
}

// restoredLine is one line of restore-backup --json.
type restoredLine struct {
	Missed *backup.Missed `json:"missed,omitempty"`
	Result *backup.Result `json:"result,omitempty"`
}

// Run restores a backup, and ends with an error if something is missing.
func (c *restoreBackupCmd) Run(a *app) error {
	if _, err := a.inside(c.Dir); err != nil {
		return err
	}
	from, err := backup.Open(c.File)
	if errors.Is(err, meta.ErrSnapshot) {
		return withCode(exitcode.Damaged, "%s is no whole backup: %v", c.File, err)
	}
	if err != nil {
		return err
	}
	line := newCounter(a.err, "restore-backup")
	cfg := backup.Config{Into: c.Dir, Files: c.Files, Policy: a.givePolicy,
		Tell: func(done, of uint64) { line.pace(admin.Progress{Step: "inodes", Count: done, Of: of}) },
		Missed: func(m backup.Missed) error {
			line.end()
			if c.JSON {
				return a.printJSONLine(restoredLine{Missed: &m})
			}
			terminal.Println(a.out, "not restored: "+m.What+" of "+terminal.Escape(m.Path)+": "+terminal.Escape(m.Why))
			return nil
		}}
	for _, data := range c.Store {
		cfg.Stores = append(cfg.Stores, filepath.Join(data, "content"))
	}
	result, err := from.Restore(a.ctx, cfg)
	line.end()
	if err = errors.Join(err, from.Close()); errors.Is(err, backup.ErrNotEmpty) {
		return withCode(exitcode.Usage, "%s: %w", c.Dir, backup.ErrNotEmpty)
	}
	if err != nil {
		return fmt.Errorf("%w; what is restored so far stays: remove it, and run the command again", err)
	}
	if c.JSON {
		err = a.printJSONLine(restoredLine{Result: &result})
	} else {
		a.printRestored(result)
	}
	if err == nil && result.Missed > 0 {
		return withCode(exitcode.Incomplete, "%s not restored: see the lines above",
			countVerb(result.Missed, "thing was", "things were"))
	}
	return err
}

func (a *app) printRestored(r backup.Result) {
	terminal.Printf(a.out, "restored: %d files of %s, %d directories, %d links and others.\n", r.Files,
		units.Bytes(r.Bytes), r.Directories, r.Others)
	if r.Versions > 0 {
		terminal.Printf(a.out, "%s listed that the old cluster kept: only the last version of a file is restored.\n",
			countVerb(r.Versions, "version is", "versions are"))
	}
}

// givePolicy gives a directory below a mount a policy.
func (a *app) givePolicy(dir string, p meta.Policy) error {
	inside, err := a.inside(dir)
	if err != nil {
		return err
	}
	words := policyWords(p)
	_, err = a.client.Policy(a.ctx, admin.PolicyRequest{Path: inside, Set: &words})
	return err
}
