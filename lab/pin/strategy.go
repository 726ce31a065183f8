package pin

import (
	"fmt"
	"strings"
)

// Strategy is how a message and the registration of its memory go together.
type Strategy uint8

// The strategies of the paper.
const (
	// Copy sends through registered buffers, with a copy at each end.
	Copy Strategy = iota
	// OnDemand registers the whole memory at both ends, writes, and deregisters.
	OnDemand
	// Cached is OnDemand that keeps registrations and finds them again (section 5.1).
	Cached
	// Pipeline sends the first part, and writes fragments that are registered meanwhile, a bounded number at a time
	// (section 4).
	Pipeline
	// CachedPipeline is Pipeline that keeps the registrations of its fragments, which begin on boundaries of their
	// size (section 5.2), and joins those of a message that is sent again and again.
	CachedPipeline
)

var strategyNames = [...]string{"copy", "on-demand", "cache", "pipeline", "caching-pipeline"}

// Strategies are all there are, in the order of the paper.
func Strategies() []Strategy { return []Strategy{Copy, OnDemand, Cached, Pipeline, CachedPipeline} }

// String is the strategy's name on command lines.
func (s Strategy) String() string {
	if int(s) < len(strategyNames) {
		return strategyNames[s]
	}
	return fmt.Sprintf("strategy %d", uint8(s))
}

// ParseStrategy reads a name.
func ParseStrategy(name string) (Strategy, error) {
	for i, n := range strategyNames {
		if strings.EqualFold(n, name) {
			return Strategy(i), nil
		}
	}
	return 0, fmt.Errorf("pin: no strategy %q: give one of %s", name, strings.Join(strategyNames[:], ", "))
}

// keeps reports whether registrations stay.
func (s Strategy) keeps() bool { return s == Cached || s == CachedPipeline }

// piped reports whether the message is written in fragments.
func (s Strategy) piped() bool { return s == Pipeline || s == CachedPipeline }
