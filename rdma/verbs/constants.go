//go:build linux && (amd64 || arm64) && !nordma

package verbs

// Values of infiniband/verbs.h.

// States of a queue pair.
const (
	qpReset = 0
	qpInit  = 1
	qpRTR   = 2
	qpRTS   = 3
	qpError = 6
)

// Types of a queue pair.
const (
	qpReliable = 2
	qpDatagram = 4
)

// Attributes that a change of state sets.
const (
	maskState     = 1 << 0
	maskAccess    = 1 << 3
	maskPkeyIndex = 1 << 4
	maskPort      = 1 << 5
	maskQkey      = 1 << 6
	maskAH        = 1 << 7
	maskMTU       = 1 << 8
	maskTimeout   = 1 << 9
	maskRetry     = 1 << 10
	maskRNRRetry  = 1 << 11
	maskRqPSN     = 1 << 12
	maskReadsOut  = 1 << 13
	maskRNRTimer  = 1 << 15
	maskSqPSN     = 1 << 16
	maskReadsIn   = 1 << 17
	maskDestQPN   = 1 << 20

	maskInitReliable = maskState | maskPkeyIndex | maskPort | maskAccess
	maskRTRReliable  = maskState | maskAH | maskMTU | maskDestQPN | maskRqPSN | maskReadsIn | maskRNRTimer
	maskRTSReliable  = maskState | maskTimeout | maskRetry | maskRNRRetry | maskSqPSN | maskReadsOut
	maskInitDatagram = maskState | maskPkeyIndex | maskPort | maskQkey
	maskRTSDatagram  = maskState | maskSqPSN
)

// Access to a region.
const (
	accessLocalWrite  = 1
	accessRemoteWrite = 2
	accessRemoteRead  = 4
)

// Operations and flags of send requests.
const (
	wrWrite    = 0
	wrWriteImm = 1
	wrSend     = 2
	wrSendImm  = 3
	wrRead     = 4

	flagSignaled = 2
	flagInline   = 8
)

// What a completion is about; only those of receives matter, and only when they are good.
const wcRecvWriteImm = 129

// Statuses of completions.
const (
	wcSuccess         = 0
	wcLocalLength     = 1
	wcLocalOperation  = 2
	wcLocalProtection = 4
	wcFlushed         = 5
	wcLocalAccess     = 8
	wcRemoteRequest   = 9
	wcRemoteAccess    = 10
	wcRemoteOperation = 11
	wcRetryExceeded   = 12
	wcRNRExceeded     = 13
)

// Events of a device.
const (
	eventCQError      = 0
	eventQPFatal      = 1
	eventQPRequest    = 2
	eventQPAccess     = 3
	eventDeviceFatal  = 8
	eventPortActive   = 9
	eventPortError    = 10
	eventLIDChange    = 11
	eventReregister   = 17 // the subnet manager asks for it after a change
	eventGIDChange    = 18
	eventWorkQueueBad = 19
)

// transportIWARP is the transport of cards that need rdma_cm and have no datagrams.
const transportIWARP = 1

// Link layers of a port.
const (
	linkInfiniBand = 1
	linkEthernet   = 2
)

// grhBytes is the room that a datagram's routing header takes at the head of its receive.
const grhBytes = 40

// The device waits this long (0.64 ms) before it repeats a send that found no receive, and does so for
// ever (7): the pair itself gives up, after ReceiverTimeout.
const (
	rnrTimer = 12
	rnrRetry = 7
)
