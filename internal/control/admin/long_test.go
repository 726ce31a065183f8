package admin

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"
)

// A restore takes as long as it takes: the client goes on while the daemon gives signs of life, and hears how far it
// is.
func TestLongAnswerOutlivesTheSilenceLimit(t *testing.T) {
	goOn := make(chan struct{})
	c, _, _ := serve(t, Handlers{Restore: func(ctx context.Context, req RestoreRequest, tell func(Progress)) (Version,
		error) {
		tell(Progress{Bytes: 7, SizeBytes: 9})
		select {
		case <-goOn:
			return Version{Path: req.Path}, nil
		case <-ctx.Done():
			return Version{}, ctx.Err()
		}
	}})
	c.silence = 5 * aliveEvery // a loaded machine may be late with some
	told := 0
	v, err := c.Restore(t.Context(), RestoreRequest{Path: "/a\xff"}, func(p Progress) {
		if p != (Progress{Bytes: 7, SizeBytes: 9}) {
			t.Errorf("progress %+v", p)
		}
		if told++; told == 8 {
			close(goOn)
		}
	})
	if err != nil || v.Path != "/a\xff" || told < 8 {
		t.Fatalf("%+v, %v after %d reports", v, err, told)
	}
}

func TestLongAnswerIsAnError(t *testing.T) {
	c, _, _ := serve(t, Handlers{Restore: func(context.Context, RestoreRequest, func(Progress)) (Version, error) {
		return Version{}, Errorf(CodeExists, "it exists")
	}})
	if _, err := c.Restore(t.Context(), RestoreRequest{}, nil); CodeOf(err) != CodeExists {
		t.Fatal(err)
	}
}

// The parts of a long answer come in order, all of them, before the rest; and the work waits for a client that takes
// its time. An error of the client's ends both.
func TestLongAnswerInParts(t *testing.T) {
	ended := make(chan error, 2)
	c, _, _ := serve(t, Handlers{Fsck: func(ctx context.Context, req FsckRequest, _ func(Progress),
		take func(FsckFinding) error) (FsckResult, error) {
		for i := range 5000 {
			if err := take(FsckFinding{Kind: FsckLost, Path: req.Path, Count: i}); err != nil {
				ended <- err
				return FsckResult{}, err
			}
		}
		ended <- nil
		return FsckResult{Findings: 5000}, nil
	}})
	next := 0
	r, err := c.Fsck(t.Context(), FsckRequest{Path: "/a\xff"}, nil, func(f FsckFinding) error {
		if f.Count != next || f.Path != "/a\xff" {
			t.Fatalf("finding %d: %+v", next, f)
		}
		next++
		return nil
	})
	if err != nil || r.Findings != 5000 || next != 5000 || <-ended != nil {
		t.Fatalf("%+v, %v after %d parts", r, err, next)
	}
	enough := errors.New("enough")
	if _, err := c.Fsck(t.Context(), FsckRequest{}, nil, func(FsckFinding) error { return enough }); err != enough {
		t.Errorf("a client that has enough: %v", err)
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the work for it: %v", err)
	}
}

// A client that goes away ends the work.
func TestLongAnswerEndsWithItsClient(t *testing.T) {
	began, ended := make(chan struct{}), make(chan struct{})
	c, _, _ := serve(t, Handlers{Restore: func(ctx context.Context, _ RestoreRequest, _ func(Progress)) (Version, error) {
		close(began)
		<-ctx.Done()
		close(ended)
		return Version{}, ctx.Err()
	}})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-began
		cancel()
	}()
	if _, err := c.Restore(ctx, RestoreRequest{}, nil); err == nil {
		t.Fatal("answered")
	}
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the work goes on")
	}
}

// A daemon that is stopped is noticed in bounded time, before its first line and after; so is one that dies.
func TestLongAnswerOfASilentDaemon(t *testing.T) {
	for name, say := range map[string]func(w http.ResponseWriter, r *http.Request){
		"silent": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"silent at the end": func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, "{}\n")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		},
		"dead": func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "{}\n{\"ans") },
	} {
		path := filepath.Join(t.TempDir(), "s")
		ln, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body) // only then the end of the client is noticed
			say(w, r)
		})}
		go server.Serve(ln)
		c := NewClient(path)
		c.silence = 200 * time.Millisecond
		want := CodeTimeout
		if name == "dead" {
			want, c.silence = CodeNotRunning, time.Minute
		}
		if _, err := c.Restore(t.Context(), RestoreRequest{}, nil); CodeOf(err) != want {
			t.Errorf("%s: %v", name, err)
		}
		server.Close()
	}
}
