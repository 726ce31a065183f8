//go:build linux && (amd64 || arm64)

package verbs

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestNordmaNeedsNoLibrary: with the tag nothing of the program asks for the dynamic loader, so it is static.
func TestNordmaNeedsNoLibrary(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil || os.Getenv("RDMCFS_TEST_VERBS") != "" {
		t.Skip("needs the go command of a fast machine")
	}
	for tags, want := range map[string]bool{"nordma": false, "": true} {
		out, err := exec.Command("go", "list", "-deps", "-tags", tags, ".", "../../cmd/rdmcfs").CombinedOutput()
		if err != nil {
			t.Fatalf("go list: %v: %s", err, out)
		}
		if got := strings.Contains(string(out), "github.com/ebitengine/purego"); got != want {
			t.Errorf("tags %q: needs purego: %v, want %v", tags, got, want)
		}
	}
}
