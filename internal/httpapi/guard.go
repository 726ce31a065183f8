package httpapi

import (
	"fmt"
	"net/http"
	"net/http/pprof"
	"strconv"
	"strings"
	"time"
)

const (
	pathHealth = "/healthz"
	pathPprof  = "/debug/pprof/"

	// profileMax bounds how long a client may have a profile taken: that slows the node down.
	profileMax = time.Minute
)

// guarded is everything that is served: first what is allowed, then what is there.
func (c Config) guarded() http.Handler {
	known := c.mux()
	alive := answer(c.Source.Alive)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			refuse(w, http.StatusMethodNotAllowed, "nothing can be changed here")
		case r.ContentLength != 0:
			refuse(w, http.StatusRequestEntityTooLarge, "a request has no body here")
		case r.URL.Path == pathHealth:
			if !c.proven(r) {
				w.Header().Set("Connection", "close") // strangers keep no place
			}
			alive.ServeHTTP(w, r)
		case !c.proven(r):
			w.Header().Set("WWW-Authenticate", `Bearer realm="rdmcfs"`)
			refuse(w, http.StatusUnauthorized, "show a certificate of the cluster, or the token of the node's "+TokenFile+
				" as 'Authorization: Bearer TOKEN'")
		default:
			known.ServeHTTP(w, r)
		}
	})
}

// refuse answers with an error and ends the connection, which makes room for others.
func refuse(w http.ResponseWriter, status int, why string) {
	w.Header().Set("Connection", "close")
	http.Error(w, why, status)
}

// proven reports whether a request comes from somebody who may read.
func (c Config) proven(r *http.Request) bool {
	if r.TLS == nil {
		return false
	}
	if len(r.TLS.PeerCertificates) > 0 && c.Trusted(*r.TLS) {
		return true
	}
	scheme, word, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	return strings.EqualFold(scheme, "Bearer") && c.Token.Is(strings.TrimSpace(word))
}

// mux is what those see who may read.
func (c Config) mux() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", c.Source.Metrics)
	mux.Handle("/v1/status", c.Source.Status)
	mux.Handle("/readyz", answer(c.Source.Ready))
	if c.Pprof {
		mux.Handle(pathPprof, bounded(pprof.Index))
		mux.Handle(pathPprof+"cmdline", bounded(pprof.Cmdline))
		mux.Handle(pathPprof+"profile", bounded(pprof.Profile))
		mux.Handle(pathPprof+"symbol", bounded(pprof.Symbol))
		mux.Handle(pathPprof+"trace", bounded(pprof.Trace))
	}
	return mux
}

// answer says in one line whether all is well.
func answer(wrong func() error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if err := wrong(); err != nil {
			http.Error(w, oneLine(err), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprintln(w, "ok")
	})
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// bounded refuses profiles that take too long.
func bounded(profile http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if text := r.URL.Query().Get("seconds"); text != "" {
			seconds, err := strconv.ParseFloat(text, 64)
			if err != nil || !(seconds >= 0 && seconds <= profileMax.Seconds()) {
				http.Error(w, fmt.Sprintf("seconds: want 0 to %v", profileMax.Seconds()), http.StatusBadRequest)
				return
			}
		}
		profile(w, r)
	})
}
