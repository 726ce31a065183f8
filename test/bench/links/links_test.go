package links

import (
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/tools/bench"
)

// TestTimeOf: what iperf3's receiver lacked when the clocks stopped takes time too.
func TestTimeOf(t *testing.T) {
	if got := timeOf(bench.IperfResult{Seconds: 2, Bytes: 2_000_000}, 2_500_000); got != 2500*time.Millisecond {
		t.Error(got)
	}
}
