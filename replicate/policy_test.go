package replicate

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// TestPolicyCapsAndClasses: files under a policy with a cap and a class go by groups of their own, whose ends all keep
// to them. Two files at the same time do not send more than the cap together. What they reach is not taken for what the
// links carry.
func TestPolicyCapsAndClasses(t *testing.T) {
	eachFabric(t, func(t *testing.T, fabric string) {
		const rate, size = 4 << 20, 4 << 20
		c, _ := onFabric(t, fabric, 3)
		var mu sync.Mutex
		var seen []rdmc.GroupConfig
		for _, n := range c.all() {
			n.stop()
			n.groups = seenGroups{n.groups, &mu, &seen}
			n.start()
		}
		c.settled()
		c.must(1, &meta.SetPolicy{Dir: meta.RootIno, Policy: &meta.Policy{SendRate: rate, Priority: meta.PriorityLow}})
		began := time.Now()
		var both sync.WaitGroup
		for i := range 2 {
			ino := c.create(1, fmt.Sprint(i))
			both.Go(func() {
				b := randomBytes(uint64(i), size)
				out, err := c.node(1).publish(ino, meta.ContentID{}, b)
				if err != nil || len(out.Result.Owed) > 0 {
					t.Errorf("%+v, %v", out.Result, err)
					return
				}
				for _, n := range c.all() {
					n.wantBytes(out.Content, b)
				}
			})
		}
		both.Wait()
		if took, least := time.Since(began), 2*size*time.Second/rate; took < least*9/10 {
			t.Errorf("it took %v, less than the %v of the cap", took, least)
		}
		if pace := c.node(1).rep.rootGroups.pace.Load(); pace != 0 {
			t.Errorf("the links are taken to carry %d bytes a second", pace)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, cfg := range seen {
			if cfg.SendRate != rate || cfg.Priority != rdmc.PriorityLow {
				t.Errorf("a group with a cap of %d and the class %d", cfg.SendRate, cfg.Priority)
			}
		}
		if len(seen) != 3 {
			t.Errorf("%d ends, want one group", len(seen))
		}
	})
}

// TestReasonsOfAPolicy: whoever asks why a transfer is slow hears of the policy.
func TestReasonsOfAPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		set := c.must(1, &meta.SetPolicy{Dir: meta.RootIno, Policy: &meta.Policy{SendRate: 2e6, Priority: meta.PriorityHigh}})
		form, choice, err := chooseForm(c.node(1).db, []meta.NodeID{1, 2, 3}, 1<<30, set.Inode.Policy)
		if err != nil || form.SendRate != 2e6 || form.Priority != meta.PriorityHigh ||
			form.BlockBytes != schedule.DefaultBlockSize || len(choice.Reasons) < 2 {
			t.Fatalf("%+v, %v", form, err)
		}
		want := []string{"The policy lets each node send 2.00 MB/s.", "The policy gives it high priority."}
		for i, got := range choice.Reasons[len(choice.Reasons)-2:] {
			if got != want[i] {
				t.Errorf("%q, want %q", got, want[i])
			}
		}
	})
}
