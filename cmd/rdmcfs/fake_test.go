package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/node"
	"github.com/rdmcfs/rdmcfs/meta"
)

// beProgramEnv makes the test binary the program itself, with a made-up node, so that daemons in the background
// and foreground mounts are real processes.
const beProgramEnv = "RDMCFS_TEST_PROGRAM"

func TestMain(m *testing.M) {
	fakeNode()
	if name := os.Getenv(beProgramEnv); name != "" {
		if os.Args[0] != programName { // a daemon in the background has its name already
			os.Args[0] = name
		}
		main()
	}
	os.Exit(m.Run())
}

// fakeNode replaces internal/node: directories are made, mounts are remembered, nothing is stored.
func fakeNode() {
	nodeInit = func(_ context.Context, p initParams) (admin.Token, error) {
		marker := filepath.Join(p.Data, "node")
		if _, err := os.Stat(marker); err == nil {
			return admin.Token{}, withCode(8, "a node lives in %s already", p.Data)
		}
		if err := os.MkdirAll(p.Data, 0o700); err != nil {
			return admin.Token{}, err
		}
		return admin.Token{Token: "rdmcfs1_secret", Listen: p.Listen}, os.WriteFile(marker, []byte(p.Name), 0o600)
	}
	nodeJoin = func(_ context.Context, p joinParams) (string, error) {
		if p.Token != "rdmcfs1_secret" {
			return "", fmt.Errorf("control: join: %w", control.ErrTokenUnknown)
		}
		if err := os.MkdirAll(p.Data, 0o700); err != nil {
			return "", err
		}
		return p.Name, os.WriteFile(filepath.Join(p.Data, "node"), []byte(p.Name), 0o600)
	}
	nodeRun = runFake
	nodeRemaining = func(string) (admin.Remaining, error) {
		return admin.Remaining{Node: 2, Name: "n2\x1b[2J", Generation: 1, Votes: true, Term: 5, Index: 77, Files: 3,
			Nodes: []admin.RemainingNode{{ID: 1, Name: "n1", Addr: "10.0.0.1:7400", Voter: true}}}, nil
	}
	nodeRecover = func(_ context.Context, c node.RecoverConfig) (uint32, error) {
		return max(c.Generation, 1234), nil
	}
}

// auditFake has a row of each kind.
func auditFake(context.Context) ([]admin.AuditRow, error) {
	root, anna, at := uint32(0), uint32(1000), time.Unix(1_700_000_000, 0)
	return []admin.AuditRow{
		{Index: 3, Time: at, Node: 1, NodeName: "n1", Command: "rdmcfs token", Ended: true},
		{Index: 9, Time: at, Node: 1, NodeName: "n1", UID: &root, Login: &anna, Command: "rdmcfs evict \x1b[2J",
			Ended: true, Error: "no node\n"},
		{Index: 12, Time: at, Node: 2, NodeName: "n2", UID: &root, Login: &root, Command: "rdmcfs drain n1"},
	}, nil
}

// restoreSlowly takes longer than any other request may, except for removed files.
func restoreSlowly(ctx context.Context, req admin.RestoreRequest, tell func(admin.Progress)) (admin.Version, error) {
	if req.Removed {
		return restoreRemoved(req)
	}
	tell(admin.Progress{Bytes: 1 << 20, SizeBytes: 4 << 20})
	select {
	case <-time.After(askTimeout + time.Second):
		return admin.Version{Path: "a/b", Version: 3, Content: req.Content}, nil
	case <-ctx.Done():
		return admin.Version{}, ctx.Err()
	}
}

// scrubFake finds nothing at whole, and two damaged contents elsewhere.
func scrubFake(_ context.Context, req admin.ScrubRequest, tell func(admin.Progress)) (admin.ScrubResult, error) {
	tell(admin.Progress{Bytes: 1 << 20, SizeBytes: 4 << 20, Mending: 2})
	switch {
	case req.Path == "link":
		return admin.ScrubResult{}, admin.Errorf(admin.CodeInvalid, "/link is a symbolic link: name what it leads to")
	case req.Path == "whole":
		return admin.ScrubResult{Contents: 1, SizeBytes: req.BytesPerSec}, nil
	}
	return admin.ScrubResult{Contents: 5, SizeBytes: 4 << 20, Damaged: 2, Mended: 1, List: []admin.ScrubDamage{
		{Path: "/d/f\x1b[2J", Version: 3, State: "retained", Reason: "no other node holds it"},
		{Path: "/g", Version: 1, State: "current", Blocks: 2, Mended: true}}}, nil
}

