package content

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/durable"
)

// The store's directories outlive a power failure, with the store's name in the data directory.
func TestOpenSyncsTheDirectories(t *testing.T) {
	stop := durable.Record()
	dir := filepath.Join(t.TempDir(), "content")
	s, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	synced := stop()
	for _, want := range []string{dir, filepath.Join(dir, "held"), filepath.Join(dir, "staging"), filepath.Dir(dir)} {
		if !slices.Contains(synced, want) {
			t.Errorf("%s was not synced, only %q", want, synced)
		}
	}
}
