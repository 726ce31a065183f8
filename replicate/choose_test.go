package replicate

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
)

// TestBlocksGrowWithTheMessage holds the sizes of blocks that members drift apart by under 1%.
func TestBlocksGrowWithTheMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		for stream, want := range map[int64]int64{0: 64 << 10, 1: 64 << 10, 128 << 20: 64 << 10, 129 << 20: 128 << 10,
			257 << 20: 256 << 10, 1 << 40: 256 << 10} {
			form, choice, err := chooseForm(c.node(1).db, []meta.NodeID{1, 2, 3}, stream, 0)
			if err != nil || form.BlockBytes != want || form.Algorithm != schedule.BinomialPipeline || form.Racks != nil ||
				len(choice.Reasons) == 0 {
				t.Errorf("%d bytes: %+v, %v", stream, form, err)
			}
		}
	})
}

// inRacks are labels for nodes in two racks, whose uplinks carry an eighth of what the nodes can send.
func inRacks(id meta.NodeID) map[string]string {
	return map[string]string{"rack": fmt.Sprint(id % 2), "oversubscription": "8"}
}

// TestHybridNeedsTheRacksOfAll: a member without a rack, or racks without an oversubscription, leave it at the flat
// pipeline, and the reasons say so where racks are known.
func TestHybridNeedsTheRacksOfAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := []meta.NodeID{1, 2, 3, 4, 5, 6}
		for name, c := range map[string]struct {
			labels func(meta.NodeID) map[string]string
			want   schedule.Algorithm
			why    string
		}{
			"racks": {inRacks, schedule.Hybrid, "hybrid: "},
			"fast uplinks": {func(id meta.NodeID) map[string]string { return map[string]string{"rack": fmt.Sprint(id % 2)} },
				schedule.BinomialPipeline, "not the hybrid"},
			"one without": {func(id meta.NodeID) map[string]string {
				if id == 3 {
					return nil
				}
				return inRacks(id)
			}, schedule.BinomialPipeline, "circulant"},
			"no number": {func(id meta.NodeID) map[string]string {
				return map[string]string{"rack": fmt.Sprint(id % 2), "oversubscription": "much"}
			}, schedule.BinomialPipeline, "not the hybrid"},
		} {
			form, choice, err := chooseForm(newClusterWith(t, 6, 1, c.labels).node(1).db, all, 100<<20, 0)
			if err != nil || form.Algorithm != c.want || !strings.Contains(strings.Join(choice.Reasons, "\n"), c.why) {
				t.Errorf("%s: %+v, %v", name, choice, err)
			}
			if hybrid := c.want == schedule.Hybrid; hybrid != slices.Equal(form.Racks, []int{0, 1, 0, 1, 0, 1}) {
				t.Errorf("%s: racks %v", name, form.Racks)
			}
		}
	})
}

// seenGroups notes the configurations of a node's groups.
type seenGroups struct {
	Groups
	mu  *sync.Mutex
	all *[]rdmc.GroupConfig
}

func (s seenGroups) NewGroup(cfg rdmc.GroupConfig) (Group, error) {
	s.mu.Lock()
	*s.all = append(*s.all, cfg)
	s.mu.Unlock()
	return s.Groups.NewGroup(cfg)
}

// TestHybridInOversubscribedRacks: files go by the hybrid to nodes in such racks, and to the remaining nodes when the
// leader of a rack has died. All ends of a group have the same racks.
func TestHybridInOversubscribedRacks(t *testing.T) {
	eachFabric(t, func(t *testing.T, fabric string) {
		c := newClusterWith(t, 6, 1, inRacks)
		c.useFabric(fabric, 0)
		var mu sync.Mutex
		var seen []rdmc.GroupConfig
		for _, n := range c.all() {
			n.stop()
			n.groups = seenGroups{n.groups, &mu, &seen}
			n.start()
		}
		publish := func(name string, up []meta.NodeID) {
			b := randomBytes(3, 20<<20)
			out, err := c.node(1).publish(c.create(1, name), meta.ContentID{}, b)
			if err != nil {
				t.Fatal(err)
			}
			for _, id := range up {
				c.node(id).wantBytes(out.Content, b)
			}
		}
		publish("all", []meta.NodeID{1, 2, 3, 4, 5, 6})
		c.node(2).stop() // the leader of the rack of 2, 4 and 6
		publish("without one", []meta.NodeID{1, 3, 4, 5, 6})
		mu.Lock()
		defer mu.Unlock()
		sizes := make(map[int]int)
		for _, cfg := range seen {
			sizes[len(cfg.Members)]++
			if cfg.Algorithm != schedule.Hybrid || len(cfg.Racks) != len(cfg.Members) {
				t.Errorf("rank %d of %v: %v, racks %v", cfg.Rank, cfg.Members, cfg.Algorithm, cfg.Racks)
			}
		}
		if sizes[6] < 6 || sizes[5] < 5 {
			t.Errorf("ends of groups by size: %v", sizes)
		}
	})
}
