package ring

import (
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// Config says how an endpoint works. The zero value is for a device with hardware of its own.
type Config struct {
	// EagerBytes is the largest message: a Write of more goes as several. Default 2048, the paper's; each buffer of a
	// channel is that large. At most 64 KiB less 40.
	EagerBytes int
	// Slots and Receives are the buffers of each channel here: of its ring, and of its send/receive way. Default 16
	// each.
	Slots, Receives int
	// SetLimit is how many channels are polled at most. Default 16; negative: none, all goes by send/receive.
	SetLimit int
	// Spin is how long a caller that waits polls before it sleeps. Without it rings are not used. Default 50 µs; none
	// with fewer than 4 processors, and none on a tcp device, whose writes need a processor to arrive. Negative:
	// none.
	Spin time.Duration
	// Linger is how long polling may pause, when callers that polled got what they waited for, before the peers of the
	// channels are asked to use send/receive. A message that comes by a ring in the pause is seen that much later.
	// Default 500 µs.
	Linger time.Duration
	// Keepalive is how long a channel stays silent until it looks whether the peer is there. Default 1 s.
	Keepalive time.Duration
	// CloseTimeout bounds the wait of Close for what was sent. Default 1 s.
	CloseTimeout time.Duration
}

// Defaults of Config.
const (
	eagerDefault        = 2048
	buffersDefault      = 16
	setLimitDefault     = 16
	spinDefault         = 50 * time.Microsecond
	spinProcessors      = 4
	lingerDefault       = 500 * time.Microsecond
	keepaliveDefault    = time.Second
	closeTimeoutDefault = time.Second
)

// stateReceives are receives beyond those granted, for messages without a number. Each side has one such message under
// way at a time, and few follow each other without a message of the peer's. A stopped peer uses these receives up by
// keepalives, and then counts as dead.
const stateReceives = 16

func (c Config) withDefaults(dev rdma.Device) (Config, error) {
	defaultTo(&c.EagerBytes, eagerDefault)
	defaultTo(&c.Slots, buffersDefault)
	defaultTo(&c.Receives, buffersDefault)
	defaultTo(&c.SetLimit, setLimitDefault)
	defaultTo(&c.Linger, lingerDefault)
	defaultTo(&c.Keepalive, keepaliveDefault)
	defaultTo(&c.CloseTimeout, closeTimeoutDefault)
	if c.Spin == 0 && runtime.GOMAXPROCS(0) >= spinProcessors && !strings.HasPrefix(dev.Name(), "tcp") {
		c.Spin = spinDefault
	}
	c.Spin = max(c.Spin, 0)
	if c.EagerBytes < 0 || c.Linger < 0 || c.Keepalive < 0 || c.CloseTimeout < 0 {
		return c, fmt.Errorf("ring: negative size or time in the configuration: %w", rdma.ErrRequest)
	}
	a := address{slots: c.Slots, receives: c.Receives, slotBytes: c.slotBytes()}
	if err := a.check(); err != nil {
		return c, err
	}
	if depth := c.Receives + stateReceives; depth > dev.Limits().MaxQueueDepth {
		return c, fmt.Errorf("ring: %d receives, limit of %s %d: %w", depth, dev.Name(), dev.Limits().MaxQueueDepth,
			rdma.ErrRequest)
	}
	return c, nil
}

// slotBytes is the size of a buffer for the largest message.
func (c *Config) slotBytes() int { return max(tailOffset(c.EagerBytes)+wordBytes, slotBytesMin) }

func defaultTo[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}
