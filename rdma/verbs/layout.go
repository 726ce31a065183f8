//go:build linux && (amd64 || arm64) && !nordma

package verbs

import "unsafe"

// The structures of libibverbs that cross the call, as its header (infiniband/verbs.h) lays them out on 64-bit
// machines. They are its ABI. The assertions below hold sizes, layout_test.go each offset.

type sge struct {
	addr   uint64
	length uint32
	lkey   uint32
}

type sendWR struct {
	id       uint64
	next     uintptr
	list     uintptr
	listLen  int32
	opcode   uint32
	flags    uint32
	imm      [4]byte // network order
	addr     uint64  // remote address, or the address handle of a datagram
	rkey     uint32  // or the remote queue pair of a datagram
	qkey     uint32
	reserved [72]byte
}

type recvWR struct {
	id      uint64
	next    uintptr
	list    uintptr
	listLen int32
	_       int32
}

type workCompletion struct {
	id        uint64
	status    uint32
	opcode    uint32
	vendorErr uint32
	bytes     uint32
	imm       [4]byte // network order
	qpNum     uint32
	srcQP     uint32
	flags     uint32
	pkeyIndex uint16
	slid      uint16
	sl        uint8
	dlidBits  uint8
	_         [2]byte
}

type qpCap struct {
	sends, recvs, sendSGE, recvSGE, inline uint32
}

type qpInitAttr struct {
	context, sendCQ, recvCQ, srq uintptr
	cap                          qpCap
	qpType                       uint32
	signalAll                    int32
	_                            int32
}

type ahAttr struct {
	dgid         [16]byte
	flowLabel    uint32
	sgidIndex    uint8
	hopLimit     uint8
	trafficClass uint8
	_            uint8
	dlid         uint16
	sl           uint8
	srcPathBits  uint8
	staticRate   uint8
	isGlobal     uint8
	port         uint8
	_            uint8
}

type qpAttr struct {
	state, curState, pathMTU, migState uint32
	qkey, rqPSN, sqPSN, destQPN        uint32
	access                             uint32
	cap                                qpCap
	ah, altAH                          ahAttr
	pkeyIndex, altPkeyIndex            uint16
	sqdNotify, sqDraining              uint8
	readsOut, readsIn                  uint8
	minRNRTimer, port, timeout         uint8
	retryCount, rnrRetry               uint8
	altPort, altTimeout                uint8
	rateLimit                          uint32
	_                                  uint32
}

type deviceAttr struct {
	firmware                                 [64]byte
	nodeGUID, systemGUID                     uint64
	regionMax, pageSizes                     uint64
	vendor, part, hardware                   uint32
	qpMax, qpWRMax                           int32
	flags                                    uint32
	sgeMax, readSGEMax, cqMax, cqeMax, mrMax int32
	pdMax, readsIn, eeReads, readsAll        int32
	readsOut, eeReadsOut                     int32
	atomic                                   uint32
	_                                        [56]byte // multicast, memory windows, shared receive queues
	pkeys                                    uint16
	ackDelay, ports                          uint8
	_                                        uint32
}

type portAttr struct {
	state, mtuMax, mtu                uint32
	gidTable                          int32
	flags, messageMax                 uint32
	badPkeys, badQkeys                uint32
	pkeyTable, lid, smLID             uint16
	lmc, vls, smSL, subnetTimeout     uint8
	initReply, width, speed, physical uint8
	linkLayer, flags1                 uint8
	flags2                            uint16
	_                                 uint16
	speedEx                           uint32
	_                                 [8]byte // room for what a newer library appends
}

type asyncEvent struct {
	element uintptr // a queue pair, a completion queue, or (32 bits) a port
	kind    uint32
	_       uint32
}

// Sizes, checked by the compiler.
var (
	_ = [1]struct{}{}[unsafe.Sizeof(sge{})-16]
	_ = [1]struct{}{}[unsafe.Sizeof(sendWR{})-128]
	_ = [1]struct{}{}[unsafe.Sizeof(recvWR{})-32]
	_ = [1]struct{}{}[unsafe.Sizeof(workCompletion{})-48]
	_ = [1]struct{}{}[unsafe.Sizeof(qpInitAttr{})-64]
	_ = [1]struct{}{}[unsafe.Sizeof(ahAttr{})-32]
	_ = [1]struct{}{}[unsafe.Sizeof(qpAttr{})-144]
	_ = [1]struct{}{}[unsafe.Sizeof(deviceAttr{})-232]
	_ = [1]struct{}{}[unsafe.Sizeof(portAttr{})-64]
	_ = [1]struct{}{}[unsafe.Sizeof(asyncEvent{})-16]
)

// Offsets into the library's own objects that its inline functions, compiled into every program, use too.
const (
	deviceTransport = 20
	contextPollCQ   = 96
	contextNotifyCQ = 104
	contextPostSend = 208
	contextPostRecv = 216
	contextAsyncFD  = 268
	channelFD       = 8
	qpNumber        = 52
	mrLocalKey      = 36
	mrRemoteKey     = 40
)

// field is the field at an offset of an object of the library's, which must be alive.
func field[T any](object, offset uintptr) *T {
	p := object + offset
	return *(**T)(unsafe.Pointer(&p))
}
