package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// SocketName is the file name of the socket in a data directory.
const SocketName = "admin.sock"

// SocketPath is where the node of a data directory listens.
func SocketPath(dataDir string) string { return filepath.Join(dataDir, SocketName) }

const (
	requestBytesMax   = 1 << 20
	headerTimeout     = 5 * time.Second
	shutdownTimeout   = 2 * time.Second
	socketPathBytes   = 107 // sun_path of Linux without its final zero
	headerBytesMax    = 16 << 10
	eventWriteTimeout = 10 * time.Second
	// readerTimeout is how long a reader of a fsck or a backup may take nothing, as one in a pager does. Such a request
	// keeps a version of the state, so the disk would fill for one that never goes on.
	readerTimeout = 10 * time.Minute
)

// Handlers are the answers of a node. A nil function answers CodeNotOffered. The context ends when the
// client goes away or the server closes.
type Handlers struct {
	Status    func(context.Context) (Status, error)
	Watch     func(context.Context, WatchRequest, func(Event) error) error
	Mount     func(context.Context, MountRequest) (Mount, error)
	Unmount   func(context.Context, UnmountRequest) error
	MountWait func(context.Context, MountWaitRequest) error // returns when the mount has ended
	Where     func(context.Context, WhereRequest) (Where, error)
	Versions  func(context.Context, VersionsRequest) ([]Version, error)
	// the function may be called from time to time
	Restore func(context.Context, RestoreRequest, func(Progress)) (Version, error)
	Policy  func(context.Context, PolicyRequest) (Policy, error)
	Wait    func(context.Context, WaitRequest) (WaitResult, error)
	Token   func(context.Context, TokenRequest) (Token, error)
	Evict   func(context.Context, EvictRequest) (EvictResult, error)
	Drain   func(context.Context, DrainRequest) (DrainState, error)
	Upgrade func(context.Context, UpgradeRequest) (Upgrade, error)
	// the function may be called from time to time
	Scrub func(context.Context, ScrubRequest, func(Progress)) (ScrubResult, error)
	// the first function may be called from time to time, the second with each finding: its error ends the check
	Fsck func(context.Context, FsckRequest, func(Progress), func(FsckFinding) error) (FsckResult, error)
	// Backup writes the names to a client.
	Backup  func(context.Context, io.Writer) error
	Audit   func(context.Context) ([]AuditRow, error)
	Stop    func(context.Context) error // begins the end of the daemon and returns
	Metrics http.Handler                // GET /metrics, Prometheus text
	Page    http.Handler                // GET /, a status page
}

// Server answers on the socket of one data directory.
type Server struct {
	path   string
	http   *http.Server
	cancel context.CancelFunc
	serve  sync.WaitGroup
}

// ErrLongPath is returned for the socket of a data directory whose path is too long for Linux.
var ErrLongPath = fmt.Errorf("path is longer than %d bytes; choose a shorter --data", socketPathBytes)

// CheckPath refuses the path of a socket that can't be made.
func CheckPath(path string) error {
	if len(path) > socketPathBytes {
		return fmt.Errorf("admin: socket %s: %w", path, ErrLongPath)
	}
	return nil
}

// Serve listens on the socket at path and answers from h until Close. A socket that a dead daemon left behind
// is removed; the caller holds the lock of the data directory, so that there is no living one.
func Serve(path string, h Handlers, log *slog.Logger) (*Server, error) {
	if err := CheckPath(path); err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("admin: remove old socket: %w", err)
	}
	ln, err := listenPrivate(path)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &Server{path: path, cancel: cancel}
	s.http = &http.Server{
		Handler:           h.mux(log),
		ReadHeaderTimeout: headerTimeout,
		MaxHeaderBytes:    headerBytesMax,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnContext:       withCaller,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	s.serve.Go(func() {
		if err := s.http.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			log.Error("admin: socket ended", "path", path, "err", err)
		}
	})
	return s, nil
}

// listenPrivate binds under a private name first, so that the socket is never reachable with a wide mode.
func listenPrivate(path string) (net.Listener, error) {
	dir, err := os.MkdirTemp(filepath.Dir(path), ".s")
	if err != nil {
		return nil, fmt.Errorf("admin: socket: %w", err)
	}
	defer os.RemoveAll(dir)
	tmp := filepath.Join(dir, "s")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: tmp, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("admin: listen: %w", err)
	}
	ln.SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(tmp, 0o600), os.Rename(tmp, path)); err != nil {
		ln.Close()
		return nil, fmt.Errorf("admin: socket %s: %w", path, err)
	}
	return ln, nil
}

// Close ends running requests, waits for them, and removes the socket.
func (s *Server) Close() error {
	s.cancel()
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = s.http.Close()
	}
	s.serve.Wait()
	if rm := os.Remove(s.path); err == nil && !errors.Is(rm, os.ErrNotExist) {
		err = rm
	}
	return err
}

