package content

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// What staged bytes were written over is known after a crash, from a description of either kind.
func TestStagedOver(t *testing.T) {
	for _, tags := range []bool{true, false} {
		for name, tc := range map[string]struct {
			begins, want ID
			do           func(st *Staging) error
		}{
			"made from":       {begins: testID(1), want: testID(1)},
			"new":             {},
			"published":       {want: testID(2), do: publishedAs(testID(2))},
			"published again": {begins: testID(1), want: testID(2), do: publishedAs(testID(2))},
			"published empty": {begins: testID(1), do: publishedAs(ID{})},
			"linked": {want: testID(2), do: func(st *Staging) error {
				return errors.Join(st.SetOver(testID(2)), st.SetOrigin(Origin{Ino: 9}))
			}},
		} {
			for _, keep := range []bool{true, false} {
				dir := t.TempDir()
				s := openStore(t, dir, Options{})
				if !tags {
					s.staging.setWithoutTags()
				}
				st, err := s.NewStaging(Origin{Ino: 7, Over: tc.begins})
				if err == nil {
					err = stage(st, "bytes", time.Now())
				}
				if err == nil && tc.do != nil {
					err = tc.do(st)
				}
				if keep {
					err = errors.Join(err, st.KeepUnpublished("why"))
				}
				if err := errors.Join(err, st.Close(), s.Close()); err != nil {
					t.Fatal(name, err)
				}
				s = openStore(t, dir, Options{})
				list, err := s.Stagings()
				if err != nil || len(list) != 1 || list[0].Origin.Over != tc.want || list[0].Damaged {
					t.Errorf("%s, tags %t, kept %t: %+v, %v", name, tags, keep, list, err)
				}
			}
		}
	}
}

func publishedAs(id ID) func(*Staging) error {
	return func(st *Staging) error { return st.SetOver(id) }
}

// An emptied file that is used again knows nothing of what it was before.
func TestStagedOverOfUsedFile(t *testing.T) {
	s := openStore(t, t.TempDir(), Options{})
	st, err := s.NewStaging(Origin{Ino: 7, Over: testID(1)})
	if err == nil {
		err = st.Recycle()
	}
	if err != nil {
		t.Fatal(err)
	}
	again, err := s.NewStaging(Origin{Ino: 7})
	if err == nil {
		err = errors.Join(stage(again, "bytes", time.Now()), again.Close())
	}
	if err != nil || again.token != st.token {
		t.Fatal(again, err)
	}
	if list, err := s.Stagings(); err != nil || len(list) != 1 || !list[0].Origin.Over.IsZero() {
		t.Errorf("%+v, %v", list, err)
	}
}

// A note of what was published changes nothing that shows writes, and any number of notes takes the room of one.
func TestNotesOfWhatWasPublished(t *testing.T) {
	s := openStore(t, t.TempDir(), Options{})
	st, err := s.NewStaging(Origin{Ino: 7})
	if err == nil {
		err = stage(st, "bytes", time.Now())
	}
	if err != nil {
		t.Fatal(err)
	}
	before, size := markOf(st.File()), int64(0)
	for n := range byte(50) {
		if err := st.SetOver(testID(n + 1)); err != nil {
			t.Fatal(err)
		}
		now := s.staging.look(st.token)
		if now.bytes != before || n > 0 && now.journal.size != size {
			t.Fatalf("note %d: %+v; was %+v and %d bytes", n, now, before, size)
		}
		size = now.journal.size
	}
	list, err := s.Stagings()
	if err != nil || len(list) != 1 || list[0].Origin.Over != testID(50) {
		t.Errorf("%+v, %v", list, err)
	}
	if err := st.Drop(); err != nil {
		t.Error(err)
	}
}

