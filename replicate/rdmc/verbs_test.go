package rdmc

import (
	"os"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/verbs"
)

// With an RDMA device (test/vm/run.sh makes one) the group tests run on it too.
func init() {
	if name := os.Getenv("RDMCFS_TEST_VERBS"); name != "" {
		fabrics["verbs"] = func(t testing.TB, n int) []rdma.Device {
			var all []rdma.Device
			for range n {
				d, err := verbs.Open(verbs.Config{Device: name, PeerTimeout: time.Second})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { d.Close() })
				all = append(all, d)
			}
			return all
		}
	}
}
