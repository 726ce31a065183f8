package admin

import (
	"errors"
	"fmt"
	"net/http"
)

// Code says what kind of error a node answered. Codes are part of the interface; see docs/CLI.md.
type Code string

// The codes.
const (
	CodeFailed      Code = "failed"      // anything without a code of its own
	CodeInvalid     Code = "invalid"     // the request makes no sense
	CodeNotFound    Code = "not-found"   // no such path, version, node, mount
	CodeExists      Code = "exists"      // the mount, name, token is there already
	CodeBusy        Code = "busy"        // open files hold the mount
	CodeTimeout     Code = "timeout"     // the time given was up
	CodeUnavailable Code = "unavailable" // no quorum, or the node is starting
	CodeFull        Code = "full"        // no disk space
	CodeDenied      Code = "denied"      // evicted, or the operating system refused
	CodeNeeded      Code = "needed"      // files depend on the node
	CodeNotOffered  Code = "not-offered" // this node has no such function
	CodeNotRunning  Code = "not-running" // client side: no daemon answers on the socket
)

// Error is what the node or the client reports. Hint says what to do about it.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

// Error is the message and the hint.
func (e *Error) Error() string {
	if e.Hint == "" {
		return e.Message
	}
	return e.Message + ": " + e.Hint
}

// Errorf makes an Error with a message. Add a Hint where the user can do something.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// CodeOf is the code of an error, CodeFailed for those without.
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return CodeFailed
}

// asError makes any error fit for the wire. The text of wrapping errors is kept.
func asError(err error) *Error {
	var e *Error
	if !errors.As(err, &e) {
		return &Error{Code: CodeFailed, Message: err.Error()}
	}
	if error(e) == err {
		return e
	}
	return &Error{Code: e.Code, Message: err.Error()}
}

// httpStatus is the closest HTTP status, for curl and browsers; clients go by the code.
func httpStatus(code Code) int {
	switch code {
	case CodeInvalid:
		return http.StatusBadRequest
	case CodeNotFound:
		return http.StatusNotFound
	case CodeExists, CodeBusy:
		return http.StatusConflict
	case CodeTimeout:
		return http.StatusGatewayTimeout
	case CodeUnavailable:
		return http.StatusServiceUnavailable
	case CodeFull:
		return http.StatusInsufficientStorage
	case CodeDenied:
		return http.StatusForbidden
	case CodeNotOffered:
		return http.StatusNotImplemented
	}
	return http.StatusInternalServerError
}
