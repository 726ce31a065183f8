package rdmc

import (
	"reflect"
	"runtime"
)

// userCode runs what calls the user's code: callbacks, Sources and Sinks. It is the first of such a goroutine's own
// functions, so that within finds it.
//
//go:noinline
func userCode(run func()) { run() }

var userCodeEntry = reflect.ValueOf(userCode).Pointer()

// within reports whether the caller was called by a callback, Source or Sink of a group, on the same goroutine. If one
// of these waits for the end of its group, it waits for itself.
func within() bool {
	var stack [64]uintptr
	for skip := 2; ; skip += len(stack) {
		n := runtime.Callers(skip, stack[:])
		for frames := runtime.CallersFrames(stack[:n]); n > 0; {
			frame, more := frames.Next()
			if frame.Entry == userCodeEntry {
				return true
			}
			if !more {
				break
			}
		}
		if n < len(stack) {
			return false
		}
	}
}
