package replicate

import (
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/blockset"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
	"github.com/rdmcfs/rdmcfs/replicate/session"
	"github.com/rdmcfs/rdmcfs/test/codertest"
)

// filled is a message with something in each field.
func filled[T any](adjust ...func(*T)) *T {
	m := new(T)
	codertest.Fill(m)
	for _, f := range adjust {
		f(m)
	}
	return m
}

// goldenMessages returns a message of each kind.
func goldenMessages() map[string][]byte {
	no := func(f *refusal) { f.Code = refusedPlain }
	st := &standing{meta.ContentID{Node: 3, Incarnation: 4, Seq: 5}, session.Standing{
		Epoch: 6, Status: session.StatusRefused, Reason: 2, Text: "text 9", Held: 10,
		Have: blockset.BitmapOf(16, blockset.Ranges{{First: 2, Count: 2}, {First: 8, Count: 1}, {First: 10, Count: 2}}),
	}}
	group := filled(func(m *groupOpen) { m.Form.Algorithm, m.Form.Racks = schedule.Chain, nil })
	return map[string][]byte{
		"announce": filled[announce]().encode(), "announce-zero": new(announce).encode(),
		"standing": st.encode(), "begin": filled[begin]().encode(), "finish": filled[finish]().encode(),
		"stop": filled[stop]().encode(),
		"put":  encodePut([]putItem{*filled[putItem](), {}}), "put-none": encodePut(nil),
		"standings":   encodeStandings([]standing{*st, {Standing: session.Standing{Status: session.StatusVoted}}}),
		"fetch":       filled[fetch]().encode(),
		"fetch-reply": filled(func(m *fetchReply) { m.Status = session.StatusVoted }).encode(),
		"work":        filled[work]().encode(), "work-reply": filled[workReply]().encode(),
		"work-reply-zero": new(workReply).encode(),
		"group":           group.encode(),
		"group-racks":     filled(func(m *groupOpen) { m.Form.Algorithm = schedule.Hybrid }).encode(),
		"addresses":       filled(func(m *groupAddresses) { no(&m.Refused) }).encode(),
		"room":            filled[room]().encode(),
		"group-end":       filled[groupEnd]().encode(), "outcome": encodeOutcome(*filled(no)),
		"outcome-yes": encodeOutcome(refusal{}),
	}
}

// Other nodes speak these bytes.
func TestGoldenBytes(t *testing.T) { codertest.Golden(t, goldenMessages()) }
