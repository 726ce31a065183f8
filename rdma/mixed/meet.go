package mixed

import (
	"errors"
	"fmt"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// ErrRoute is returned, with its cause, by a Connect whose provider does not connect the two hosts although both have
// it. A new pair of the two uses another provider.
var ErrRoute = errors.New("mixed: a provider that both ends have does not connect them")

// card is what a pair says about itself, and how it finds what joins it with its peer.
type card struct {
	dev     *Device
	own     address
	encoded []byte
	members []int // of the offers
}

// newCard is the card of a pair that has these queue pairs, by member; some may be nil.
func newCard(d *Device, qps []rdma.QueuePair) (card, error) {
	c := card{dev: d, own: address{host: d.host}}
	for i, qp := range qps {
		if qp == nil {
			continue
		}
		c.own.offers = append(c.own.offers, offer{name: d.members[i].kind.name, directory: d.directory.key(i),
			address: qp.Address()})
		c.members = append(c.members, i)
	}
	// The smallest filter is always kept free: whether addresses fit does not depend on what failed.
	c.own.avoid = make(filter, filterMin)
	b, err := c.own.encode()
	if err != nil {
		return card{}, err
	}
	room := min(filterMin+addressMax-len(b), filterMax)
	c.own.avoid = d.routes.filter(time.Now(), room)
	c.encoded, err = c.own.encode()
	return c, err
}

// meeting is what two addresses have led to.
type meeting struct {
	choice
	route  route
	member int   // ours
	peer   offer // theirs
	began  time.Time
}

// meet chooses what joins the pair with the one whose address is remote.
func (c *card) meet(remote []byte) (meeting, error) {
	peer, err := decodeAddress(remote)
	if err != nil {
		return meeting{}, err
	}
	ch, err := choose(&c.own, &peer)
	if err != nil {
		return meeting{}, err
	}
	return meeting{choice: ch, route: route{peer.host, ch.kind}, member: c.members[ch.local],
		peer: peer.offers[ch.remote], began: time.Now()}, nil
}

// blameAfter is how long a Connect must have taken to speak against the route when the caller ends it.
const blameAfter = time.Second

// parted says why a Connect failed, and notes it against the route if there is another one. ended says that the caller
// ended it, by the context or by Abort.
func (c *card) parted(m *meeting, err error, ended bool) error {
	name := c.dev.members[m.member].Name()
	err = fmt.Errorf("mixed: connect by %s: %w", name, err)
	now := time.Now()
	switch {
	case m.spare == "", ended && now.Sub(m.began) < blameAfter:
		return err
	// the peer, or this device, is at its end
	case !ended && (errors.Is(err, rdma.ErrState) || errors.Is(err, rdma.ErrClosed)):
		return err
	}
	span := c.dev.routes.blame(m.route, now).Round(time.Second)
	c.dev.log.Warn("provider does not connect two hosts that have it", "device", name, "peer",
		fmt.Sprintf("%x", m.route.host),
		"instead", m.spare, "for", span, "error", err)
	return fmt.Errorf("%w: %w (later queue pairs of the two use %s for %v)", ErrRoute, err, m.spare, span)
}