// fsckFake finds nothing at whole, and three things elsewhere.
func fsckFake(
	_ context.Context, req admin.FsckRequest, tell func(admin.Progress), take func(admin.FsckFinding) error,
) (admin.FsckResult, error) {
	tell(admin.Progress{Step: "n\x1b2", Count: 3, Of: 4})
	r := admin.FsckResult{Index: 77, Inodes: 4, Contents: 1, SizeBytes: 1 << 20, Nodes: []admin.FsckNode{
		{Node: 1, Name: "n1", Checked: true}, {Node: 2, Name: "n\x1b2", Checked: req.Path == "whole"}}}
	if req.Path == "whole" {
		return r, nil
	}
	for _, f := range []admin.FsckFinding{
		{Kind: admin.FsckDamaged, Path: "/d/f\x1b[2J", Version: 3, Node: 2, Name: "n\x1b2", Count: 1,
			Text: "its files are gone"},
		{Kind: admin.FsckOwed, Name: "n3", Count: 7, SizeBytes: 2 << 20, Paths: []string{"/a\x1b", "/b"}, Heals: true,
			Text: "they are owed to it: slow"},
		{Kind: admin.FsckUnneeded, Name: "n1", Count: 2, Text: "nothing needs them"},
	} {
		r.Findings++
		if !f.Heals {
			r.Left++
		}
		if req.Contents && !f.Heals {
			continue
		}
		if err := take(f); err != nil {
			return r, err
		}
	}
	if req.Contents {
		r.Findings, r.Left, r.Nodes[0].UnneededCount, r.Nodes[0].UnneededBytes = 1, 0, 5, 1<<20
	}
	return r, nil
}

// backupFake gives the state of an empty cluster.
func backupFake(_ context.Context, to io.Writer) error {
	s, _, err := meta.OpenMemory().Snapshot()
	if err != nil {
		return err
	}
	_, err = io.Copy(to, s)
	return errors.Join(err, s.Close())
}

// restoreRemoved knows the removed file d/f.
func restoreRemoved(req admin.RestoreRequest) (admin.Version, error) {
	switch {
	case req.Path != "d/f":
		return admin.Version{}, admin.Errorf(admin.CodeNotFound, "/%s: no such removed file is kept", req.Path)
	case req.As == "" && !req.Drop:
		return admin.Version{}, admin.Errorf(admin.CodeExists, "a file of that name exists")
	}
	return admin.Version{Path: "/" + req.As, Version: max(req.Version, 9), SizeBytes: 5}, nil
}

// versionsOf has one removed file in the root, and none below d.
func versionsOf(_ context.Context, req admin.VersionsRequest) ([]admin.Version, error) {
	if req.Path == "d" && req.Removed || req.Path == "" {
		return nil, nil
	}
	if req.Path == "many" {
		return slices.Repeat([]admin.Version{{Path: "/many/f", Removed: time.Unix(1e9, 0)}}, admin.VersionsMost), nil
	}
	return []admin.Version{{Path: req.Path + "f\x1b[2J", Version: 4, SizeBytes: 5, State: "removed", Content: "removed-2a",
		Removed: time.Unix(1e9, 0), Remover: 3, Expires: time.Unix(2e9, 0)}}, nil
}

// policySlowly takes as long for the directories below.
func policySlowly(ctx context.Context, req admin.PolicyRequest) (admin.Policy, error) {
	if !req.Recursive {
		return admin.Policy{Placement: "all"}, nil
	}
	select {
	case <-time.After(askTimeout + time.Second):
		return admin.Policy{Placement: req.Change.Placement, Copies: req.Change.Copies}, nil
	case <-ctx.Done():
		return admin.Policy{}, ctx.Err()
	}
}

// fakeDaemon answers on the socket like a node without content.
type fakeDaemon struct {
	mu     sync.Mutex
	mounts map[string]chan struct{} // closed at the end of the mount
	stop   context.CancelFunc
	// rebuilding says that the node has no state yet: it answers, and makes its mounts afterwards.
	rebuilding bool
}

// madeLater is a mount of a node whose state is rebuilt at the start. So is that of a node with a file rottenState.
const (
	madeLater   = "/mnt/later"
	rottenState = "rotten"
)

// rebuild takes a second. Then come the mounts that the node was started with.
func (d *fakeDaemon) rebuild(mounts ...admin.MountRequest) {
	d.rebuilding = true
	time.AfterFunc(time.Second, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.rebuilding = false
		for _, m := range mounts {
			d.mounts[m.Dir] = make(chan struct{})
		}
	})
}

