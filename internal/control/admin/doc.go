// Package admin is the local interface of a running node: HTTP with JSON over a unix socket in the data
// directory, for the command line, scripts and the status page.
//
// The socket has mode 0600, so whoever can open it owns the node; there is no other authentication. The node
// registers its answers in a Handlers value; a nil function answers CodeNotOffered. Queries answer one JSON value.
// Watch answers one JSON value per line (NDJSON) until either side ends it; so does Restore, a line a second, the
// last with the answer or the error. Errors are a JSON Error with a code that scripts can rely on, a message, and a
// hint that says what to do.
//
//	rdmcfs status ──> DATA/admin.sock ──> Server ──> Handlers.Status (internal/node)
//
// A script reads the same with curl:
//
//	curl --unix-socket /var/lib/rdmcfs/admin.sock http://node/v1/status
package admin
