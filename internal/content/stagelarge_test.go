package content

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// A file that is appended to for a long time has a record for each write. None of them is forgotten, however many there
// are: a page whose record is not read would have the bytes of the version before.
func TestOverlayWithManyRecordsIsTakenUpWhole(t *testing.T) {
	if testing.Short() {
		t.Skip("writes a GiB")
	}
	dir := t.TempDir()
	s := openStore(t, dir, Options{})
	id := testID(1)
	put(t, s, id, Shape{Size: 1 << 20}, make([]byte, 1<<20))
	if err := s.Commit(id); err != nil {
		t.Fatal(err)
	}
	o, err := s.NewOverlay(id, Origin{Ino: 7})
	if err != nil {
		t.Fatal(err)
	}
	many := appendRecord(nil, 200, make([]byte, 1<<16-1)) // of a later version, and as long as many of ours
	for written := 0; written <= 1<<30; written += len(many) {
		if _, err := o.st.journal.Write(many); err != nil {
			t.Fatal(err)
		}
	}
	_, err = o.WriteAt([]byte("behind all of them"), 5<<10)
	if err = errors.Join(err, o.Close()); err != nil {
		t.Fatal(err)
	}
	list, err := s.Stagings()
	if err != nil || len(list) != 1 || list[0].Damaged {
		t.Fatalf("staged: %+v, %v", list, err)
	}
	if o, err = s.OpenOverlay(list[0].Token); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 18)
	if _, err := o.ReadAt(got, 5<<10); err != nil || string(got) != "behind all of them" {
		t.Errorf("read %q, %v", got, err)
	}
	if err := o.Drop(); err != nil {
		t.Error(err)
	}
}

// A .stage file that can't be read whole says nothing: what follows the part that could be read must not be cut off.
func TestStageFileThatCannotBeReadIsLeftAlone(t *testing.T) {
	dir := t.TempDir()
	if _, err := readStage(dir); err == nil {
		t.Error("read")
	}
	if _, err := readStage(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}
