package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"
)

const (
	dialTimeout      = 2 * time.Second
	responseBytesMax = 64 << 20
	readyPoll        = 50 * time.Millisecond
)

// Client talks to the node of one data directory. Its methods block until the answer or the context's end.
type Client struct {
	path    string
	http    *http.Client
	silence time.Duration // how long a daemon may say nothing during a long answer; 0 = silenceMax
}

// NewClient makes a client for the socket at path. It connects at each call.
func NewClient(path string) *Client {
	dialer := &net.Dialer{Timeout: dialTimeout}
	tr := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", path)
		},
		DisableKeepAlives: true,
	}
	return &Client{path: path, http: &http.Client{Transport: tr}}
}

// Status asks for the state of the node and the cluster.
func (c *Client) Status(ctx context.Context) (Status, error) {
	return call[Done, Status](ctx, c, http.MethodGet, "/v1/status", Done{})
}

// Mount mounts the name space and returns when the mount answers.
func (c *Client) Mount(ctx context.Context, req MountRequest) (Mount, error) {
	return call[MountRequest, Mount](ctx, c, http.MethodPost, "/v1/mount", req)
}

// Unmount ends a mount.
func (c *Client) Unmount(ctx context.Context, req UnmountRequest) error {
	_, err := call[UnmountRequest, Done](ctx, c, http.MethodPost, "/v1/unmount", req)
	return err
}

// MountWait returns when the mount has ended.
func (c *Client) MountWait(ctx context.Context, req MountWaitRequest) error {
	_, err := call[MountWaitRequest, Done](ctx, c, http.MethodPost, "/v1/mount-wait", req)
	return err
}

// Where asks who holds a file.
func (c *Client) Where(ctx context.Context, req WhereRequest) (Where, error) {
	return call[WhereRequest, Where](ctx, c, http.MethodPost, "/v1/where", req)
}

// Versions lists kept versions.
func (c *Client) Versions(ctx context.Context, req VersionsRequest) ([]Version, error) {
	return call[VersionsRequest, []Version](ctx, c, http.MethodPost, "/v1/versions", req)
}

// Restore makes a kept version current, brings a removed file back, or publishes unpublished content; or it drops it.
// It has no limit of its own: bytes may have to move. each, which may be nil, hears of the progress about once a
// second.
func (c *Client) Restore(ctx context.Context, req RestoreRequest, each func(Progress)) (Version, error) {
	return longCall[RestoreRequest, Version](ctx, c, "/v1/restore", req, each)
}

// Policy reads or changes the policy of a path. The larger a tree is, the longer this takes for it.
func (c *Client) Policy(ctx context.Context, req PolicyRequest) (Policy, error) {
	return longCall[PolicyRequest, Policy](ctx, c, "/v1/policy", req, nil)
}

// Wait waits until nothing is owed.
func (c *Client) Wait(ctx context.Context, req WaitRequest) (WaitResult, error) {
	return call[WaitRequest, WaitResult](ctx, c, http.MethodPost, "/v1/wait", req)
}

// Token makes a join token.
func (c *Client) Token(ctx context.Context, req TokenRequest) (Token, error) {
	return call[TokenRequest, Token](ctx, c, http.MethodPost, "/v1/token", req)
}

// Evict removes a node for good.
func (c *Client) Evict(ctx context.Context, req EvictRequest) (EvictResult, error) {
	return call[EvictRequest, EvictResult](ctx, c, http.MethodPost, "/v1/evict", req)
}

// Drain begins or ends the drain of a node, or looks how far it is. It does not wait.
func (c *Client) Drain(ctx context.Context, req DrainRequest) (DrainState, error) {
	return call[DrainRequest, DrainState](ctx, c, http.MethodPost, "/v1/drain", req)
}

// Upgrade returns which versions the nodes run, or makes the cluster use the newest format that all of them know.
func (c *Client) Upgrade(ctx context.Context, req UpgradeRequest) (Upgrade, error) {
	return call[UpgradeRequest, Upgrade](ctx, c, http.MethodPost, "/v1/upgrade", req)
}

// Scrub checks the contents that the node holds and waits until what is damaged is mended. It takes as long as that
// takes; the end of ctx ends the check. each, which may be nil, hears of the progress about once a second.
func (c *Client) Scrub(ctx context.Context, req ScrubRequest, each func(Progress)) (ScrubResult, error) {
	return longCall[ScrubRequest, ScrubResult](ctx, c, "/v1/scrub", req, each)
}

// Fsck compares names, contents and nodes. take gets each finding when it is found; its error ends the check and is
// returned. each, which may be nil, hears of the progress about once a second. The end of ctx ends the check.
func (c *Client) Fsck(
	ctx context.Context, req FsckRequest, each func(Progress), take func(FsckFinding) error,
) (FsckResult, error) {
	return longCallInParts[FsckRequest, FsckFinding, FsckResult](ctx, c, "/v1/fsck", req, each, take)
}

