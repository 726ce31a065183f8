// Package replay builds test programs whose goroutines replay by a seed.
//
// Go leaves three things to chance that a seed must decide: which goroutine goes on, what select and maps choose, and
// what the time is. A program that runs on one thread, within a bubble of testing/synctest, has all three from a few
// lines of the runtime and nowhere else. Those lines are replaced by the go command's -overlay, in the program that
// is built and nowhere else:
//
//   - no background thread preempts goroutines by the clock, as on GOARCH=wasm (haveSysmon);
//   - the runtime's randomness comes from one generator, which the program seeds (randinit, rand, cheaprand);
//   - a mutex does not look at the clock (starvationThresholdNs), and neither does the scheduler (nanotime);
//   - no background thread gives memory back to the machine (bgscavenge);
//   - the heap has large pages, or half of the time would go into page faults (sysMapOS);
//   - who waits for a mutex counts as idle in a bubble, so that another may hold it while virtual time passes
//     (isIdleInSynctest).
//
// The texts that are replaced are looked for in the sources of the Go that builds. Where one is not found the build
// fails and says so: it is then to be looked up in the new runtime.
package replay

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// change replaces one text of one file, which must be there once.
type change struct{ file, from, to string }

var changes = []change{
	{"runtime/proc.go", "const haveSysmon = GOARCH != \"wasm\"", "const haveSysmon = false"},
	// which threads there are is a matter of time
	{"runtime/proc.go", "\tlockOSThread()\n\n\tif mp != &m0 {", "\tif mp != &m0 {"},
	{"runtime/proc.go", "\tneedUnlock := true\n", "\tneedUnlock := false\n"},
	{"runtime/proc.go", "\tneedUnlock = false\n\tunlockOSThread()\n", "\tneedUnlock = false\n"},
	{"internal/sync/mutex.go", "starvationThresholdNs = 1e6", "starvationThresholdNs = 1 << 62"},
	{"runtime/runtime2.go", "\twaitReasonSyncCondWait:          true,\n",
		"\twaitReasonSyncCondWait:          true,\n\twaitReasonSyncMutexLock:         true,\n\twaitReasonSyncRWMutexLock: " +
			"      true,\n\twaitReasonSyncRWMutexRLock:      true,\n"},
	{"runtime/time_nofake.go", "func nanotime() int64 {\n\treturn nanotime1()\n}",
		"func nanotime() int64 {\n\tsimNow += 100\n\treturn simNow\n}\n\nvar simNow int64 = 1e9"},
	{"runtime/mgcscavenge.go", "\tc <- 1\n\tscavenger.park()\n", "\tc <- 1\n\tfor {\n\t\tscavenger.park()\n\t}\n"},
	// the heap has large pages
	{"runtime/mem_linux.go", "\tsetVMAName(p, n, vmaName)\n\n\t// Disable huge pages",
		"\tsetVMAName(p, n, vmaName)\n\tmadvise(v, n, _MADV_HUGEPAGE)\n\n\t// Disable huge pages"},
	{"runtime/rand.go", "\tif len(startupRand) >= 16 &&",
		"\tif seed[0] = 1; true {\n\t} else if len(startupRand) >= 16 &&"},
	{"runtime/rand.go", "var readRandomFailed bool",
		"var readRandomFailed bool\n\n//go:linkname simRand\nvar simRand uint64 = 1\n"},
	{"runtime/rand.go",
		"\t\tmp.cheaprand += 0xa0761d6478bd642f\n\t\thi, lo := math.Mul64(mp.cheaprand, mp.cheaprand^0xe7037ed1a0b428db)\n",
		"\t\t_ = mp\n\t\tsimRand += 0xa0761d6478bd642f\n\t\thi, lo := math.Mul64(simRand, simRand^0xe7037ed1a0b428db)\n"},
	{"runtime/rand.go", "\tmp := getg().m\n\tc := &mp.chacha8\n\tfor {\n\t\t// Note: c.Next is",
		"\tif simRand != 0 {\n\t\treturn uint64(cheaprand())<<32 | uint64(cheaprand())\n\t}\n\tmp := getg().m\n\tc := " +
			"&mp.chacha8\n\tfor {\n\t\t// Note: c.Next is"},
}

// OverlayVariable of the environment names an overlay of the go command that Build adds to its own.
const OverlayVariable = "REPLAY_OVERLAY"

// Tag is the build tag of what only these programs have: they may use what the overlay adds to the runtime.
const Tag = "replay"

// Build builds the test program of a package. It takes a minute the first time, for all of the standard library, and
// seconds afterwards.
func Build(pkg, program string) error {
	// the same each time: the go command's cache knows the files by their names
	dir := filepath.Join(os.TempDir(), "rdmcfs-replay")
	list, err := overlay(dir)
	if err != nil {
		return err
	}
	cmd := exec.Command("go", "test", "-c", "-trimpath", "-overlay", list, "-tags", Tag, "-ldflags=-checklinkname=0", "-o",
		program, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("replay: build of %s: %w: %s", pkg, err, out)
	}
	return nil
}

// overlay writes the changed files of the runtime, and the list of them for the go command.
func overlay(dir string) (string, error) {
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("replay: go env: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("replay: %w", err)
	}
	root := filepath.Join(strings.TrimSpace(string(out)), "src")
	texts, err := changed(root)
	if err != nil {
		return "", err
	}
	replace, err := given()
	if err != nil {
		return "", err
	}
	for file, text := range texts {
		to := filepath.Join(dir, strings.ReplaceAll(file, "/", "_"))
		if err := writeNew(to, text); err != nil {
			return "", err
		}
		replace[filepath.Join(root, file)] = to
	}
	raw, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", fmt.Errorf("replay: %w", err)
	}
	list := filepath.Join(dir, fmt.Sprintf("overlay.%x.json", sha256.Sum256(raw)))
	return list, writeNew(list, string(raw))
}

// given are additional replacements that the caller's environment asks for: a program with a fault in it, for example.
func given() (map[string]string, error) {
	path := os.Getenv(OverlayVariable)
	if path == "" {
		return map[string]string{}, nil
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	var list struct{ Replace map[string]string }
	if err := json.Unmarshal(raw, &list); err != nil || list.Replace == nil {
		return nil, fmt.Errorf("replay: %s is no overlay: %w", path, err)
	}
	return list.Replace, nil
}

// changed makes all changes, by file.
func changed(root string) (map[string]string, error) {
	texts := map[string]string{}
	for _, c := range changes {
		text, ok := texts[c.file]
		if !ok {
			raw, err := os.ReadFile(filepath.Join(root, c.file))
			if err != nil {
				return nil, fmt.Errorf("replay: %w", err)
			}
			text = string(raw)
		}
		if n := strings.Count(text, c.from); n != 1 {
			return nil, fmt.Errorf("replay: %s of this Go has %d times %q, want 1: look up what became of it", c.file, n, c.from)
		}
		texts[c.file] = strings.Replace(text, c.from, c.to, 1)
	}
	return texts, nil
}

// writeNew replaces a file at once, so that another build beside this one never sees half of it.
func writeNew(name, text string) error {
	f, err := os.CreateTemp(filepath.Dir(name), ".new")
	if err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	_, err = f.WriteString(text)
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	return nil
}
