package mixed

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// choice is the provider that joins two addresses, and which offer of each it is.
type choice struct {
	kind
	local, remote int
	spare         string // the provider that would be next; empty: none
}

// choose finds the provider for two addresses. Both ends find the same: the one that is highest in both
// orders of preference together and that neither end avoids. The last common one is used even so.
func choose(local, remote *address) (choice, error) {
	var common []choice
	theirs := remote.kinds()
	for i, k := range local.kinds() {
		if j := slices.Index(theirs, k); j >= 0 {
			common = append(common, choice{kind: k, local: i, remote: j})
		}
	}
	if len(common) == 0 {
		return choice{}, fmt.Errorf("mixed: no provider in common (here %s, there %s): %w", local.names(), remote.names(),
			rdma.ErrRequest)
	}
	slices.SortFunc(common, func(a, b choice) int {
		return cmp.Or(cmp.Compare(a.local+a.remote, b.local+b.remote), cmp.Compare(a.name, b.name), cmp.Compare(a.nth, b.nth))
	})
	for i, c := range common[:len(common)-1] {
		if !local.avoid.has(remote.host, c.kind) && !remote.avoid.has(local.host, c.kind) {
			c.spare = common[i+1].name
			return c, nil
		}
	}
	return common[len(common)-1], nil
}

func (a *address) names() string {
	var names []string
	for _, o := range a.offers {
		names = append(names, o.name)
	}
	return strings.Join(names, "+")
}
