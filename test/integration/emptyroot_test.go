package integration

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/exitcode"
	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// root is a directory that programs run in as if it were the machine.
type root struct {
	t   *testing.T
	dir string
}

// newRoot makes a root that holds only the program and the libraries that it asks the loader for.
func newRoot(t *testing.T, program string) *root {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "rdmcfs-root")
	if err != nil {
		t.Fatal(err)
	}
	r := &root{t, dir}
	t.Cleanup(func() { os.RemoveAll(dir) })
	r.copy(program, "/rdmcfs")
	loader, libraries := needs(t, program)
	if loader != "" {
		r.copy(loader, loader)
	}
	for _, name := range libraries {
		found, err := filepath.Glob("/lib/" + map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH] +
			"-linux-gnu/" + name)
		if err != nil || len(found) != 1 {
			t.Fatalf("library %s: %q, %v", name, found, err)
		}
		r.copy(found[0], found[0])
	}
	return r
}

// needs returns the loader and the libraries of a program; both are empty for a static one.
func needs(t *testing.T, program string) (loader string, libraries []string) {
	t.Helper()
	f, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			b := make([]byte, p.Filesz)
			if _, err := p.ReadAt(b, 0); err != nil {
				t.Fatal(err)
			}
			loader = strings.TrimRight(string(b), "\x00")
		}
	}
	libraries, err = f.ImportedLibraries()
	if err != nil {
		t.Fatal(err)
	}
	return loader, libraries
}

func (r *root) copy(from, to string) {
	r.t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		r.t.Fatal(err)
	}
	to = filepath.Join(r.dir, to)
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(to, b, 0o755); err != nil {
		r.t.Fatal(err)
	}
}

// furnish adds what every container gives to the program: /proc, /dev/fuse and /dev/null.
func (r *root) furnish() {
	r.t.Helper()
	for _, dir := range []string{"proc", "dev", "mnt", "data"} {
		if err := os.Mkdir(filepath.Join(r.dir, dir), 0o755); err != nil {
			r.t.Fatal(err)
		}
	}
	proc := filepath.Join(r.dir, "proc")
	if err := syscall.Mount("proc", proc, "proc", 0, ""); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { syscall.Unmount(proc, syscall.MNT_DETACH) })
	for name, number := range map[string]int{"fuse": 10<<8 | 229, "null": 1<<8 | 3} {
		if err := syscall.Mknod(filepath.Join(r.dir, "dev", name), syscall.S_IFCHR|0o666, number); err != nil {
			r.t.Fatal(err)
		}
	}
}

// command prepares the program within the root.
func (r *root) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/rdmcfs", args...)
	cmd.Dir, cmd.Env = "/", []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: r.dir}
	return cmd
}

// run runs the program to its end, which must be with that code, and returns all that it printed.
func (r *root) run(code int, args ...string) string {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	out, err := r.command(ctx, args...).CombinedOutput()
	got := 0
	if exit, ok := err.(*exec.ExitError); ok {
		got = exit.ExitCode()
	} else if err != nil {
		r.t.Fatalf("%v: %v", args, err)
	}
	if got != code {
		r.t.Fatalf("%v: exit code %d, want %d\n%s", args, got, code, out)
	}
	return string(out)
}

// node runs a node with a mount, writes a file and reads it back, and ends it. It returns the node's status.
func (r *root) node() (st admin.Status) {
	t := r.t
	t.Helper()
	r.run(exitcode.OK, "init", "--no-start", "--listen", freeAddr(t), "--name", "alone", "--data", "/data")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	daemon := r.command(ctx, "mount", "/mnt", "--data", "/data")
	var log bytes.Buffer
	daemon.Stdout, daemon.Stderr = &log, &log
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- daemon.Wait() }()
	mount := filepath.Join(r.dir, "mnt")
	t.Cleanup(func() { syscall.Unmount(mount, syscall.MNT_DETACH) })
	for len(st.Mounts) == 0 {
		select {
		case err := <-ended:
			t.Fatalf("the daemon ended: %v\n%s", err, log.String())
		case <-time.After(50 * time.Millisecond):
		}
		if out, err := r.command(ctx, "status", "--json", "--data", "/data").Output(); err == nil {
			if err := json.Unmarshal(out, &st); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := []byte("written on a mount in an empty root")
	if err := os.WriteFile(filepath.Join(mount, "file"), want, 0o644); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(filepath.Join(mount, "file")); err != nil || !bytes.Equal(got, want) {
		t.Errorf("read %q, %v", got, err)
	}
	daemon.Process.Signal(syscall.SIGTERM)
	if err := <-ended; err != nil {
		t.Errorf("the daemon ended with %v\n%s", err, log.String())
	}
	return st
}

// freeAddr is an address that nobody listens at, and that no connection of another program takes meanwhile: those
// have another address.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.77.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func mustSay(t *testing.T, what, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("%s does not say %q:\n%s", what, w, text)
		}
	}
}

// The build without verbs is static: it needs nothing of the machine but /proc, /dev/fuse and /dev/null.
func TestStaticBuildInAnEmptyRoot(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "rdmcfs")
	build := exec.Command("go", "build", "-trimpath", "-tags", "nordma", "-o", program, "./cmd/rdmcfs")
	build.Dir, build.Env = cluster.Root(t), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if loader, libraries := needs(t, program); loader != "" || len(libraries) > 0 {
		t.Fatalf("not static: loader %q, libraries %q", loader, libraries)
	}
	r := newRoot(t, program)
	mustSay(t, "help", r.run(exitcode.OK, "--help"), "rdmcfs", "doctor", "mount")
	mustSay(t, "doctor without /dev/fuse", r.run(exitcode.Problem, "doctor", "--data", "/"), "/dev/fuse",
		"built without it")
	mustSay(t, "doctor", r.run(exitcode.Problem, "doctor", "--fabric", "verbs", "--data", "/"), "verbs was asked for")
	r.furnish()
	mustSay(t, "doctor", r.run(exitcode.OK, "doctor", "--data", "/data"), "built without it", "tcp: data goes over TCP")
	if st := r.node(); !strings.HasPrefix(st.Fabric, "tcp ") {
		t.Errorf("fabric %q", st.Fabric)
	}
	mustSay(t, "mount", r.run(exitcode.Problem, "mount", "/mnt", "--fabric", "verbs", "--data", "/data"), "without verbs",
		"--fabric auto")
}

// The usual build starts where libibverbs is not installed, says so, and uses TCP.
func TestDefaultBuildWithoutLibibverbs(t *testing.T) {
	t.Parallel()
	program := cluster.Binary(t)
	if _, libraries := needs(t, program); len(libraries) == 0 {
		t.Fatal("the program is static: it can load no library at run time")
	}
	r := newRoot(t, program)
	r.furnish()
	mustSay(t, "doctor", r.run(exitcode.OK, "doctor", "--data", "/data"), "no libibverbs", "libibverbs1",
		"tcp: data goes over TCP")
	mustSay(t, "doctor", r.run(exitcode.Problem, "doctor", "--fabric", "verbs", "--data", "/data"), "verbs was asked for",
		"libibverbs1")
	if st := r.node(); !strings.HasPrefix(st.Fabric, "tcp ") {
		t.Errorf("fabric %q", st.Fabric)
	}
	refused := r.run(exitcode.Problem, "mount", "/mnt", "--fabric", "verbs", "--data", "/data")
	mustSay(t, "mount", refused, "no libibverbs", "libibverbs1", "--fabric auto")
}
