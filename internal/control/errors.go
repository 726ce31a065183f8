package control

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/rdmcfs/rdmcfs/internal/credentials"
	"github.com/rdmcfs/rdmcfs/internal/format"
)

// Errors that a caller can act on. Each text says what to do where the user can do something.
var (
	// ErrClosed is returned by calls on what has been closed.
	ErrClosed = errors.New("control: closed")
	// ErrPeerDown is a peer that can't be reached now. It is returned at once while the last attempt is recent.
	ErrPeerDown = errors.New("node is not reachable")
	// ErrUnknownPeer is a node number without an address.
	ErrUnknownPeer = errors.New("no such node")
	// ErrProtocol is a peer that sent what the protocol does not allow; its connection is closed.
	ErrProtocol = errors.New("peer broke the protocol: check that both run the same release of rdmcfs")
	// ErrRefused is a peer that did not accept our certificate.
	ErrRefused = errors.New("peer refused our certificate: this node may be of another cluster, or a clock may be wrong")
	// ErrTooLarge is a payload beyond MaxPayload; nothing was sent.
	ErrTooLarge = errors.New("message too large")
	// ErrNoHandler is a kind of call that the peer does not know.
	ErrNoHandler = errors.New("peer does not know this kind of call: upgrade it")
	// ErrBusy is a peer with too many calls running.
	ErrBusy = errors.New("peer is busy")
	// ErrUnavailable is an answer that needs a quorum, or a leader, that is not there now.
	ErrUnavailable = errors.New("cluster can't answer now")
	// ErrNoNode is an address at which no node answers.
	ErrNoNode = errors.New("no node answers there: check the address, and that its daemon runs")
	// ErrUsage is the class of mistakes in what the user typed, made by Usagef.
	ErrUsage = errors.New("control: usage")
	// ErrGeneration is a peer before or after a 'rdmcfs recover'.
	ErrGeneration = errors.New("node is of another generation of the cluster: one of the two has to follow the other " +
		"with 'rdmcfs recover'")
	// ErrSameNode is a peer with our own number: a copied data directory.
	ErrSameNode = errors.New("another machine runs as this node, from a copy of its data directory: stop one of them; " +
		"let the copy join again")
	// ErrTokenUnknown is a join token that the cluster does not know.
	ErrTokenUnknown = errors.New("join token is not known to this cluster: make one with 'rdmcfs token' on a member")
	// ErrTokenUsed is a join token that another machine has used.
	ErrTokenUsed = errors.New("join token has been used: each is good for one machine; make a new one with 'rdmcfs " +
		"token' on a member")
	// ErrNameTaken is a node name that another node has.
	ErrNameTaken = errors.New("a node of that name is a member already: choose another --name, or replace it with " +
		"--replace and a token made for that")
	// ErrAddrTaken is an address that another node has, which is up.
	ErrAddrTaken = errors.New("another node that is up has that address: give --listen or --advertise the address of " +
		"this machine; the token has not been used")
	// ErrClock is a machine whose clock is so far ahead that it would take the certificates of the cluster for expired.
	ErrClock = errors.New("set the clock that is wrong, then join again: the token has not been used")
	// ErrNotYours is a request for the signing key by a node that is no voter.
	ErrNotYours = errors.New("the cluster's signing key is for voters only")
	// ErrNotReplaceable is a --replace that the token or the cluster does not allow.
	ErrNotReplaceable = errors.New("that node can't be replaced with this token: make one with 'rdmcfs token --replace " +
		"NAME'")
)

// usageError matches ErrUsage.
type usageError struct{ text string }

// Error is the text that Usagef was given.
func (e *usageError) Error() string { return e.text }

// Is makes errors.Is(err, ErrUsage) true.
func (e *usageError) Is(target error) bool { return target == ErrUsage }

// Usagef makes an error of the class ErrUsage.
func Usagef(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

// Code is an error on the wire. Codes from CodeApplication on belong to the callers of this package.
type Code uint32

// The codes.
const (
	CodeInternal Code = iota + 1
	CodeCanceled
	CodeDeadline
	CodeNoHandler
	CodeBusy
	CodeTooLarge
	CodeUnavailable
	CodeProtocol
	CodeGeneration
	CodeSameNode
	CodeEvicted
	CodeForeignCluster
	CodeTokenMalformed
	CodeTokenUnknown
	CodeTokenUsed
	CodeTokenExpired
	CodeNameTaken
	CodeNotReplaceable
	CodeNoAuthority
	CodeClock
	CodeNotYours
	CodeFormat     // the caller's program does not know the cluster's format
	CodeFormatHere // the answering one does not
	CodeAddrTaken

	CodeApplication Code = 1000
)

// sentinels pairs codes with the errors that they stand for, in both directions.
var sentinels = []struct {
	code Code
	err  error
}{
	{CodeCanceled, context.Canceled},
	{CodeDeadline, context.DeadlineExceeded},
	{CodeNoHandler, ErrNoHandler},
	{CodeBusy, ErrBusy},
	{CodeTooLarge, ErrTooLarge},
	{CodeUnavailable, ErrUnavailable},
	{CodeProtocol, ErrProtocol},
	{CodeGeneration, ErrGeneration},
	{CodeSameNode, ErrSameNode},
	{CodeEvicted, credentials.ErrEvicted},
	{CodeForeignCluster, credentials.ErrForeignCluster},
	{CodeTokenMalformed, credentials.ErrTokenMalformed},
	{CodeTokenUnknown, ErrTokenUnknown},
	{CodeTokenUsed, ErrTokenUsed},
	{CodeTokenExpired, credentials.ErrTokenExpired},
	{CodeNameTaken, ErrNameTaken},
	{CodeNotReplaceable, ErrNotReplaceable},
	{CodeNoAuthority, credentials.ErrNoAuthority},
	{CodeClock, ErrClock},
	{CodeNotYours, ErrNotYours},
	{CodeFormat, format.ErrUnknown},
	{CodeFormatHere, format.ErrPeer},
	{CodeAddrTaken, ErrAddrTaken},
}

// RemoteError is an error that the peer answered. errors.Is finds the sentinel of its code. A handler may
// return one, with a code from CodeApplication on, to tell its caller something typed.
type RemoteError struct {
	Code    Code
	Message string
}

// Error is the peer's text.
func (e *RemoteError) Error() string {
	if e.Message == "" {
		return fmt.Sprintf("control: peer answered error %d", e.Code)
	}
	return e.Message
}

// Unwrap is the sentinel of the code, or nil.
func (e *RemoteError) Unwrap() error {
	for _, s := range sentinels {
		if s.code == e.Code {
			return s.err
		}
	}
	return nil
}

// toRemote makes any error fit for the wire.
func toRemote(err error) *RemoteError {
	var remote *RemoteError
	if errors.As(err, &remote) {
		return remote
	}
	code := CodeInternal
	for _, s := range sentinels {
		if errors.Is(err, s.err) {
			code = s.code
			break
		}
	}
	text := err.Error()
	if len(text) > textBytesMax {
		text = text[:textBytesMax]
	}
	return &RemoteError{Code: code, Message: text}
}

// explainHandshake turns the alert of a peer that refused us into ErrRefused.
func explainHandshake(err error) error {
	text := err.Error()
	if strings.Contains(text, "remote error: tls:") && strings.Contains(text, "certificate") {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return err
}
