package admin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shortSocket is a path for a socket in a directory of its own. The path of a socket is limited.
func shortSocket(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "adm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return SocketPath(dir)
}

func serve(t *testing.T, h Handlers) (*Client, string, *Server) {
	t.Helper()
	path := shortSocket(t)
	s, err := Serve(path, h, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return NewClient(path), path, s
}

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestQueriesCarryRequestAndAnswer(t *testing.T) {
	want := Status{Cluster: "c", Node: 2, State: "serving", Voters: []uint32{1, 2},
		Nodes:       []Node{{ID: 1, Name: "a", LastSeen: time.Unix(5, 0).UTC()}},
		Transfers:   []Transfer{{Session: "s", SizeBytes: 1 << 40, Members: []TransferMember{{Node: 1, Bytes: 7}}}},
		Passthrough: Feature{Why: "old", Cost: "slow"}}
	var got any
	c, _, _ := serve(t, Handlers{
		Status: func(context.Context) (Status, error) { return want, nil },
		Mount:  func(_ context.Context, r MountRequest) (Mount, error) { got = r; return Mount{Dir: r.Dir}, nil },
		Evict: func(_ context.Context, r EvictRequest) (EvictResult, error) {
			got = r
			return EvictResult{Lost: 2}, nil
		},
		Drain: func(_ context.Context, r DrainRequest) (DrainState, error) {
			return DrainState{Node: r.Node, NeededCount: 3}, nil
		},
		Upgrade: func(_ context.Context, r UpgradeRequest) (Upgrade, error) {
			got = r
			return Upgrade{Format: 2, Nodes: []UpgradeNode{{ID: 1}}}, nil
		},
		Versions: func(context.Context, VersionsRequest) ([]Version, error) { return []Version{{Version: 3}}, nil },
	})
	st, err := c.Status(bounded(t))
	if diff := cmp.Diff(want, st); err != nil || diff != "" {
		t.Errorf("%v, %s", err, diff)
	}
	req := MountRequest{Dir: "/m", Options: map[string]string{"ro": ""}}
	m, err := c.Mount(bounded(t), req)
	if diff := cmp.Diff(any(req), got); err != nil || m.Dir != "/m" || diff != "" {
		t.Errorf("%+v, %v, %s", m, err, diff)
	}
	lost, err := c.Evict(bounded(t), EvictRequest{Node: 4, Reason: "gone"})
	if err != nil || lost.Lost != 2 || got != (EvictRequest{Node: 4, Reason: "gone"}) {
		t.Errorf("%v, %v, %v", got, lost, err)
	}
	if st, err := c.Drain(bounded(t), DrainRequest{Node: 4}); err != nil || st.Node != 4 || st.NeededCount != 3 {
		t.Errorf("%v, %v", st, err)
	}
	up, err := c.Upgrade(bounded(t), UpgradeRequest{Finish: true})
	if err != nil || up.Format != 2 || len(up.Nodes) != 1 || got != (UpgradeRequest{Finish: true}) {
		t.Errorf("%v, %+v, %v", got, up, err)
	}
	if vs, err := c.Versions(bounded(t), VersionsRequest{}); err != nil || len(vs) != 1 || vs[0].Version != 3 {
		t.Errorf("%v, %v", vs, err)
	}
}

func TestErrorsKeepCodeAndHint(t *testing.T) {
	c, _, _ := serve(t, Handlers{
		Where: func(context.Context, WhereRequest) (Where, error) {
			return Where{}, fmt.Errorf("node: %w", &Error{Code: CodeNotFound, Message: "no such file", Hint: "look again"})
		},
		Status: func(context.Context) (Status, error) { return Status{}, errors.New("odd") },
	})
	_, err := c.Where(bounded(t), WhereRequest{})
	if CodeOf(err) != CodeNotFound || !strings.Contains(err.Error(), "no such file") ||
		!strings.Contains(err.Error(), "look again") {
		t.Errorf("%v", err)
	}
	if _, err := c.Status(bounded(t)); CodeOf(err) != CodeFailed || err.Error() != "odd" {
		t.Errorf("%v", err)
	}
	if _, err := c.Token(bounded(t), TokenRequest{}); CodeOf(err) != CodeNotOffered {
		t.Errorf("%v", err)
	}
	if err := c.Metrics(bounded(t), io.Discard); err == nil {
		t.Error("metrics without a handler")
	}
}

func TestNobodyThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), SocketName)
	if _, err := NewClient(path).Status(bounded(t)); CodeOf(err) != CodeNotRunning {
		t.Errorf("no socket: %v", err)
	}
	notDir := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(notDir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := NewClient(SocketPath(notDir)).Status(bounded(t)); CodeOf(err) != CodeNotRunning {
		t.Errorf("no directory: %v", err)
	}
	long := SocketPath(filepath.Join(t.TempDir(), strings.Repeat("x", 100)))
	if err := NewClient(long).StopAndWait(bounded(t)); !errors.Is(err, ErrLongPath) {
		t.Errorf("a long path: %v", err)
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Skip("path too long here") // temporary directories may be deep
	}
	ln.SetUnlinkOnClose(false)
	ln.Close()
	if _, err := NewClient(path).Status(bounded(t)); CodeOf(err) != CodeNotRunning {
		t.Errorf("dead socket: %v", err)
	}
	s, err := Serve(path, Handlers{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatalf("over a dead socket: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left behind: %v", err)
	}
}

func TestSocketIsPrivate(t *testing.T) {
	_, path, _ := serve(t, Handlers{})
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("%v, %v", entries, err)
	}
	if _, err := Serve("/"+strings.Repeat("x", 200), Handlers{}, slog.New(slog.DiscardHandler)); err == nil ||
		!strings.Contains(err.Error(), "--data") {
		t.Errorf("long path: %v", err)
	}
}

