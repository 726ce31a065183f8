//go:build linux && (amd64 || arm64) && !nordma

package ring

import (
	"os"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/rdmatest"
	"github.com/rdmcfs/rdmcfs/rdma/verbs"
)

func init() {
	openVerbs = func(t testing.TB) (a, b rdma.Device, killB func()) {
		var d [2]rdma.Device
		for i, gid := range []string{"10.77.0.1", "10.77.0.2"} {
			dev, err := verbs.Open(verbs.Config{Device: os.Getenv("RDMCFS_TEST_VERBS"), GID: gid,
				PeerTimeout: 3 * time.Second, ReceiverTimeout: time.Second})
			if err != nil {
				t.Fatal(err)
			}
			if *figures || os.Getenv("RDMCFS_TEST_ORDERED") != "" { // figures are of one write for a message, as on a card
				dev = rdmatest.Ordered{Device: dev}
			}
			d[i] = closeLater(t, dev)
		}
		return d[0], d[1], nil
	}
}
