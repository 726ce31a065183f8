package content

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// TestReceiveConcurrently writes the blocks of many contents from many goroutines, twice each and in parts.
func TestReceiveConcurrently(t *testing.T) {
	s := openStore(t, t.TempDir(), Options{})
	var group sync.WaitGroup
	for n := range 6 {
		group.Go(func() {
			want := randomBytes(uint64(n), int64(n)*BlockBytes+int64(n)*70_000+1)
			if err := receive(t.Context(), s, testID(byte(n+1)), want); err != nil {
				t.Errorf("content %d: %v", n, err)
			}
		})
	}
	group.Wait()
	for n := range 6 {
		want := randomBytes(uint64(n), int64(n)*BlockBytes+int64(n)*70_000+1)
		wantContent(t, s, testID(byte(n+1)), want)
	}
	if sp, err := s.Space(); err != nil || sp.PromisedBytes != 0 {
		t.Fatalf("space: %+v, %v", sp, err)
	}
}

// receive writes want by several writers at once.
func receive(ctx context.Context, s *Store, id ID, want []byte) error {
	r, err := s.Begin(id, Shape{Size: int64(len(want))})
	if err != nil {
		return err
	}
	var group sync.WaitGroup
	errs := make([]error, 3)
	for w := range errs {
		group.Go(func() {
			for _, i := range rand.New(rand.NewPCG(uint64(w), 5)).Perm(int(r.Layout().Blocks())) {
				block := want[i*BlockBytes : min((i+1)*BlockBytes, len(want))]
				leaf := Leaf(block)
				errs[w] = errors.Join(errs[w], r.WriteBlock(int64(i), block, &leaf))
			}
		})
	}
	group.Wait()
	buf := make([]byte, BlockBytes)
	for i := range r.Layout().Blocks() {
		n := r.Layout().BlockLen(i)
		if err := r.ReadBlock(i, buf); err != nil || !bytes.Equal(buf[:n], want[i*BlockBytes:i*BlockBytes+n]) {
			return fmt.Errorf("relay block %d: %w", i, err)
		}
	}
	if err := errors.Join(append(errs, r.Finish(ctx, rootOf(want)))...); err != nil {
		return err
	}
	return s.Commit(id)
}

func TestReceiveRefusesWrongBytes(t *testing.T) {
	s := openStore(t, t.TempDir(), Options{})
	for _, size := range []int64{5000, 2*BlockBytes + 5} {
		want := randomBytes(1, size)
		r, err := s.Begin(testID(1), Shape{Size: size})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Begin(testID(1), Shape{Size: size}); !errors.Is(err, ErrBusy) {
			t.Fatalf("begin twice: %v", err)
		}
		if err := r.Finish(t.Context(), rootOf(want)); !errors.Is(err, ErrIncomplete) {
			t.Fatalf("finish with nothing: %v", err)
		}
		first := want[:min(size, BlockBytes)]
		if err := r.WriteBlock(0, first, &Hash{1}); !errors.Is(err, ErrMismatch) || r.Has(0) {
			t.Fatalf("wrong leaf: %v", err)
		}
		if err := r.WriteBlock(0, first[1:], nil); !errors.Is(err, ErrShape) {
			t.Fatalf("short block: %v", err)
		}
		if _, err := r.fill(t.Context(), bytes.NewReader(want)); err != nil {
			t.Fatal(err)
		}
		if err := r.Finish(t.Context(), Hash{1}); !errors.Is(err, ErrMismatch) {
			t.Fatalf("wrong root: %v", err)
		}
		if err := r.Discard(); err != nil {
			t.Fatal(err)
		}
		if files := heldFiles(t, s.files.dir); len(files) != 0 {
			t.Fatalf("left over: %v", files)
		}
	}
}

