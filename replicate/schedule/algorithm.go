package schedule

import (
	"fmt"
	"strings"
)

// Algorithm names a way to build schedules.
type Algorithm uint8

// The algorithms of the papers, and circulant graphs.
const (
	// Sequential sends the whole message from the root to each member in turn: k(n-1) steps.
	Sequential Algorithm = iota + 1
	// Chain passes each block from rank to rank: k+n-2 steps.
	Chain
	// BinomialTree passes the whole message along a binomial tree: k*ceil(log2 n) steps.
	BinomialTree
	// BinomialPipeline is the default: Hypercube if the size is a power of two, else Circulant.
	BinomialPipeline
	// Hypercube is the binomial pipeline of the DSN paper, for 2^l members: k-1+l steps.
	Hypercube
	// Twin is the technical report's extension to any size, two members sharing a vertex of a
	// hypercube where needed: k-1+ceil(log2 n) steps.
	Twin
	// Circulant sends to rank+skip and receives from rank-skip over about log2 n fixed skips:
	// k-1+ceil(log2 n) steps for any size.
	Circulant
	// Hybrid is the binomial pipeline among the leaders of racks and within each rack; NewHybridPlan makes its plans:
	// about 2(k+ceil(log2 r)+ceil(log2 m)) steps for r racks of at most m members.
	Hybrid
)

var algorithmNames = [...]string{
	Sequential:       "sequential",
	Chain:            "chain",
	BinomialTree:     "binomial-tree",
	BinomialPipeline: "binomial-pipeline",
	Hypercube:        "hypercube",
	Twin:             "twin",
	Circulant:        "circulant",
	Hybrid:           "hybrid",
}

// Algorithms lists all algorithms. Not each has a plan for each size, and Hybrid needs to know the racks.
func Algorithms() []Algorithm {
	return []Algorithm{Sequential, Chain, BinomialTree, BinomialPipeline, Hypercube, Twin, Circulant, Hybrid}
}

// String is the name that ParseAlgorithm takes.
func (a Algorithm) String() string {
	if a.check() != nil {
		return fmt.Sprintf("algorithm(%d)", uint8(a))
	}
	return algorithmNames[a]
}

// ParseAlgorithm finds an algorithm by its name, in any case; an unknown name is ErrInvalid.
func ParseAlgorithm(name string) (Algorithm, error) {
	for _, a := range Algorithms() {
		if strings.EqualFold(name, a.String()) {
			return a, nil
		}
	}
	return 0, fmt.Errorf("%w: algorithm %q, want one of %s", ErrInvalid, name, strings.Join(algorithmNames[1:], ", "))
}

// MarshalText gives the name.
func (a Algorithm) MarshalText() ([]byte, error) { return []byte(a.String()), a.check() }

// UnmarshalText reads a name as ParseAlgorithm does.
func (a *Algorithm) UnmarshalText(text []byte) (err error) {
	*a, err = ParseAlgorithm(string(text))
	return err
}

func (a Algorithm) check() error {
	if a < Sequential || int(a) >= len(algorithmNames) {
		return fmt.Errorf("%w: algorithm %d", ErrInvalid, uint8(a))
	}
	return nil
}
