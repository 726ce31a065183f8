package content

import (
	"path/filepath"
	"slices"
	"strings"
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

// The directory that a content's files are in is made with the first of them: its name is durable before the content
// counts as stored.
func TestNewShardIsSynced(t *testing.T) {
	s := openStore(t, t.TempDir(), Options{})
	for n := range byte(20) {
		id := ID{0: n + 1, 15: n}
		stop := durable.Record()
		_, err := s.Put(t.Context(), id, Shape{Size: 5}, strings.NewReader("hello"))
		synced := stop()
		must(t, err)
		if held := filepath.Join(s.files.dir, "held"); n == 0 && !slices.Contains(synced, held) {
			t.Errorf("%s was not synced, only %q", held, synced)
		}
		if dir := s.files.shardDir(id); !slices.Contains(synced, dir) {
			t.Errorf("%s was not synced, only %q", dir, synced)
		}
	}
}