// TestResume continues partial contents after Close, after a restart, and with damaged blocks.
func TestResume(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, Options{})
	want := randomBytes(1, 5*BlockBytes+99)
	shape := Shape{Size: int64(len(want))}
	r, err := s.Begin(testID(1), shape)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range []int64{0, 2, 5} {
		if err := r.WriteBlock(i, want[i*BlockBytes:min((i+1)*BlockBytes, int64(len(want)))], nil); err != nil {
			t.Fatal(err)
		}
	}
	path := s.files.streamPath(testID(1), ID{})
	if err := errors.Join(r.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
	p, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	p[2*BlockBytes+9] ^= 1 // as if it had not reached the disk
	if err := os.WriteFile(path, p, 0o600); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir, Options{})
	if list := s.List(Partial); !slices.Equal(list, []ID{testID(1)}) {
		t.Fatalf("partial: %v", list)
	}
	r, err = s.Begin(testID(1), shape)
	if err != nil {
		t.Fatal(err)
	}
	if have := r.Have(); !have.Has(0) || have.Has(2) || !have.Has(5) || r.Missing() != 4 {
		t.Fatalf("have %b, missing %d", have, r.Missing())
	}
	if _, err := r.fill(t.Context(), bytes.NewReader(want)); err != nil {
		t.Fatal(err)
	}
	if err := r.Finish(t.Context(), rootOf(want)); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir, Options{})
	if ids := s.List(Undecided); len(ids) != 1 || ids[0] != testID(1) {
		t.Fatalf("undecided: %v", ids)
	}
	if _, err := s.Open(testID(1)); !errors.Is(err, ErrNotFound) {
		t.Fatalf("open undecided: %v", err)
	}
	if err := s.Commit(testID(1)); err != nil {
		t.Fatal(err)
	}
	wantContent(t, s, testID(1), want)
	if _, err := s.Begin(testID(1), shape); !errors.Is(err, ErrExists) {
		t.Fatalf("begin what is held: %v", err)
	}
}