func TestBadRequestsAreRefused(t *testing.T) {
	c, _, _ := serve(t, Handlers{Mount: func(context.Context, MountRequest) (Mount, error) {
		t.Error("called")
		return Mount{}, nil
	}})
	for name, body := range map[string]string{"no JSON": "hello", "unknown field": `{"dir":"/m","force":true}`,
		"wrong type": `{"dir":7}`, "endless": `{"dir":"` + strings.Repeat("x", 2<<20) + `"}`} {
		resp, err := c.do(bounded(t), http.MethodPost, "/v1/mount", []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		if err := decodeError(resp); CodeOf(err) != CodeInvalid || resp.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %s, %v", name, resp.Status, err)
		}
		resp.Body.Close()
	}
}

func TestWatch(t *testing.T) {
	c, _, _ := serve(t, Handlers{Watch: func(ctx context.Context, r WatchRequest, send func(Event) error) error {
		for i := range 3 {
			if err := send(Event{Kind: "message", Message: fmt.Sprint(r.Path, i)}); err != nil {
				return err
			}
		}
		if r.Path == "bad" {
			return Errorf(CodeNotFound, "no such path")
		}
		<-ctx.Done()
		return ctx.Err()
	}})
	var got []string
	err := c.Watch(bounded(t), WatchRequest{Path: "bad"}, func(ev Event) error {
		got = append(got, ev.Message)
		return nil
	})
	if diff := cmp.Diff([]string{"bad0", "bad1", "bad2"}, got); diff != "" || CodeOf(err) != CodeNotFound {
		t.Errorf("%v, %s", err, diff)
	}
	enough := errors.New("enough")
	if err := c.Watch(bounded(t), WatchRequest{}, func(Event) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("ended by the reader: %v", err)
	}
	ctx, cancel := context.WithCancel(bounded(t))
	err = c.Watch(ctx, WatchRequest{}, func(ev Event) error {
		if ev.Message == "2" {
			cancel()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("ended by the context: %v", err)
	}
}

// A daemon that is killed is no orderly end of watch.
func TestWatchOfADaemonThatIsKilled(t *testing.T) {
	path := shortSocket(t)
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		_, _ = conn.Read(make([]byte, 4096))
		_, _ = conn.Write([]byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"))
		conn.Close()
	}()
	err = NewClient(path).Watch(bounded(t), WatchRequest{}, func(Event) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "without a word") {
		t.Errorf("%v", err)
	}
}

func TestCloseEndsWhatRuns(t *testing.T) {
	started := make(chan struct{})
	c, _, s := serve(t, Handlers{MountWait: func(ctx context.Context, _ MountWaitRequest) error {
		close(started)
		<-ctx.Done()
		return ctx.Err()
	}})
	done := make(chan error, 1)
	go func() { done <- c.MountWait(bounded(t), MountWaitRequest{}) }()
	<-started
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; err == nil {
		t.Error("the request succeeded")
	}
	if err := c.Gone(bounded(t)); err != nil {
		t.Error(err)
	}
}

func TestReadyWaitsForTheEndOfTheStart(t *testing.T) {
	asked := 0
	c, _, _ := serve(t, Handlers{
		Status: func(context.Context) (Status, error) {
			if asked++; asked < 3 {
				return Status{State: "starting"}, nil
			}
			return Status{State: "serving"}, nil
		},
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "x 1\n") }),
	})
	if st, err := c.Ready(bounded(t)); err != nil || st.State != "serving" || asked != 3 {
		t.Errorf("%v, %v after %d", st, err, asked)
	}
	var b bytes.Buffer
	if err := c.Metrics(bounded(t), &b); err != nil || b.String() != "x 1\n" {
		t.Errorf("%q, %v", b.String(), err)
	}
	// within which it is asked for once, also on a late machine
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if _, err := NewClient("/nonexistent").Ready(ctx); err == nil || !strings.Contains(err.Error(), "no daemon answers") {
		t.Errorf("nobody: %v", err)
	}
}

