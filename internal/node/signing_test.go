package node

import (
	"errors"
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
)

// The only voter, which alone has the signing key, is evicted: the node that votes then has the key, and others can
// join.
func TestSigningKeyStaysWhenTheOnlyVoterIsEvicted(t *testing.T) {
	c := noNodes(t)
	first := c.add("n1", func(dir, listen string) error {
		_, err := Init(InitConfig{DataDir: dir, Listen: listen, Name: "n1"})
		return err
	})
	t.Cleanup(func() { first.cancel(); first.done.Wait() })
	c.until("n1", "serving", serving)
	second := c.join("n2", "n1")
	c.until("n2", "serving", serving)
	delete(c.nodes, "n1")
	if _, err := second.admin.Evict(t.Context(), admin.EvictRequest{Node: 1}); err != nil {
		t.Fatal(err)
	}
	if first.done.Wait(); !errors.Is(first.err, ErrEvicted) {
		t.Errorf("n1 ended: %v", first.err)
	}
	c.until("n2", "the voter", func(st admin.Status) bool {
		return serving(st) && len(st.Voters) == 1 && st.Voters[0] == st.Node
	})
	c.join("n3", "n2")
	c.until("n3", "serving", serving)
}
