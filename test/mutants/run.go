package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// verdict is what became of a mutant.
type verdict struct {
	killer string // the suite and the test that failed; empty for a survivor
	broken string // why the mutant could not be tried
	took   time.Duration
}

// suiteTime bounds one suite: a mutant may make it hang, which kills the mutant too.
const suiteTime = 10 * time.Minute

// try runs the suites of a mutant until one fails.
func try(ctx context.Context, root string, m *mutant) (v verdict) {
	began := time.Now()
	defer func() { v.took = time.Since(began) }()
	text, err := m.apply(root)
	if err != nil {
		return verdict{broken: err.Error()}
	}
	dir, err := os.MkdirTemp("", "mutant-")
	if err != nil {
		return verdict{broken: err.Error()}
	}
	defer os.RemoveAll(dir)
	overlay, err := writeOverlay(dir, filepath.Join(root, m.file), text)
	if err != nil {
		return verdict{broken: err.Error()}
	}
	for _, s := range m.suites {
		killer, broken := s.run(ctx, root, overlay)
		if killer != "" || broken != "" {
			return verdict{killer: killer, broken: broken}
		}
	}
	return verdict{}
}

// writeOverlay writes the text and the file that tells the go command where it belongs.
func writeOverlay(dir, file string, text []byte) (string, error) {
	abs, err := filepath.Abs(file)
	if err != nil {
		return "", err
	}
	changed := filepath.Join(dir, filepath.Base(file))
	if err := os.WriteFile(changed, text, 0o600); err != nil {
		return "", err
	}
	list, err := json.Marshal(map[string]map[string]string{"Replace": {abs: changed}})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, list, 0o600)
}

// failed finds the names of tests that failed in the output of the go command.
var failed = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)

// run runs one suite; killer is empty if it passes.
func (s suite) run(ctx context.Context, root, overlay string) (killer, broken string) {
	ctx, cancel := context.WithTimeout(ctx, suiteTime+time.Minute)
	defer cancel()
	args := []string{"test", "-count=1", "-vet=off", "-failfast", "-timeout", suiteTime.String(), "-overlay", overlay, s.pkg}
	cmd := exec.CommandContext(ctx, "go", append(args, s.args...)...)
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	text := string(out)
	switch {
	case err == nil:
		return "", ""
	case strings.Contains(text, "[build failed]"), strings.Contains(text, "[setup failed]"):
		return "", "does not build: " + firstLines(text, 4)
	}
	if found := failed.FindStringSubmatch(text); found != nil {
		return fmt.Sprintf("%s %s", s.pkg, found[1]), ""
	}
	if strings.Contains(text, "panic: ") || strings.Contains(text, "fatal error: ") {
		return s.pkg + " (panic)", ""
	}
	return "", fmt.Sprintf("%s: %v: %s", s.pkg, err, firstLines(text, 4))
}

func firstLines(s string, n int) string {
	lines := strings.SplitN(s, "\n", n+1)
	return strings.Join(lines[:min(n, len(lines))], "; ")
}
