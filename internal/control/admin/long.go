package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// aliveEvery is how often a long answer says that the daemon lives.
	aliveEvery = time.Second
	// silenceMax is how long a client of a long answer waits for the next line.
	silenceMax = 15 * time.Second
)

// Progress is how far a request that moves bytes has come.
type Progress struct {
	// Bytes is what the slowest receiver has of SizeBytes.
	Bytes     int64 `json:"bytes"`
	SizeBytes int64 `json:"size_bytes"`
	// Mending is how many damaged contents a scrub waits for.
	Mending int `json:"mending,omitempty"`
}

// longLine is one line of a long answer: progress, or nothing but a sign of life; the last has the answer or the error.
type longLine[Resp any] struct {
	Progress *Progress `json:"progress,omitempty"`
	Answer   *Resp     `json:"answer,omitempty"`
	Error    *Error    `json:"error,omitempty"`
}

// long is one request that may take any time. The answer is JSON lines: one each second while it is worked on.
func long[Req, Resp any](offered bool, f func(context.Context, Req, func(Progress)) (Resp, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var req Req
		if err := readRequest(w, r, offered, &req); err != nil {
			writeError(w, err)
			return
		}
		w.Header().Set("Content-Type", "application/x-ndjson")
		out := http.NewResponseController(w)
		send := func(line longLine[Resp]) error {
			out.SetWriteDeadline(time.Now().Add(eventWriteTimeout))
			return errors.Join(encodeLine(w, line), out.Flush())
		}
		var latest atomic.Pointer[Progress]
		var last longLine[Resp]
		var work sync.WaitGroup
		done := make(chan struct{})
		work.Go(func() {
			defer close(done)
			resp, err := f(r.Context(), req, func(p Progress) { latest.Store(&p) })
			if last.Answer = &resp; err != nil {
				last = longLine[Resp]{Error: asError(err)}
			}
		})
		tick := time.NewTicker(aliveEvery)
		defer tick.Stop()
		err := send(longLine[Resp]{}) // the client knows that it is connected
		for working := true; working && err == nil; {
			select {
			case <-done:
				working = false
			case <-tick.C:
				err = send(longLine[Resp]{Progress: latest.Load()})
			}
		}
		work.Wait() // a client that has gone ends the request's context
		if err == nil {
			send(last)
		}
	})
}

// longCall makes a request that may take any time. Only a daemon that is silent for too long ends it, or the context.
func longCall[Req, Resp any](ctx context.Context, c *Client, path string, req Req, each func(Progress)) (Resp, error) {
	var none Resp
	body, err := Marshal(req)
	if err != nil {
		return none, fmt.Errorf("admin: request %s: %w", path, err)
	}
	limit := c.silence
	if limit == 0 {
		limit = silenceMax
	}
	heard, cancel := context.WithCancel(ctx)
	defer cancel()
	silence := time.AfterFunc(limit, cancel)
	defer silence.Stop()
	silent := func(err error) error {
		if ctx.Err() == nil && heard.Err() != nil {
			return Errorf(CodeTimeout, "the daemon has said nothing for %v: is it stopped?", limit)
		}
		return err
	}
	resp, err := c.do(heard, http.MethodPost, path, body)
	if err != nil {
		return none, silent(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return none, decodeError(resp)
	}
	dec := json.NewDecoder(resp.Body)
	for {
		var line longLine[Resp]
		switch err := decodeJSON(dec, &line); {
		case ctx.Err() != nil:
			return none, ctx.Err()
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return none, Errorf(CodeNotRunning, "the daemon ended before it answered")
		case err != nil:
			return none, silent(fmt.Errorf("admin: answer %s: %w", path, err))
		case line.Error != nil:
			return none, line.Error
		case line.Answer != nil:
			return *line.Answer, nil
		}
		silence.Reset(limit)
		if line.Progress != nil && each != nil {
			each(*line.Progress)
		}
	}
}
