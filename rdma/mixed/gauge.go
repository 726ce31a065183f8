package mixed

import "github.com/rdmcfs/rdmcfs/rdma"

var _ rdma.Gauge = (*Device)(nil)

// Carried is what the links of those devices have carried that have ever carried a pair. It is not known from when on
// one of them does not tell: a card's bytes are not among those of the interfaces, and would look as if others had
// less of the link than they have.
func (d *Device) Carried() (sent, received uint64, ok bool) {
	for _, m := range d.members {
		if !m.carried.Load() {
			continue
		}
		g, is := m.Device.(rdma.Gauge)
		if !is {
			return 0, 0, false
		}
		out, in, known := g.Carried()
		if !known {
			return 0, 0, false
		}
		sent, received, ok = sent+out, received+in, true
	}
	return sent, received, ok
}
