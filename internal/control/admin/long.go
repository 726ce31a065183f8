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
	// Step is what a fsck looks at now, in words. Count of Of are done; an Of of 0 is not known.
	Step  string `json:"step,omitempty"`
	Count uint64 `json:"count,omitempty"`
	Of    uint64 `json:"of,omitempty"`
}

// longLine is one line of a long answer: progress, a part of the answer, or nothing but a sign of life; the last has
// the rest of the answer, or the error.
type longLine[Part, Resp any] struct {
	Progress *Progress `json:"progress,omitempty"`
	Part     *Part     `json:"part,omitempty"`
	Answer   *Resp     `json:"answer,omitempty"`
	Error    *Error    `json:"error,omitempty"`
}

// long is one request that may take any time. The answer is JSON lines: one each second while it is worked on.
func long[Req, Resp any](offered bool, f func(context.Context, Req, func(Progress)) (Resp, error)) http.Handler {
	return longInParts(offered, eventWriteTimeout,
		func(ctx context.Context, req Req, tell func(Progress), _ func(Done) error) (Resp, error) {
			return f(ctx, req, tell)
		})
}

// longInParts is long for an answer that may have any size: a line for each part of it, at once. The function that
// takes a part waits until the client has taken the one before. writeTimeout bounds that.
func longInParts[Req, Part, Resp any](
	offered bool, writeTimeout time.Duration, f func(context.Context, Req, func(Progress), func(Part) error) (Resp, error),
) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var req Req
		if err := readRequest(w, r, offered, &req); err != nil {
			writeError(w, err)
			return
		}
		w.Header().Set("Content-Type", "application/x-ndjson")
		out := http.NewResponseController(w)
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		send := func(line longLine[Part, Resp]) error {
			out.SetWriteDeadline(time.Now().Add(writeTimeout))
			return errors.Join(encodeLine(w, line), out.Flush())
		}
		var latest atomic.Pointer[Progress]
		var last longLine[Part, Resp]
		var work sync.WaitGroup
		parts := make(chan Part) // closed when the work is done
		work.Go(func() {
			defer close(parts)
			resp, err := f(ctx, req, func(p Progress) { latest.Store(&p) }, func(part Part) error {
				select {
				case parts <- part:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
			if last.Answer = &resp; err != nil {
				last = longLine[Part, Resp]{Error: asError(err)}
			}
		})
		tick := time.NewTicker(aliveEvery)
		defer tick.Stop()
		err := send(longLine[Part, Resp]{}) // the client knows that it is connected
		for working := true; working && err == nil; {
			select {
			case part, more := <-parts:
				if working = more; more {
					err = send(longLine[Part, Resp]{Part: &part})
				}
			case <-tick.C:
				err = send(longLine[Part, Resp]{Progress: latest.Load()})
			}
		}
		cancel() // a client that has gone ends the work
		work.Wait()
		if err == nil {
			send(last)
		}
	})
}

// longCall makes a request that may take any time. Only a daemon that is silent for too long ends it, or the context.
func longCall[Req, Resp any](ctx context.Context, c *Client, path string, req Req, each func(Progress)) (Resp, error) {
	return longCallInParts[Req, Done, Resp](ctx, c, path, req, each, func(Done) error { return nil })
}

// longCallInParts is longCall for an answer of longInParts. An error of take ends it, and is returned.
func longCallInParts[Req, Part, Resp any](
	ctx context.Context, c *Client, path string, req Req, each func(Progress), take func(Part) error,
) (Resp, error) {
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
		var line longLine[Part, Resp]
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
		silence.Stop() // what this side does with a line may take any time
		if line.Progress != nil && each != nil {
			each(*line.Progress)
		}
		if line.Part != nil {
			if err := take(*line.Part); err != nil {
				return none, err
			}
		}
		silence.Reset(limit)
	}
}