// TestDeleteWaitsForReaders: the bytes of a deleted content stay for a reader that has it open and for a content that
// builds on it.
func TestDeleteWaitsForReaders(t *testing.T) {
	s := openStore(t, t.TempDir(), Options{})
	want := randomBytes(1, BlockBytes+5)
	put(t, s, testID(1), Shape{Size: int64(len(want))}, want)
	r, err := s.Open(testID(1))
	if err != nil {
		t.Fatal(err)
	}
	changed := append([]byte{7}, want[1:]...)
	put(t, s, testID(2), Shape{Size: int64(len(want)), Base: testID(1), BaseSize: int64(len(want)),
		Extents: []Extent{{Len: 1}}}, changed)
	if err := s.Delete(testID(1)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Open(testID(1)); !errors.Is(err, ErrNotFound) {
		t.Fatalf("open after delete: %v", err)
	}
	if _, err := s.Begin(testID(3), Shape{Size: 1, Base: testID(1), BaseSize: int64(len(want))}); !errors.Is(err,
		ErrNoBase) {
		t.Fatalf("begin over a deleted base: %v", err)
	}
	got := make([]byte, len(want))
	if _, err := r.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("read after delete: %v", err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	wantContent(t, s, testID(2), changed)
	if list := s.List(Committed); !slices.Equal(list, []ID{testID(2)}) {
		t.Fatalf("committed: %v", list)
	}
	if err := s.Delete(testID(2)); err != nil {
		t.Fatal(err)
	}
	if files := heldFiles(t, s.files.dir); len(files) != 0 {
		t.Fatalf("left over: %v", files)
	}
}

func TestSecondOpenIsRefused(t *testing.T) {
	dir := t.TempDir()
	openStore(t, dir, Options{})
	if _, err := Open(dir, Options{}); !errors.Is(err, ErrLocked) {
		t.Fatalf("second open: %v", err)
	}
}

func TestReserveRefuses(t *testing.T) {
	s := openStore(t, t.TempDir(), Options{ReserveBytes: 1 << 60})
	var no *NoSpaceError
	_, err := s.Begin(testID(1), Shape{Size: 10})
	if !errors.Is(err, ErrNoSpace) || !errors.Is(err, unix.ENOSPC) || !errors.As(err, &no) || no.NeedBytes < 10 {
		t.Fatalf("begin: %v", err)
	}
	if sp, err := s.Space(); err != nil || sp.Level != LevelFull || sp.PromisedBytes != 0 {
		t.Fatalf("space: %+v, %v", sp, err)
	}
	if _, ok := s.State(testID(1)); ok || len(heldFiles(t, s.files.dir)) != 0 {
		t.Fatal("something is left of what was refused")
	}
}

// TestFullDisk fills a small file system and sees that every failure is a clean one.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=16m"); err != nil {
		t.Skipf("mount tmpfs: %v (needs root)", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	s := openStore(t, dir, Options{ReserveBytes: 1 << 20})
	base := randomBytes(1, 4*BlockBytes)
	put(t, s, testID(1), Shape{Size: int64(len(base))}, base)
	if _, err := s.Put(t.Context(), testID(2), Shape{Size: 14 << 20}, bytes.NewReader(nil)); !errors.Is(err, ErrNoSpace) {
		t.Fatalf("too large: %v", err)
	}
	o, err := s.NewOverlay(testID(1), Origin{Ino: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.WriteAt(randomBytes(2, 5000), 100); err != nil {
		t.Fatal(err)
	}
	filler, err := os.Create(dir + "/filler")
	if err != nil {
		t.Fatal(err)
	}
	for err == nil { // another program fills the disk
		_, err = filler.Write(make([]byte, PageBytes))
	}
	if _, err := o.WriteAt(randomBytes(3, 100_000), BlockBytes); !errors.Is(err, ErrNoSpace) {
		t.Fatalf("overlay write on a full disk: %v", err)
	}
	if _, err := s.Begin(testID(3), Shape{Size: 1}); !errors.Is(err, ErrNoSpace) {
		t.Fatalf("begin on a full disk: %v", err)
	}
	want := bytes.Clone(base)
	copy(want[100:], randomBytes(2, 5000))
	got := make([]byte, len(want))
	if _, err := o.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("overlay after a failed write differs at %d: %v", firstDiff(got, want), err)
	}
	wantContent(t, s, testID(1), base)
	if err := errors.Join(filler.Close(), os.Remove(filler.Name())); err != nil {
		t.Fatal(err)
	}
	put(t, s, testID(3), Shape{Size: 100}, randomBytes(4, 100))
	if err := o.Drop(); err != nil {
		t.Fatal(err)
	}
	if sp, err := s.space.check(0); err != nil || sp.Level == LevelFull {
		t.Fatalf("space: %+v, %v", sp, err)
	}
}

// TestNoAllocationPerBlock holds the data path to its promise.
func TestNoAllocationPerBlock(t *testing.T) {
	s := openStore(t, t.TempDir(), Options{})
	const blocks = 64
	p := randomBytes(1, BlockBytes)
	r, err := s.Begin(testID(1), Shape{Size: blocks * BlockBytes})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Discard()
	i := int64(0)
	got := testing.AllocsPerRun(blocks-2, func() {
		if err := r.WriteBlock(i, p, nil); err != nil {
			t.Fatal(err)
		}
		i++
	})
	if got > 0 {
		t.Errorf("%v allocations per block written", got)
	}
	buf := make([]byte, BlockBytes)
	const runs = 100 // what goes on in the background counts too, and must not come to one for each
	if got := testing.AllocsPerRun(runs, func() {
		if err := r.ReadBlock(1, buf); err != nil {
			t.Fatal(err)
		}
	}); got > 0 {
		t.Errorf("%v allocations per block read", got)
	}
	if got := testing.AllocsPerRun(runs, func() { Leaf(buf) }); got > 0 {
		t.Errorf("%v allocations per leaf", got)
	}
}

// A content that was deleted while it is read is still there under its name: a second store of it must not begin
// before the reader has ended, and a delta below it keeps its base. Only with the last reader its files go.
func TestReadersKeepTheFiles(t *testing.T) {
	s := openStore(t, t.TempDir(), Options{})
	want := randomBytes(1, BlockBytes+5)
	shape := Shape{Size: int64(len(want))}
	put(t, s, testID(1), shape, want)
	var readers []*Reader
	for range 2 {
		r, err := s.Open(testID(1))
		must(t, err)
		readers = append(readers, r)
	}
	must(t, s.Delete(testID(1)))
	for i, r := range readers {
		if files := heldFiles(t, s.files.dir); len(files) == 0 {
			t.Fatalf("the files went with %d readers left", len(readers)-i)
		}
		if _, err := s.Put(t.Context(), testID(1), shape, bytes.NewReader(want)); err == nil {
			t.Fatal("stored a second time while the first is read")
		}
		must(t, r.Close())
	}
	if files := heldFiles(t, s.files.dir); len(files) != 0 {
		t.Fatalf("left over: %v", files)
	}
	put(t, s, testID(1), shape, want)
	wantContent(t, s, testID(1), want)
}

// An abort that comes late, or is applied again, must not take what the log has committed.
func TestAbortLeavesCommittedContents(t *testing.T) {
	s := openStore(t, t.TempDir(), Options{})
	want := randomBytes(1, 5000)
	put(t, s, testID(1), Shape{Size: int64(len(want))}, want)
	if err := s.Abort(testID(1)); !errors.Is(err, ErrExists) {
		t.Fatalf("abort of a committed content: %v", err)
	}
	wantContent(t, s, testID(1), want)
	if _, err := s.Put(t.Context(), testID(2), Shape{Size: int64(len(want))}, bytes.NewReader(want)); err != nil {
		t.Fatal(err)
	}
	must(t, s.Abort(testID(2)))
	if _, ok := s.State(testID(2)); ok {
		t.Fatal("an undecided content outlives its abort")
	}
}
