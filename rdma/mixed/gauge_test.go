package mixed

import (
	"testing"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// gauged is a device that knows what its link carries.
type gauged struct {
	rdma.Device
	sent, received uint64
	unknown        bool
}

func (d *gauged) Carried() (sent, received uint64, ok bool) { return d.sent, d.received, !d.unknown }

// carrierOf is the name of the device that carries a pair of a mixed device; empty while none does.
func carrierOf(qp rdma.QueuePair) string {
	p, ok := qp.(*pair)
	if !ok {
		return qp.(*thinPair).dev.members[0].Name()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.carrier < 0 {
		return ""
	}
	return p.dev.members[p.carrier].Name()
}

// TestCarried: the links of those that carry pairs, and nothing where one of these does not tell.
func TestCarried(t *testing.T) {
	for name, c := range map[string]struct {
		better  bool // there is a better device, which does not tell
		unknown bool
		want    uint64 // 0: not known
	}{
		"one that tells":               {want: 5},
		"one that does not know":       {unknown: true},
		"another one carries the pair": {better: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFabric(1)
			var ends []*Device
			for _, host := range []string{"a", "b"} {
				last := &gauged{Device: tcpDevice(t), sent: 5, received: 7, unknown: c.unknown}
				if c.better {
					ends = append(ends, newMixed(t, devices(f.Device(host), last)))
				} else {
					ends = append(ends, newMixed(t, devices(last)))
				}
			}
			if _, _, ok := ends[0].Carried(); ok {
				t.Error("known before there was a pair")
			}
			link(t, ends[0], ends[1], 4)
			sent, received, ok := ends[0].Carried()
			if ok != (c.want > 0) || sent != c.want || ok && received != 7 {
				t.Errorf("%d, %d, %v", sent, received, ok)
			}
		})
	}
}
