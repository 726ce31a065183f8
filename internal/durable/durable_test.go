package durable

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestWriteFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path+newSuffix, []byte("left by an error, and longer"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"first", "", "second"} {
		if err := WriteFile(path, []byte(text)); err != nil || read(t, path) != text {
			t.Errorf("%q: %v, have %q", text, err, read(t, path))
		}
	}
	if _, err := os.Stat(path + newSuffix); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what it wrote under is left: %v", err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
}

// An error leaves the file as it was.
func TestWriteFileFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := WriteFile(path, []byte("old")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path+newSuffix, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(path, []byte("new")); err == nil || read(t, path) != "old" {
		t.Errorf("error %v, have %q", err, read(t, path))
	}
	if err := WriteFile(filepath.Join(path, "below-a-file"), nil); err == nil {
		t.Error("no error without a directory")
	}
}

func TestSync(t *testing.T) {
	dir := t.TempDir()
	if err := Sync(dir); err != nil {
		t.Error(err)
	}
	if err := Sync(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v of a file that is not there", err)
	}
}

// A directory is durable with its name, and with those of the directories made above it.
func TestMakeDir(t *testing.T) {
	top := t.TempDir()
	stop := Record()
	dir := filepath.Join(top, "a", "b", "c")
	for range 2 {
		if err := MakeDir(dir); err != nil {
			t.Fatal(err)
		}
	}
	synced := stop()
	for path, times := range map[string]int{dir: 2, filepath.Dir(dir): 2, filepath.Join(top, "a"): 1, top: 1} {
		got := 0
		for _, s := range synced {
			if s == path {
				got++
			}
		}
		if got != times {
			t.Errorf("%s was synced %d times, want %d: %q", path, got, times, synced)
		}
	}
	if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
}

func TestMakeDirFails(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := MakeDir(filepath.Join(file, "below-a-file")); err == nil {
		t.Error("no error below a file")
	}
}
