package verbs

import "errors"

// Errors that a caller can act on; Open and Devices wrap them with what was tried and what to do.
var (
	// ErrNotBuilt is returned by everything in a program that was built with the tag nordma.
	ErrNotBuilt = errors.New("verbs: this program was built without verbs (tag nordma, or not for this system)")
	// ErrNoLibrary is returned where libibverbs cannot be loaded.
	ErrNoLibrary = errors.New("verbs: no libibverbs")
	// ErrNoDevice is returned where no device, port or GID fits what was asked for.
	ErrNoDevice = errors.New("verbs: no device")
	// ErrGone is returned by calls on a device that was removed or has died.
	ErrGone = errors.New("verbs: device gone")
	// ErrLockedMemory is returned when the limit on locked memory keeps a region from being registered.
	ErrLockedMemory = errors.New("verbs: limit on locked memory")
)
