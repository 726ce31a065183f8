// Package admin is the local interface of a running node: HTTP with JSON over a unix socket in the data
// directory, for the command line and for scripts.
//
// The socket has mode 0600, so only its owner and root can open it; there is no other authentication. The node
// registers its answers in a Handlers value; a nil function answers CodeNotOffered. Queries answer one JSON value.
// Watch answers one JSON value per line (NDJSON) until either side ends it. Restore, Policy, Scrub and Fsck answer one
// line a second, and Fsck one for each finding; the last line has the answer or the error. Errors are a JSON Error with
// a code that scripts can rely on, a message, and a hint that says what to do.
//
//	rdmcfs status ──> DATA/admin.sock ──> Server ──> Handlers.Status (internal/node)
//
// A script reads the same with curl:
//
//	curl --unix-socket /var/lib/rdmcfs/admin.sock http://node/v1/status
package admin
