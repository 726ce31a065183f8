package httpapi

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestNothingCanBeSent(t *testing.T) {
	s := serve(t, nil)
	known := func() io.Reader { return strings.NewReader("text") } // of a known length
	for _, c := range []struct {
		method string
		body   func() io.Reader
		want   int
	}{
		{http.MethodHead, nil, http.StatusOK},
		{http.MethodPost, nil, http.StatusMethodNotAllowed},
		{http.MethodDelete, nil, http.StatusMethodNotAllowed},
		{http.MethodGet, known, http.StatusRequestEntityTooLarge},
		{http.MethodGet, func() io.Reader { return io.MultiReader(known()) }, http.StatusRequestEntityTooLarge},
	} {
		for _, path := range []string{"/healthz", "/metrics"} {
			var body io.Reader
			if c.body != nil {
				body = c.body()
			}
			req, err := http.NewRequest(c.method, s.url+path, body)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+s.word)
			if code, said := s.do(s.client(), req); code != c.want {
				t.Errorf("%s %s: %d %q, want %d", c.method, path, code, said, c.want)
			}
		}
	}
}

func TestHeaderThatIsTooLong(t *testing.T) {
	s := serve(t, nil)
	req, err := http.NewRequest(http.MethodGet, s.url+"/healthz", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Long", strings.Repeat("x", 2*headerBytesMax))
	if code, _ := s.do(s.client(), req); code != http.StatusRequestHeaderFieldsTooLarge {
		t.Error(code)
	}
}

// What is not TLS, or an old one, is refused.
func TestOnlyTLS13(t *testing.T) {
	s := serve(t, nil)
	resp, err := http.Get(strings.Replace(s.url, "https:", "http:", 1) + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusBadRequest {
		t.Error(resp.Status)
	}
	old := s.client().Transport.(*http.Transport).TLSClientConfig
	old.MaxVersion = tls.VersionTLS12
	if conn, err := tls.Dial("tcp", strings.TrimPrefix(s.url, "https://"), old); err == nil {
		conn.Close()
		t.Error("TLS 1.2 passes")
	}
}

// Connections that say nothing take all places. The next one is served when one of them ends.
func TestConnectionsAreCounted(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln := newLimited(inner, 2)
	accepted := make(chan net.Conn)
	go func() {
		defer close(accepted)
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			accepted <- conn
		}
	}()
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	for range 3 {
		defer dial().Close()
	}
	first, second := <-accepted, <-accepted
	select {
	case <-accepted:
		t.Fatal("a third connection")
	case <-time.After(50 * time.Millisecond):
	}
	first.Close()
	first.Close() // makes room once
	third := <-accepted
	defer dial().Close()
	select {
	case <-accepted:
		t.Fatal("a connection too many")
	case <-time.After(50 * time.Millisecond):
	}
	ln.Close()
	if _, open := <-accepted; open {
		t.Fatal("accepted after the end")
	}
	second.Close()
	third.Close()
}

// Clients that prove nothing keep no connection, whatever they ask for; a reader keeps its own.
func TestStrangersKeepNoPlace(t *testing.T) {
	s := serve(t, nil)
	for _, c := range []struct {
		ask   string
		code  int
		ended bool
	}{
		{"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", http.StatusUnauthorized, true},
		{"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", http.StatusOK, true},
		{"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", http.StatusMethodNotAllowed, true},
		{"GET /healthz HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + s.word + "\r\n\r\n", http.StatusOK, false},
	} {
		if code, ended := s.ask(c.ask); code != c.code || ended != c.ended {
			t.Errorf("%q: %d, connection ended: %v", c.ask, code, ended)
		}
	}
}

// ask sends a request as it is, and returns the code of the answer and whether the connection ends with it.
func (s *served) ask(request string) (code int, ended bool) {
	s.t.Helper()
	conf := s.client().Transport.(*http.Transport).TLSClientConfig
	conn, err := tls.Dial("tcp", strings.TrimPrefix(s.url, "https://"), conf)
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	io.WriteString(conn, request)
	in := bufio.NewReader(conn)
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	io.Copy(io.Discard, resp.Body)
	if !resp.Close {
		return resp.StatusCode, false
	}
	_, err = in.ReadByte()
	return resp.StatusCode, err == io.EOF
}
