package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// beProgramEnv makes the test binary the program itself.
const beProgramEnv = "EXAMPLE_MULTICAST"

func TestMain(m *testing.M) {
	if os.Getenv(beProgramEnv) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// member runs one process.
func member(ctx context.Context, rank int, room, file string) (string, error) {
	cmd := exec.CommandContext(ctx, os.Args[0], "-rank", strconv.Itoa(rank), "-members", "3", "-room", room, "-file", file)
	cmd.Env = append(os.Environ(), beProgramEnv+"=1")
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// freeRoom is an address that nobody listens at. Connections of other tests beside do not take its port: they have
// another address.
func freeRoom(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.77.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func TestThreeProcesses(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	dir, room := t.TempDir(), freeRoom(t)
	want := make([]byte, 3<<20+17)
	rand.NewChaCha8([32]byte{9}).Read(want)
	name := func(rank int) string { return filepath.Join(dir, fmt.Sprint("file", rank)) }
	if err := os.WriteFile(name(0), want, 0o600); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for rank := range 3 {
		wg.Go(func() {
			out, err := member(ctx, rank, room, name(rank))
			if want := fmt.Sprintf("rank %d has %s and so have all others\n", rank, name(rank)); err != nil || out != want {
				t.Errorf("rank %d: %v: %s", rank, err, out)
			}
		})
	}
	wg.Wait()
	for rank := 1; rank < 3; rank++ {
		if got, err := os.ReadFile(name(rank)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("rank %d has %d bytes, %v", rank, len(got), err)
		}
	}
}

// TestNothingToSend: when the root has no file, all members get an error.
func TestNothingToSend(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	dir, room := t.TempDir(), freeRoom(t)
	var wg sync.WaitGroup
	for rank := range 3 {
		wg.Go(func() {
			out, err := member(ctx, rank, room, filepath.Join(dir, fmt.Sprint("missing", rank)))
			want := "aborted, suspects [], reported by 0"
			if rank == 0 {
				want = "no such file"
			}
			if err == nil || ctx.Err() != nil || !strings.Contains(out, want) {
				t.Errorf("rank %d: %v: %s", rank, err, out)
			}
		})
	}
	wg.Wait()
}