func (h Handlers) mux(log *slog.Logger) *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("GET /v1/status", h.StatusHandler())
	mux.Handle("POST /v1/mount", query(h.Mount != nil, h.Mount))
	mux.Handle("POST /v1/unmount", query(h.Unmount != nil, noResult(h.Unmount)))
	mux.Handle("POST /v1/mount-wait", query(h.MountWait != nil, noResult(h.MountWait)))
	mux.Handle("POST /v1/where", query(h.Where != nil, h.Where))
	mux.Handle("POST /v1/versions", query(h.Versions != nil, h.Versions))
	mux.Handle("POST /v1/restore", long(h.Restore != nil, h.Restore))
	mux.Handle("POST /v1/policy", long(h.Policy != nil,
		func(ctx context.Context, req PolicyRequest, _ func(Progress)) (Policy, error) {
			return h.Policy(ctx, req)
		}))
	mux.Handle("POST /v1/wait", query(h.Wait != nil, h.Wait))
	mux.Handle("POST /v1/token", query(h.Token != nil, h.Token))
	mux.Handle("POST /v1/evict", query(h.Evict != nil, h.Evict))
	mux.Handle("POST /v1/drain", query(h.Drain != nil, h.Drain))
	mux.Handle("POST /v1/upgrade", query(h.Upgrade != nil, h.Upgrade))
	mux.Handle("POST /v1/audit", query(h.Audit != nil, func(ctx context.Context, _ Done) ([]AuditRow, error) {
		return h.Audit(ctx)
	}))
	mux.Handle("POST /v1/scrub", long(h.Scrub != nil, h.Scrub))
	mux.Handle("POST /v1/fsck", longInParts(h.Fsck != nil, readerTimeout, h.Fsck))
	mux.Handle("POST /v1/backup", h.backup(log))
	mux.Handle("POST /v1/stop", query(h.Stop != nil, func(ctx context.Context, _ Done) (Done, error) {
		return Done{}, h.Stop(ctx)
	}))
	mux.Handle("POST /v1/watch", h.watch(log))
	if h.Metrics != nil {
		mux.Handle("GET /metrics", h.Metrics)
	}
	if h.Page != nil {
		mux.Handle("GET /{$}", h.Page)
	}
	return mux
}

// StatusHandler answers GET /v1/status. It can be served elsewhere too.
func (h Handlers) StatusHandler() http.Handler {
	return query(h.Status != nil, func(ctx context.Context, _ Done) (Status, error) { return h.Status(ctx) })
}

func noResult[Req any](f func(context.Context, Req) error) func(context.Context, Req) (Done, error) {
	return func(ctx context.Context, req Req) (Done, error) { return Done{}, f(ctx, req) }
}

// query is one request, one answer.
func query[Req, Resp any](offered bool, f func(context.Context, Req) (Resp, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var req Req
		if err := readRequest(w, r, offered, &req); err != nil {
			writeError(w, err)
			return
		}
		resp, err := f(r.Context(), req)
		if err != nil {
			writeError(w, err)
			return
		}
		writeJSON(w, http.StatusOK, resp)
	})
}

// readRequest decodes the body strictly: a field that this version does not know is an error, not ignored.
func readRequest(w http.ResponseWriter, r *http.Request, offered bool, req any) error {
	if !offered {
		return Errorf(CodeNotOffered, "this node does not offer %s", r.URL.Path)
	}
	if r.Method == http.MethodGet {
		return nil
	}
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, requestBytesMax))
	dec.DisallowUnknownFields()
	if err := decodeJSON(dec, req); err != nil && !errors.Is(err, io.EOF) {
		return Errorf(CodeInvalid, "request %s: %v", r.URL.Path, err)
	}
	return nil
}

// backup answers with the bytes of a backup. A client finds out by the bytes whether they are whole.
func (h Handlers) backup(log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var req Done
		if err := readRequest(w, r, h.Backup != nil, &req); err != nil {
			writeError(w, err)
			return
		}
		out := &firstByte{ResponseWriter: w, deadline: http.NewResponseController(w)}
		err := h.Backup(r.Context(), out)
		if err != nil && !out.written {
			writeError(w, err)
		} else if err != nil {
			log.Error("backup ended early", "err", err)
		}
	})
}

// firstByte says whether an answer has begun.
type firstByte struct {
	http.ResponseWriter
	deadline *http.ResponseController
	written  bool
}

func (f *firstByte) Write(b []byte) (int, error) {
	if !f.written {
		f.Header().Set("Content-Type", "application/octet-stream")
	}
	f.written = true
	f.deadline.SetWriteDeadline(time.Now().Add(readerTimeout))
	return f.ResponseWriter.Write(b)
}

func (h Handlers) watch(log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var req WatchRequest
		if err := readRequest(w, r, h.Watch != nil, &req); err != nil {
			writeError(w, err)
			return
		}
		w.Header().Set("Content-Type", "application/x-ndjson")
		out := http.NewResponseController(w)
		send := func(ev Event) error {
			out.SetWriteDeadline(time.Now().Add(eventWriteTimeout))
			if err := encodeLine(w, watchLine{Event: &ev}); err != nil {
				return err
			}
			return out.Flush()
		}
		err := out.Flush() // headers first: the client knows that it is connected
		if err == nil {
			err = h.Watch(r.Context(), req, send)
		}
		if err != nil && r.Context().Err() == nil {
			encodeLine(w, watchLine{Error: asError(err)})
			log.Debug("admin: watch ended", "err", err)
		}
	})
}

// watchLine is one line of a watch: an event, or the error that ends it.
type watchLine struct {
	*Event
	Error *Error `json:"error,omitempty"`
}

func writeError(w http.ResponseWriter, err error) {
	e := asError(err)
	writeJSON(w, httpStatus(e.Code), e)
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	encodeLine(w, v)
}
