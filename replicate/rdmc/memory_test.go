package rdmc

import (
	"errors"
	"testing"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// TestGroupsShareTheRegisteredBudget: each new group takes at most half of what is free, in fewer buffers; messages
// larger than the budget arrive through them; what is reserved comes back; and a group that does not fit is refused
// when it is made.
func TestGroupsShareTheRegisteredBudget(t *testing.T) {
	eachFabric(t, func(t *testing.T, devices func(n int) []rdma.Device) {
		const budget = 1 << 20
		c := &cluster{t: t}
		for _, d := range devices(3) {
			e, err := NewEngine(EngineConfig{Device: d, Memory: NewMemory(budget)})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = e.Close() })
			c.engines = append(c.engines, e)
		}
		cfg := GroupConfig{BlockSize: 16 << 10, Window: 64}
		var all [][]*Group
		for i := range 4 {
			cfg.Number = uint64(i + 1)
			all = append(all, c.group(cfg, 0, 1, 2))
		}
		if first, last := all[0][0].cfg.Window, all[3][0].cfg.Window; first >= 64 || last >= first || last < 2 {
			t.Errorf("windows of %d, then %d buffers", first, last)
		}
		for i, groups := range all {
			transfers, sinks := multicast(t, groups, randomMemory(uint64(i), 3<<20, cfg.BlockSize))
			verify(t, transfers, sinks)
		}
		_, err := c.engines[0].NewGroup(GroupConfig{Number: 9, Members: []string{"a", "b"}, BlockSize: budget})
		if !errors.Is(err, ErrMemory) {
			t.Errorf("a group whose two blocks are more than the budget: %v", err)
		}
		for _, groups := range all {
			closeAll(t, groups)
		}
		for i, e := range c.engines {
			if peak, used := e.memory.Peak(), e.memory.Used(); peak > budget || used != 0 {
				t.Errorf("engine %d: %d bytes reserved, %d at the peak", i, used, peak)
			}
		}
	})
}