func runFake(ctx context.Context, p runParams) error {
	if _, err := os.Stat(filepath.Join(p.Data, "node")); err != nil {
		return errors.New("no node lives here: run 'rdmcfs init'")
	}
	p.Log.Info("http", "addr", p.HTTP.Addr, "pprof", p.HTTP.Pprof)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	d := &fakeDaemon{mounts: map[string]chan struct{}{}, stop: stop}
	for _, m := range p.Mounts {
		if m.Dir == madeLater {
			d.rebuild(m)
			continue
		}
		d.mount(ctx, m)
	}
	if _, err := os.Stat(filepath.Join(p.Data, rottenState)); err == nil {
		d.rebuild()
	}
	s, err := admin.Serve(admin.SocketPath(p.Data), admin.Handlers{Status: d.status, Mount: d.mount, Unmount: d.unmount,
		Scrub: scrubFake, Fsck: fsckFake, Backup: backupFake,
		Restore: restoreSlowly, Versions: versionsOf, Policy: policySlowly,
		MountWait: d.wait,
		Stop:      func(context.Context) error { stop(); return nil }, Where: d.where, Audit: auditFake,
		Wait: func(_ context.Context, r admin.WaitRequest) (admin.WaitResult, error) {
			return admin.WaitResult{Nodes: []admin.Node{{Name: "n2", OwedCount: 3, OwedBytes: 4096, OwedReason: "down"}}}, nil
		}}, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	<-ctx.Done()
	return s.Close()
}

func (d *fakeDaemon) status(context.Context) (admin.Status, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	st := admin.Status{State: "serving", Node: 1, Nodes: []admin.Node{{ID: 1, Name: "n1", State: "up"},
		{ID: 2, Name: "n2", State: "down"}}, RemovedKept: 65_000, RemovedMost: 65_536}
	if d.rebuilding {
		st.State, st.Warnings = "rebuilding", []string{"the state is rebuilt"}
	}
	for dir := range d.mounts {
		st.Mounts = append(st.Mounts, admin.Mount{Dir: dir, State: "mounted"})
	}
	return st, nil
}

// goneAtOnce is a mount that somebody ends before anything else is asked of it.
const goneAtOnce = "/mnt/gone"

func (d *fakeDaemon) mount(_ context.Context, r admin.MountRequest) (admin.Mount, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.rebuilding {
		return admin.Mount{}, admin.Errorf(admin.CodeNotOffered, "this node does not offer /v1/mount")
	}
	if d.mounts[r.Dir] != nil {
		return admin.Mount{}, admin.Errorf(admin.CodeExists, "%s is mounted already", r.Dir)
	}
	if r.Dir != goneAtOnce {
		d.mounts[r.Dir] = make(chan struct{})
	}
	return admin.Mount{Dir: r.Dir}, nil
}

func (d *fakeDaemon) unmount(_ context.Context, r admin.UnmountRequest) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	ended := d.mounts[r.Dir]
	if ended == nil {
		return admin.Errorf(admin.CodeNotFound, "%s is no mount", r.Dir)
	}
	close(ended)
	delete(d.mounts, r.Dir)
	return nil
}

func (d *fakeDaemon) wait(ctx context.Context, r admin.MountWaitRequest) error {
	d.mu.Lock()
	ended := d.mounts[r.Dir]
	d.mu.Unlock()
	if ended == nil { // as a node answers: it knows no mount that has ended
		return admin.Errorf(admin.CodeNotFound, "%s is no mount", r.Dir)
	}
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (d *fakeDaemon) where(_ context.Context, r admin.WhereRequest) (admin.Where, error) {
	if r.Path != "a/b" {
		return admin.Where{}, admin.Errorf(admin.CodeNotFound, "/%s: no such file", r.Path)
	}
	return admin.Where{Path: r.Path, Version: 2, SizeBytes: 5 << 20, Policy: admin.Policy{Placement: "copies", Copies: 2},
		Holders: []admin.Holder{{Node: 1, Name: "n1", Holds: true}, {Node: 2, Name: "n2", Reason: "down"}}}, nil
}

// dataDir is a new data directory with a short path; a daemon left in it is stopped.
func dataDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "cli")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		c := admin.NewClient(admin.SocketPath(dir))
		if c.Stop(ctx) == nil {
			c.Gone(ctx)
		}
		os.RemoveAll(dir)
	})
	return dir
}

// program prepares this test binary as rdmcfs.
func program(args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), beProgramEnv+"=rdmcfs", "GORACE=atexit_sleep_ms=0")
	return cmd
}

// rdmcfs runs a command to its end and returns what it printed and its exit code.
func rdmcfs(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := program(args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// expect runs a command that must end with a code and print a text somewhere.
func expect(t *testing.T, code int, text string, args ...string) string {
	t.Helper()
	out, errs, got := rdmcfs(t, args...)
	if got != code || !strings.Contains(out+errs, text) {
		t.Errorf("rdmcfs %s: exit %d, want %d with %q\n%s%s", strings.Join(args, " "), got, code, text, out, errs)
	}
	return out
}

// foreground starts a command that stays, and waits until it has printed a text.
func foreground(t *testing.T, until string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := program(args...)
	pipe, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	seen := make(chan string, 1)
	go func() {
		var text []byte
		buf := make([]byte, 4096)
		for !strings.Contains(string(text), until) {
			n, err := pipe.Read(buf)
			if text = append(text, buf[:n]...); err != nil {
				break
			}
		}
		seen <- string(text)
	}()
	select {
	case text := <-seen:
		if !strings.Contains(text, until) {
			t.Fatalf("rdmcfs %v ended: %s", args, text)
		}
	case <-time.After(20 * time.Second):
		t.Fatalf("rdmcfs %v: no %q", args, until)
	}
	return cmd
}

// ends waits for the end of a foreground command.
func ends(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	stop := time.AfterFunc(20*time.Second, func() { cmd.Process.Signal(syscall.SIGQUIT) })
	defer stop.Stop()
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %v", cmd.Args[1:], err)
	}
}
