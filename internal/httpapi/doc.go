// Package httpapi lets programs on the network read how a node is: its counters, its status, whether it is alive and
// ready, and profiles of its process. Nothing can be changed here; commands go through the admin socket.
//
//	TCP ── limited ── TLS 1.3 ── guard ─┬─ /healthz                     for everybody
//	      connections   node's own      └─ proof ─┬─ /readyz
//	                    certificate               ├─ /metrics
//	                                              ├─ /v1/status
//	                                              └─ /debug/pprof/      if it is switched on
//
// A client proves itself by a certificate of the cluster's authority or by a Token. Anybody else gets 401 for every
// path, whether or not there is something. What is answered comes from the caller as a [Source]:
//
//	token, err := httpapi.OpenToken(path)
//	server := httpapi.Serve(httpapi.Config{Listener: ln, Identity: identity, Trusted: trusted, Token: token,
//		Source: source})
//	defer server.Close()
package httpapi