// An overlay begins over its base, and is then over what it was published as.
func TestOverlayOver(t *testing.T) {
	for name, over := range map[string]ID{"made from": testID(1), "published": testID(2), "published empty": {}} {
		dir := t.TempDir()
		s := openStore(t, dir, Options{})
		put(t, s, testID(1), Shape{Size: 100_000}, bytes.Repeat([]byte("b"), 100_000))
		o, err := s.NewOverlay(testID(1), Origin{Ino: 7})
		if err == nil {
			_, err = o.WriteAt([]byte("changed"), 50)
		}
		if err == nil && over != testID(1) {
			var snap *Snapshot
			if snap, err = o.Snapshot(); err == nil {
				err = snap.Published(over)
			}
		}
		if err := errors.Join(err, o.Close(), s.Close()); err != nil {
			t.Fatal(err)
		}
		s = openStore(t, dir, Options{})
		if list, err := s.Stagings(); err != nil || len(list) != 1 || list[0].Origin.Over != over {
			t.Errorf("%s: %+v, %v", name, list, err)
		}
	}
}

func versionOf(id ID, p []byte) Version { return Version{id, int64(len(p)), rootOf(p)} }

// stageSparse stages bytes, blocks of zeros as holes.
func stageSparse(t *testing.T, s *Store, p []byte) *Staging {
	t.Helper()
	st, err := s.NewStaging(Origin{Ino: 7})
	if err == nil {
		err = st.File().Truncate(int64(len(p)))
	}
	for off := 0; off < len(p) && err == nil; off += BlockBytes {
		if block := p[off:min(off+BlockBytes, len(p))]; len(bytes.Trim(block, "\x00")) > 0 {
			_, err = st.File().WriteAt(block, int64(off))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// Staged bytes are dropped only if each byte, and the length, are those of the version.
func TestDropPublished(t *testing.T) {
	big := bytes.Repeat([]byte("0123456789abcdef"), 3*BlockBytes/16)
	big = append(big, "and a rest"...)
	holes := make([]byte, 3*BlockBytes+1)
	holes[2*BlockBytes] = 7
	changed := func(p []byte, at int) []byte {
		p = bytes.Clone(p)
		p[at] ^= 1
		return p
	}
	for name, tc := range map[string]struct {
		staged, version []byte
		elsewhere, same bool
	}{
		"small":                    {staged: []byte("a"), version: []byte("a"), same: true},
		"large":                    {staged: big, version: big, same: true},
		"held elsewhere":           {staged: big, version: big, elsewhere: true, same: true},
		"holes":                    {staged: holes, version: holes, same: true},
		"longer":                   {staged: append(bytes.Clone(big), 0), version: big},
		"shorter":                  {staged: big[:len(big)-1], version: big},
		"first byte":               {staged: changed(big, 0), version: big},
		"last byte":                {staged: changed(big, len(big)-1), version: big},
		"last byte, elsewhere":     {staged: changed(big, len(big)-1), version: big, elsewhere: true},
		"between blocks":           {staged: changed(big, 2*BlockBytes), version: big, elsewhere: true},
		"a hole in place of bytes": {staged: make([]byte, len(holes)), version: holes},
	} {
		s := openStore(t, t.TempDir(), Options{})
		v := versionOf(testID(1), tc.version)
		if !tc.elsewhere {
			put(t, s, v.ID, Shape{Size: v.Size}, tc.version)
		}
		st := stageSparse(t, s, tc.staged)
		if same, err := s.DropPublished(t.Context(), st.token, v); same || !errors.Is(err, ErrBusy) {
			t.Errorf("%s, while it is open: %t, %v", name, same, err)
		}
		if err := st.Close(); err != nil {
			t.Fatal(err)
		}
		same, err := s.DropPublished(t.Context(), st.token, v)
		list, listErr := s.Stagings()
		if err != nil || listErr != nil || same != tc.same || len(list) == 0 != tc.same {
			t.Errorf("%s: %t, %v; left: %+v, %v", name, same, err, list, listErr)
		}
	}
}

// An overlay is compared as it is read: with its base, and as far as its records go.
func TestDropPublishedOverlay(t *testing.T) {
	base := bytes.Repeat([]byte("b"), 2*BlockBytes+100)
	for name, tc := range map[string]struct {
		do   func(o *Overlay, now []byte) ([]byte, error)
		more bool
	}{
		"changed": {do: func(o *Overlay, now []byte) ([]byte, error) {
			_, err := o.WriteAt([]byte("changed"), BlockBytes-3)
			copy(now[BlockBytes-3:], "changed")
			return now, err
		}},
		"cut":   {do: func(o *Overlay, now []byte) ([]byte, error) { return now[:5000], o.Truncate(5000) }},
		"empty": {do: func(o *Overlay, now []byte) ([]byte, error) { return now[:0], o.Truncate(0) }},
		"more": {more: true, do: func(o *Overlay, now []byte) ([]byte, error) {
			_, err := o.WriteAt([]byte("c"), 2*BlockBytes)
			return now, err
		}},
	} {
		dir := t.TempDir()
		s := openStore(t, dir, Options{})
		put(t, s, testID(1), Shape{Size: int64(len(base))}, base)
		o, err := s.NewOverlay(testID(1), Origin{Ino: 7})
		if err != nil {
			t.Fatal(err)
		}
		now, err := tc.do(o, bytes.Clone(base))
		if err := errors.Join(err, o.Close(), s.Close()); err != nil {
			t.Fatal(err)
		}
		s = openStore(t, dir, Options{})
		list, err := s.Unused()
		if err != nil || len(list) != 1 {
			t.Fatalf("%s: %+v, %v", name, list, err)
		}
		same, err := s.DropPublished(t.Context(), list[0].Token, versionOf(testID(2), now))
		if err != nil || same == tc.more {
			t.Errorf("%s: %t, %v", name, same, err)
		}
		if list, err = s.Unused(); err != nil || len(list) == 0 == tc.more {
			t.Errorf("%s: left %+v, %v", name, list, err)
		}
	}
}

// A file that a program may still write to stays, and is known to be published until it is written to.
func TestDropPublishedInUse(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, Options{})
	v := versionOf(testID(1), []byte("bytes"))
	st, err := s.NewStaging(Origin{Ino: 7})
	if err == nil {
		err = errors.Join(stage(st, "bytes", time.Now().Add(-time.Hour)), st.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.OpenFile(filepath.Join(dir, "staging", filepath.Base(st.File().Name())), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	look := func(same, known bool) {
		t.Helper()
		got, err := s.DropPublished(t.Context(), st.token, v)
		list, listErr := s.Unused()
		if err != nil || listErr != nil || got != same || len(list) != 1 || list[0].IsVersion != known {
			t.Errorf("%t, %v; %+v, %v", got, err, list, listErr)
		}
	}
	look(true, true)
	look(true, true)
	if _, err := program.WriteAt([]byte("B"), 0); err != nil {
		t.Fatal(err)
	}
	if list, err := s.Unused(); err != nil || len(list) != 1 || list[0].IsVersion {
		t.Errorf("after a write: %+v, %v", list, err)
	}
	look(false, false)
	if _, err := program.WriteAt([]byte("b"), 0); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if same, err := s.DropPublished(ctx, st.token, v); same || !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %t, %v", same, err)
	}
	if err := program.Close(); err != nil {
		t.Fatal(err)
	}
	if same, err := s.DropPublished(t.Context(), st.token, v); !same || err != nil {
		t.Errorf("after its close: %t, %v", same, err)
	}
	if list, err := s.Stagings(); err != nil || len(list) != 0 {
		t.Errorf("left: %+v, %v", list, err)
	}
}

// What the disk has refused is never compared.
func TestDropPublishedRefused(t *testing.T) {
	s := openStore(t, t.TempDir(), Options{})
	v := versionOf(testID(1), []byte("bytes"))
	refused, err := s.NewStaging(Origin{Ino: 8})
	if err == nil {
		err = errors.Join(stage(refused, "bytes", time.Now()), refused.Refuse(errors.New("disk")), refused.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	if same, err := s.DropPublished(t.Context(), refused.token, v); same || !errors.Is(err, ErrRefused) {
		t.Errorf("refused by the disk: %t, %v", same, err)
	}
}
