package content

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"
)

func TestRevFileDuringExchange(t *testing.T) {
	var hook func()
	s := openStore(t, t.TempDir(), Options{Step: func(step, path string) error {
		if hook != nil && step == "rename" && strings.Contains(path, ".aside") {
			hook()
		}
		return nil
	}})
	want := randomBytes(1, 1<<20+5)
	put(t, s, testID(1), Shape{Size: int64(len(want))}, want)
	one, two := mustOpen(t, s, testID(1)), mustOpen(t, s, testID(1))
	defer one.Close()
	defer two.Close()
	var program *os.File
	hook = func() { program = dupOf(t, two.File()) } // as RegisterBackingFd(two.Fd())
	st, err := s.StepAside(one, Origin{Ino: 1})
	hook = nil
	if errors.Is(err, ErrBusy) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer st.Drop()
	st.File().WriteAt([]byte("not committed"), 0)
	if got := allOf(t, program); !bytes.Equal(got, want) {
		t.Errorf("a program of another mount reads %q of a committed content", got[:13])
	}
}

func TestRevSound(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, Options{Clone: shareBytes})
	want := randomBytes(1, 3<<20)
	put(t, s, testID(1), Shape{Size: 3 << 20}, want)
	r := mustOpen(t, s, testID(1))
	defer r.Close()
	// rot that nobody has met yet: Checked still says yes
	rotAt(t, dir, 2*BlockBytes+5)
	st, err := s.StepAside(r, Origin{Ino: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Drop()
	if damage, err := s.Check(t.Context(), testID(1)); err != nil || damage == nil {
		t.Fatalf("damage: %v, %v", damage, err)
	}
	if err := s.Mend(t.Context(), testID(1), 2, want[2*BlockBytes:]); err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(allOf(t, st.File()), want) {
		t.Skip("staged file is good")
	}
	if err := st.Sound(); !errors.Is(err, ErrCorrupt) {
		t.Errorf("staged file has the rot of what it was, Sound says %v", err)
	}
}