// Audit lists the commands that changed the cluster, oldest first.
func (c *Client) Audit(ctx context.Context) ([]AuditRow, error) {
	return call[Done, []AuditRow](ctx, c, http.MethodPost, "/v1/audit", Done{})
}

// Stop begins the end of the daemon. StopAndWait also waits for it.
func (c *Client) Stop(ctx context.Context) error {
	_, err := call[Done, Done](ctx, c, http.MethodPost, "/v1/stop", Done{})
	return err
}

// Metrics copies the Prometheus text to w.
func (c *Client) Metrics(ctx context.Context, w io.Writer) error {
	return c.copy(ctx, w, http.MethodGet, "/metrics", nil)
}

// Backup copies the names to w, as a snapshot of package meta: its end says whether it is whole.
func (c *Client) Backup(ctx context.Context, w io.Writer) error {
	return c.copy(ctx, w, http.MethodPost, "/v1/backup", []byte("{}"))
}

// copy copies an answer that is no JSON to w.
func (c *Client) copy(ctx context.Context, w io.Writer, method, path string, body []byte) error {
	resp, err := c.do(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return decodeError(resp)
	}
	_, err = io.Copy(w, resp.Body)
	return err
}

// Watch calls each for every event until the context or the daemon ends, or each returns an error, which
// is then returned.
func (c *Client) Watch(ctx context.Context, req WatchRequest, each func(Event) error) error {
	body, err := Marshal(req)
	if err != nil {
		return fmt.Errorf("admin: watch: %w", err)
	}
	resp, err := c.do(ctx, http.MethodPost, "/v1/watch", body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return decodeError(resp)
	}
	dec := json.NewDecoder(resp.Body)
	for {
		var line struct {
			Event
			Error *Error `json:"error"`
		}
		switch err := decodeJSON(dec, &line); {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, io.ErrUnexpectedEOF):
			return fmt.Errorf("the daemon ended without a word, as if it was killed: %w", err)
		case err != nil:
			return fmt.Errorf("admin: watch: %w", err)
		case line.Error != nil:
			return line.Error
		}
		if err := each(line.Event); err != nil {
			return err
		}
	}
}

// Ready waits until the daemon answers with a state other than "starting", or the context ends.
func (c *Client) Ready(ctx context.Context) (Status, error) {
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	var last error // what the daemon, not our context, said
	for {
		st, err := c.Status(ctx)
		switch {
		case err == nil && st.State != "starting":
			return st, nil
		case err == nil:
			last = Errorf(CodeUnavailable, "the daemon is still starting")
		case ctx.Err() == nil || last == nil:
			last = err
		}
		select {
		case <-ctx.Done():
			return st, fmt.Errorf("admin: wait for the daemon: %w", last)
		case <-tick.C:
		}
	}
}

// Gone waits until no daemon answers any more.
func (c *Client) Gone(ctx context.Context) error {
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for {
		if _, err := c.Status(ctx); CodeOf(err) == CodeNotRunning {
			return nil
		}
		select {
		case <-ctx.Done():
			return Errorf(CodeTimeout, "the daemon on %s has not ended yet", c.path)
		case <-tick.C:
		}
	}
}

func call[Req, Resp any](ctx context.Context, c *Client, method, path string, req Req) (Resp, error) {
	var out Resp
	var body []byte
	if method != http.MethodGet {
		var err error
		if body, err = Marshal(req); err != nil {
			return out, fmt.Errorf("admin: request %s: %w", path, err)
		}
	}
	resp, err := c.do(ctx, method, path, body)
	if err != nil {
		return out, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return out, decodeError(resp)
	}
	if err := decodeJSON(json.NewDecoder(io.LimitReader(resp.Body, responseBytesMax)), &out); err != nil {
		return out, fmt.Errorf("admin: answer %s: %w", path, err)
	}
	return out, nil
}

func (c *Client) do(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://node"+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("admin: request %s: %w", path, err)
	}
	resp, err := c.http.Do(req)
	if err == nil {
		return resp, nil
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("admin: %s: %w", path, ctx.Err())
	}
	return nil, c.dialled(err)
}

// dialled is why no daemon was reached, in words.
func (c *Client) dialled(err error) error {
	switch {
	case CheckPath(c.path) != nil:
		return CheckPath(c.path)
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, os.ErrNotExist), errors.Is(err, io.EOF),
		errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.ENOTDIR):
		return &Error{Code: CodeNotRunning, Message: "no daemon answers on " + c.path,
			Hint: "start it with 'rdmcfs daemon' or 'rdmcfs mount DIR', or name its data directory with --data"}
	case errors.Is(err, os.ErrPermission):
		return &Error{Code: CodeDenied, Message: "permission denied on " + c.path,
			Hint: "run as the daemon's user (root)"}
	}
	return fmt.Errorf("admin: %w", err)
}

func decodeError(resp *http.Response) error {
	var e Error
	if err := decodeJSON(json.NewDecoder(io.LimitReader(resp.Body, requestBytesMax)), &e); err != nil || e.Code == "" {
		return Errorf(CodeFailed, "the daemon answered %s", resp.Status)
	}
	return &e
}
