package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// revert takes back what mends a hole that was found on real nodes: several mutants at once. Whole daemons must
// notice it by themselves, within some seeds, whatever other tests do.
type revert struct {
	name    string
	mutants []string
}

// reverts are the mends that whole daemons are held against.
var reverts = []revert{
	{"close says 0 and the file is nowhere", []string{"a freed name is not reserved again",
		"an orphan of a fence is taken for delivered"}},
	{"a follower of another history goes on in silence", []string{"a follower begins without a proof",
		"an older copy goes on beside the leader of the others"}},
	{"a node is believed to hold what it lacks", []string{"store and log are not compared at the start",
		"a state that was replaced is not compared"}},
	{"a wrong clock is the cluster's time", []string{"the leader's clock is the cluster's",
		"a lone clock that jumped is believed at once",
		"an unconfirmed clock stamps entries"}},
	{"an observer stays with a voter that lags", []string{"a voter that lags is followed for ever",
		"a voter that trickles is followed for ever",
		"a voter that went silent is followed for long after failures", "a voter that campaigns is followed for ever"}},
}

// writeOverlay writes the changed files of a revert and their list into dir.
func (r *revert) writeOverlay(root, dir string) (string, error) {
	texts := map[string]string{}
	byName := map[string]mutant{}
	for _, m := range all() {
		byName[m.name] = m
	}
	for _, name := range r.mutants {
		m, ok := byName[name]
		if !ok {
			return "", fmt.Errorf("%s: there is no mutant %q", r.name, name)
		}
		if _, ok := texts[m.file]; !ok {
			raw, err := os.ReadFile(filepath.Join(root, m.file))
			if err != nil {
				return "", err
			}
			texts[m.file] = string(raw)
		}
		text, err := m.change(texts[m.file])
		if err != nil {
			return "", err
		}
		texts[m.file] = text
	}
	replace := map[string]string{}
	for file, text := range texts {
		abs, err := filepath.Abs(filepath.Join(root, file))
		if err != nil {
			return "", err
		}
		replace[abs] = filepath.Join(dir, strconv.Itoa(len(replace))+filepath.Base(file))
		if err := os.WriteFile(replace[abs], []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	list, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(dir, overlayFile)
	return overlay, os.WriteFile(overlay, list, 0o600)
}

// seedThatFailed is in what TestSeeds of the whole daemons prints.
var seedThatFailed = regexp.MustCompile(
	`seed (\d+): exit status[^\n]*\n(?:[^\n]*\n)*?[^\n]*one_test\.go:\d+: seed \d+: ([^\n]*)`)

// tryRevert runs whole daemons with a revert, seed after seed, until one of them fails.
func (r *runner) tryRevert(ctx context.Context, back *revert, from, seeds uint64) (string, error) {
	dir, err := os.MkdirTemp(r.dir, "revert-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	overlay, err := back.writeOverlay(r.root, dir)
	if err != nil {
		return "", err
	}
	bin, err := r.compile(ctx, simulator, dir, overlay)
	if err != nil {
		return "", err
	}
	out, err := r.run(ctx, bin, simulator, "-test.run", "^TestSeeds$", "-test.timeout", "0",
		"-sim.from", fmt.Sprint(from), "-sim.seeds", fmt.Sprint(seeds))
	found := seedThatFailed.FindStringSubmatch(out)
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case err == nil:
		return "", nil
	case found == nil || strings.HasPrefix(found[2], "init: "): // another run uses the same directory
		return "", fmt.Errorf("no seed failed: %w: %s", err, lastLines(out, 4))
	}
	return fmt.Sprintf("seed %s: %s", found[1], found[2]), nil
}

// runReverts tries the reverts that match. It fails if one is not noticed.
func runReverts(ctx context.Context, o *options, r *runner) error {
	missed := 0
	for i := range reverts {
		back := &reverts[i]
		if !o.which.MatchString(back.name) {
			continue
		}
		began := time.Now()
		by, err := r.tryRevert(ctx, back, o.from, o.seeds)
		took := time.Since(began).Seconds()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			fmt.Fprintf(os.Stdout, "BROKEN    %s: %v (%.0f s)\n", back.name, err, took)
			missed++
		case by == "":
			fmt.Fprintf(os.Stdout, "SURVIVOR  %s: %d seeds (%.0f s)\n", back.name, o.seeds, took)
			missed++
		default:
			fmt.Fprintf(os.Stdout, "noticed   %s | %s (%.0f s)\n", back.name, by, took)
		}
	}
	if missed > 0 {
		return fmt.Errorf("%d reverts were not noticed", missed)
	}
	return nil
}
