package rdmc

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// tallied is a device that counts the posts of its queue pairs.
type tallied struct {
	rdma.Device
	posts atomic.Int64
}

type talliedPair struct {
	rdma.QueuePair
	device *tallied
}

func (d *tallied) NewQP(cfg rdma.QPConfig) (rdma.QueuePair, error) {
	q, err := d.Device.NewQP(cfg)
	if err != nil {
		return nil, err
	}
	return &talliedPair{q, d}, nil
}

func (q *talliedPair) PostSend(wrs ...rdma.SendWR) error {
	q.device.posts.Add(1)
	return q.QueuePair.PostSend(wrs...)
}

// TestAcknowledgementsRide: in a talk of one small message and its reports after another the root posts once for each
// member and message: that it has received the reports goes with the messages.
func TestAcknowledgementsRide(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(int) []rdma.Device) {
		const members, messages = 4, 400
		all := devices(1 + members)
		root := &tallied{Device: all[0]}
		all[0] = root
		g := newCluster(t, all).all(GroupConfig{Number: 1, SmallBytes: 100, SilenceTimeout: time.Hour,
			Small: func(uint64, []byte) {}})[0]
		before := root.posts.Load()
		for range messages {
			seq, err := g.SendSmall(make([]byte, 64))
			if err != nil {
				t.Fatal(err)
			}
			if err := g.WaitDelivered(testContext(t), seq); err != nil {
				t.Fatal(err)
			}
		}
		const want = members * messages
		if n := root.posts.Load() - before; n > want+want/50 {
			t.Errorf("%d posts of the root for %d messages to %d members", n, messages, members)
		}
	})
}
