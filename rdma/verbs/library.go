//go:build linux && (amd64 || arm64) && !nordma

package verbs

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"syscall"

	"github.com/ebitengine/purego"
)

const libraryName = "libibverbs.so.1"

// library is libibverbs, as addresses of its functions.
type library struct {
	errno uintptr // __errno_location of the C library

	getDeviceList, freeDeviceList, getDeviceName, openDevice, closeDevice uintptr
	queryDevice, queryPort, queryGID                                      uintptr
	allocPD, deallocPD, regMR, regMRIova, deregMR                         uintptr
	createChannel, destroyChannel, createCQ, destroyCQ, getCQ, ackCQ      uintptr
	createQP, modifyQP, destroyQP, createAH, destroyAH                    uintptr
	getAsync, ackAsync                                                    uintptr
}

// loadLibrary loads libibverbs once; the answer stays.
var loadLibrary = sync.OnceValues(func() (*library, error) { return load(libraryName) })

func load(name string) (*library, error) {
	handle, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return nil, fmt.Errorf("%w: %v; install the packages libibverbs1 and ibverbs-providers (rdma-core)", ErrNoLibrary,
			err)
	}
	l := &library{}
	if l.errno, err = purego.Dlsym(purego.RTLD_DEFAULT, "__errno_location"); err != nil {
		return nil, fmt.Errorf("%w: the C library has no __errno_location: %v", ErrNoLibrary, err)
	}
	for symbol, to := range l.symbols() {
		if *to, err = purego.Dlsym(handle, symbol); err != nil {
			return nil, fmt.Errorf("%w: %s lacks %s; it is older than rdma-core 26: %v", ErrNoLibrary, name, symbol, err)
		}
	}
	return l, nil
}

func (l *library) symbols() map[string]*uintptr {
	return map[string]*uintptr{
		"ibv_get_device_list": &l.getDeviceList, "ibv_free_device_list": &l.freeDeviceList,
		"ibv_get_device_name": &l.getDeviceName, "ibv_open_device": &l.openDevice, "ibv_close_device": &l.closeDevice,
		"ibv_query_device": &l.queryDevice, "ibv_query_port": &l.queryPort, "ibv_query_gid": &l.queryGID,
		"ibv_alloc_pd": &l.allocPD, "ibv_dealloc_pd": &l.deallocPD,
		"ibv_reg_mr": &l.regMR, "ibv_reg_mr_iova": &l.regMRIova, "ibv_dereg_mr": &l.deregMR,
		"ibv_create_comp_channel": &l.createChannel, "ibv_destroy_comp_channel": &l.destroyChannel,
		"ibv_create_cq": &l.createCQ, "ibv_destroy_cq": &l.destroyCQ, "ibv_get_cq_event": &l.getCQ,
		"ibv_ack_cq_events": &l.ackCQ,
		"ibv_create_qp":     &l.createQP, "ibv_modify_qp": &l.modifyQP, "ibv_destroy_qp": &l.destroyQP,
		"ibv_create_ah": &l.createAH, "ibv_destroy_ah": &l.destroyAH,
		"ibv_get_async_event": &l.getAsync, "ibv_ack_async_event": &l.ackAsync,
	}
}

// call calls a function of C and returns its result and errno, which purego does not keep. The errno means something
// only when the result says that the call failed.
//
//go:uintptrescapes
func (l *library) call(function uintptr, args ...uintptr) (uintptr, syscall.Errno) {
	return l.invoke(function, args)
}

// invoke is call without an allocation, for arguments that are kept.
func (l *library) invoke(function uintptr, args []uintptr) (uintptr, syscall.Errno) {
	runtime.LockOSThread() // errno belongs to the thread
	defer runtime.UnlockOSThread()
	at, _, _ := purego.SyscallN(l.errno)
	*field[int32](at, 0) = 0
	r, _, _ := purego.SyscallN(function, args...)
	return r, syscall.Errno(*field[int32](at, 0))
}

// object calls a function that returns a pointer, or NULL and errno.
//
//go:uintptrescapes
func (l *library) object(what string, function uintptr, args ...uintptr) (uintptr, error) {
	r, errno := l.call(function, args...)
	if r == 0 {
		return 0, fmt.Errorf("verbs: %s: %w", what, orUnknown(errno))
	}
	return r, nil
}

// check calls a function that returns 0, a positive errno, or -1 and errno.
//
//go:uintptrescapes
func (l *library) check(what string, function uintptr, args ...uintptr) error {
	r, errno := l.call(function, args...)
	switch n := int32(r); {
	case n == 0:
		return nil
	case n > 0:
		errno = syscall.Errno(n)
	}
	return fmt.Errorf("verbs: %s: %w", what, orUnknown(errno))
}

func orUnknown(errno syscall.Errno) error {
	if errno == 0 {
		return errors.New("refused without a reason")
	}
	return errno
}
