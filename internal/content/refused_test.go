package content

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
)

// Bytes that the disk did not take are listed and not opened again, in the next life of the store neither. They can be
// dropped.
func TestBytesThatTheDiskRefusedAreNotTakenUpAgain(t *testing.T) {
	dir := t.TempDir()
	s, base := openStore(t, dir, Options{}), testID(1)
	put(t, s, base, Shape{Size: 1 << 20}, make([]byte, 1<<20))
	st, err := s.NewStaging(Origin{Ino: 7})
	if err == nil {
		_, err = st.File().Write([]byte("bytes"))
	}
	if err = errors.Join(err, s.Commit(base)); err != nil {
		t.Fatal(err)
	}
	o, err := s.NewOverlay(base, Origin{Ino: 8})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []interface {
		Refuse(error) error
		Close() error
	}{st, o} {
		if err := errors.Join(x.Refuse(syscall.EIO), x.Close()); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		list, err := s.Stagings()
		if err != nil || len(list) != 2 {
			t.Fatalf("staged: %+v, %v", list, err)
		}
		for _, u := range list {
			if u.Open || !strings.Contains(u.Reason, "input/output error") {
				t.Errorf("listed: %+v", u)
			}
		}
		_, plain := s.OpenStaging(list[0].Token)
		_, overlay := s.OpenOverlay(list[1].Token)
		for _, err := range []error{plain, overlay} {
			if !errors.Is(err, ErrRefused) || !errors.Is(err, syscall.EIO) {
				t.Errorf("opened again: %v", err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = openStore(t, dir, Options{})
	}
	list, err := s.Stagings()
	for _, u := range list {
		err = errors.Join(err, s.DropStaging(u.Token))
	}
	if rest, listErr := s.Stagings(); err != nil || listErr != nil || len(rest) > 0 {
		t.Errorf("dropped: %+v, %v, %v", rest, err, listErr)
	}
}

// A note that found no room leaves nothing behind that hides the notes which come later: bytes that the disk refused
// then are not opened again either.
func TestNotesAfterOneThatFoundNoRoom(t *testing.T) {
	dir := smallDisk(t)
	s := openStore(t, dir, Options{})
	st, err := s.NewStaging(Origin{Ino: 7, Name: "f"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := st.File().WriteString("bytes"); err != nil {
		t.Fatal(err)
	}
	filler := fillDisk(t, dir)
	if err := st.SetOver(testID(1)); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("noted on a full disk: %v", err)
	}
	if err := errors.Join(filler.Close(), os.Remove(filler.Name())); err != nil {
		t.Fatal(err)
	}
	err = errors.Join(st.SetOver(testID(2)), st.Refuse(syscall.EIO), st.KeepUnpublished("why"), s.Close())
	if err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir, Options{})
	list, err := s.Stagings()
	if err != nil || len(list) != 1 || list[0].Origin.Over != testID(2) || !strings.HasPrefix(list[0].Reason, "why") {
		t.Errorf("staged: %+v, %v", list, err)
	}
	if st, err := s.OpenStaging(st.token); !errors.Is(err, ErrRefused) {
		t.Errorf("opened again: %v", err)
		if err == nil {
			_ = st.Close()
		}
	}
}
