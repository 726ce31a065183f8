package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/rdmcfs/rdmcfs/test/detsim/replay"
)

// verdict is what became of a mutant. Without a killer and a complaint it survived.
type verdict struct {
	killer killer
	broken string // why the mutant could not be tried
	took   time.Duration
}

// killer is the test that failed.
type killer struct{ pkg, test string }

func (k killer) String() string { return strings.TrimPrefix(k.pkg, "./") + " " + k.test }

// Times that bound a suite and one test: a mutant may make it hang, which kills the mutant too.
const (
	suiteTime = 4 * time.Minute
	testTime  = 2 * time.Minute
)

// retries is how many tests of a suite may fail for another reason than the mutant.
const retries = 3

// runner tries mutants one after the other.
type runner struct {
	root   string            // the folder with go.mod
	dir    string            // for what is compiled
	launch []string          // goes before the name of a test binary
	last   map[string]killer // by mutant: what killed it the last time, tried first
}

// try asks the killer of the last time, then the suites, until one notices the mutant.
func (r *runner) try(ctx context.Context, m *mutant) (v verdict) {
	began := time.Now()
	defer func() { v.took = time.Since(began) }()
	dir, err := os.MkdirTemp(r.dir, "mutant-")
	if err != nil {
		return verdict{broken: err.Error()}
	}
	defer os.RemoveAll(dir)
	overlay, err := m.writeOverlay(r.root, dir)
	if err != nil {
		return verdict{broken: err.Error()}
	}
	if k, ok := r.last[m.name]; ok {
		bin, err := r.compile(ctx, k.pkg, dir, overlay)
		if err != nil {
			return verdict{broken: err.Error()}
		}
		if r.fails(ctx, bin, k) && r.passesWithout(ctx, k) {
			return verdict{killer: k}
		}
	}
	for _, pkg := range m.suites {
		bin, err := r.compile(ctx, pkg, dir, overlay)
		if err != nil {
			return verdict{broken: err.Error()}
		}
		if k, err := r.ask(ctx, bin, pkg); err != nil || k.test != "" {
			return verdict{killer: k, broken: complaint(err)}
		}
	}
	return verdict{}
}

func complaint(err error) string {
	if err != nil {
		return err.Error()
	}
	return ""
}

// ask runs the tests of a package until one fails. The test has to fail a second time, and to pass without the mutant:
// what fails on a busy machine is no killer, and the suite is run again without it.
func (r *runner) ask(ctx context.Context, bin, pkg string) (killer, error) {
	var skip []string
	for range retries {
		args := []string{"-test.timeout", suiteTime.String()}
		if skip != nil {
			args = append(args, "-test.skip", "^("+strings.Join(skip, "|")+")$")
		}
		out, err := r.run(ctx, bin, pkg, args...)
		if err == nil {
			return killer{}, nil
		}
		k := killer{pkg, culprit(out)}
		if k.test == "" {
			return killer{}, fmt.Errorf("%s: no test failed: %w: %s", pkg, err, lastLines(out, 4))
		}
		if r.fails(ctx, bin, k) && r.passesWithout(ctx, k) {
			return k, nil
		}
		skip = append(skip, k.test)
	}
	return killer{}, fmt.Errorf("%s: %s fail only now and then, or without the mutant", pkg, strings.Join(skip, ", "))
}

// fails reports whether one test fails.
func (r *runner) fails(ctx context.Context, bin string, k killer) bool {
	out, err := r.run(ctx, bin, k.pkg, "-test.timeout", testTime.String(), "-test.run", "^"+k.test+"$")
	return err != nil && culprit(out) == k.test
}

// passesWithout reports whether the test passes on the tree as it is, whose test binaries are kept.
func (r *runner) passesWithout(ctx context.Context, k killer) bool {
	bin, err := r.compile(ctx, k.pkg, r.dir, "")
	return err == nil && !r.fails(ctx, bin, k)
}

// compile compiles the tests of a package into dir, or does nothing if that is done.
func (r *runner) compile(ctx context.Context, pkg, dir, overlay string) (string, error) {
	bin := filepath.Join(dir, strings.ReplaceAll(strings.TrimPrefix(pkg, "./"), "/", "-")+".test")
	if _, err := os.Stat(bin); err == nil {
		return bin, nil
	}
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-overlay", overlay, "-o", bin, pkg)
	cmd.Dir = r.root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("does not build: %s", lastLines(string(out), 4))
	}
	return bin, nil
}

// run runs a test binary at small sizes, in its package's folder, until a test fails.
func (r *runner) run(ctx context.Context, bin, pkg string, args ...string) (string, error) {
	line := append(append([]string{}, r.launch...), bin, "-test.short", "-test.failfast", "-test.v")
	line = append(line, args...)
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Dir = filepath.Join(r.root, pkg)
	if overlay := filepath.Join(filepath.Dir(bin), overlayFile); exists(overlay) {
		cmd.Env = append(os.Environ(), replay.OverlayVariable+"="+overlay) // for what the test itself builds
	}
	cmd.WaitDelay = time.Second // children of a test that hung may hold the pipe
	out, err := cmd.CombinedOutput()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil
	}
	return string(out), err
}

// Lines of the output of a verbose test that say what becomes of a test, not of a part of it.
var (
	failed = regexp.MustCompile(`(?m)^--- FAIL: (\S+)`)
	events = regexp.MustCompile(`(?m)^(?:=== (?:RUN|CONT) +|--- (PASS|SKIP|FAIL): )([^\s/]+)`)
)

// culprit finds the test that failed, or else the last that ran when the process ended; empty if there is none.
func culprit(out string) string {
	if found := failed.FindStringSubmatch(out); found != nil {
		return found[1]
	}
	last := ""
	for _, e := range events.FindAllStringSubmatch(out, -1) {
		switch {
		case e[1] == "":
			last = e[2]
		case e[2] == last:
			last = ""
		}
	}
	return last
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "; ")
}

// overlayFile is the list of a mutant in its folder.
const overlayFile = "overlay.json"

// writeOverlay writes the changed file into dir, and the file that shows the go command where it belongs.
func (m *mutant) writeOverlay(root, dir string) (string, error) {
	text, err := m.apply(root)
	if err != nil {
		return "", err
	}
	abs, err := filepath.Abs(filepath.Join(root, m.file))
	if err != nil {
		return "", err
	}
	changed := filepath.Join(dir, filepath.Base(m.file))
	list, err := json.Marshal(map[string]map[string]string{"Replace": {abs: changed}})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(dir, overlayFile)
	return overlay, errors.Join(os.WriteFile(changed, text, 0o600), os.WriteFile(overlay, list, 0o600))
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// report prints what became of a mutant, in one line.
func (v *verdict) report(w io.Writer, name string) {
	seconds := v.took.Seconds()
	switch {
	case v.broken != "":
		fmt.Fprintf(w, "BROKEN    %s: %s (%.0f s)\n", name, v.broken, seconds)
	case v.killer.test == "":
		fmt.Fprintf(w, "SURVIVOR  %s (%.0f s)\n", name, seconds)
	default:
		fmt.Fprintf(w, "killed    %s | %s (%.0f s)\n", name, v.killer, seconds)
	}
}