func FuzzRequest(f *testing.F) {
	f.Add([]byte(`{"path":"x","set":{"placement":"all","labels":{"a":"b"}}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		h := Handlers{Policy: func(_ context.Context, r PolicyRequest) (Policy, error) { return Policy{}, nil }}
		req, err := http.NewRequest(http.MethodPost, "/v1/policy", bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		h.mux(slog.New(slog.DiscardHandler)).ServeHTTP(discard{}, req)
	})
}

type discard struct{}

func (discard) Header() http.Header         { return http.Header{} }
func (discard) Write(b []byte) (int, error) { return len(b), nil }
func (discard) WriteHeader(int)             {}

// A handler knows whose command it is.
func TestCallerOf(t *testing.T) {
	var who Caller
	c, _, _ := serve(t, Handlers{Audit: func(ctx context.Context) ([]AuditRow, error) {
		who = CallerOf(ctx)
		return []AuditRow{{Command: who.Command}}, nil
	}})
	rows, err := c.Audit(bounded(t))
	if err != nil || len(rows) != 1 || who.UID != uint32(os.Getuid()) ||
		!strings.HasPrefix(rows[0].Command, filepath.Base(os.Args[0])+" ") || strings.Contains(rows[0].Command, "\x00") {
		t.Errorf("%+v, %+v, %v", rows, who, err)
	}
	if none := CallerOf(bounded(t)); none.UID != NoUser || none.Login != NoUser || none.Command != "" {
		t.Errorf("not asked through a socket: %+v", none)
	}
}

func TestCommandOf(t *testing.T) {
	cmd := exec.Command("/bin/cat")
	cmd.Args = []string{"/usr/bin/rdmcfs", "-", "/mnt/a b", "\x1b[2J", ""} // the first file is the pipe: it waits
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := int32(cmd.Process.Pid)
	ctx := bounded(t)
	got := commandOf(pid)
	for got == "" && ctx.Err() == nil { // Start returns a moment before the kernel shows the arguments
		got = commandOf(pid)
	}
	in.Close()
	for alive := true; alive && ctx.Err() == nil; {
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		alive = !strings.Contains(string(stat), ") Z ")
	}
	if ended := commandOf(pid); ended != "" {
		t.Errorf("of a process that has ended and is not waited for: %q", ended)
	}
	cmd.Wait()
	if want := "rdmcfs - \"/mnt/a b\" \x1b[2J"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if gone := commandOf(pid); gone != "" {
		t.Errorf("of a process that has ended: %q", gone)
	}
}
