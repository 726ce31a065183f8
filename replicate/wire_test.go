package replicate

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rdmcfs/rdmcfs/internal/blockset"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate/schedule"
	"github.com/rdmcfs/rdmcfs/replicate/session"
	"github.com/rdmcfs/rdmcfs/test/codertest"
)

var someID = meta.ContentID{Node: 7, Incarnation: 3, Seq: 99}

// roundTrips are messages with their encodings; each decode makes an equal message.
func roundTrips() map[string][2]any {
	first := func(v any, _ error) any { return v }
	ann := announce{Content: someID, Ino: 5, Epoch: 2, Published: true, Root: [32]byte{1}, Shape: []byte{9, 9},
		Follows: someID}
	st := standing{someID, session.Standing{Epoch: 4, Status: session.StatusRefused, Reason: meta.OwedFull, Text: "full",
		Held: 3, Have: blockset.BitmapOf(8, blockset.Ranges{{First: 0, Count: 1}, {First: 2, Count: 1}})}}
	beg := begin{someID, 1, 77, []byte{1, 2}}
	fin := finish{someID, 1, 300, true, [32]byte{3}}
	stp := stop{someID, 6, true}
	put := []putItem{{someID, 4, true, [32]byte{2}, []byte("bytes"), []byte("shape")},
		{Content: someID, Bytes: []byte("x")}}
	fet := fetch{someID, 1 << 40, 1 << 20}
	rep := fetchReply{session.StatusVoted, "t", 42, []byte("abc")}
	wrk := work{100, 7, 8, true, []meta.NodeID{1, 2}, []meta.ContentID{someID}}
	wr := workReply{
		[]meta.ContentID{someID}, nil, []meta.ContentID{{Seq: 1}}, []meta.ContentID{{Seq: 2}}, []meta.NodeID{9}, 12,
	}
	grp := groupOpen{1 << 40, []meta.NodeID{1, 2, 3}, groupForm{1 << 18, schedule.Chain, nil, 1 << 40, meta.PriorityHigh}}
	racked := groupOpen{1 << 40, []meta.NodeID{1, 2, 3}, groupForm{1 << 18, schedule.Hybrid, []int{0, 300, 0}, 0, 0}}
	adr := groupAddresses{5, refusal{}, map[int][]byte{0: {1}, 3: {2, 2}}}
	end := groupEnd{8, true}
	no, rm := refusal{refusedMemory, "no"}, room{1 << 40, 1 << 41}
	return map[string][2]any{
		"announce": {ann, first(decodeAnnounce(ann.encode()))}, "standing": {st, first(decodeStanding(st.encode()))},
		"begin": {beg, first(decodeBegin(beg.encode()))}, "finish": {fin, first(decodeFinish(fin.encode()))},
		"stop": {stp, first(decodeStop(stp.encode()))}, "put": {put, first(decodePut(encodePut(put)))},
		"standings": {[]standing{st}, first(decodeStandings(encodeStandings([]standing{st})))},
		"fetch":     {fet, first(decodeFetch(fet.encode()))}, "fetch reply": {rep, first(decodeFetchReply(rep.encode()))},
		"work": {wrk, first(decodeWork(wrk.encode()))}, "work reply": {wr, first(decodeWorkReply(wr.encode()))},
		"group":          {grp, first(decodeGroupOpen(grp.encode()))},
		"group in racks": {racked, first(decodeGroupOpen(racked.encode()))},
		"addresses":      {adr, first(decodeGroupAddresses(adr.encode()))},
		"group end":      {end, first(decodeGroupEnd(end.encode()))},
		"room":           {rm, first(decodeRoom(rm.encode()))},
		"outcome":        {no, first(decodeOutcome(encodeOutcome(no)))},
	}
}

var sameBlocks = cmp.Comparer(func(a, b *blockset.Bitmap) bool {
	return a.Blocks() == b.Blocks() && slices.Equal(a.Present(), b.Present())
})

func TestMessagesRoundTrip(t *testing.T) {
	for name, pair := range roundTrips() {
		if diff := cmp.Diff(pair[0], pair[1], cmpopts.EquateEmpty(), cmp.AllowUnexported(), sameBlocks); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// decoders are all decoders of this package, each as "decode and encode again".
func decoders() map[string]func([]byte) ([]byte, error) {
	return map[string]func([]byte) ([]byte, error){
		"announce":  func(b []byte) ([]byte, error) { m, err := decodeAnnounce(b); return m.encode(), err },
		"standing":  func(b []byte) ([]byte, error) { m, err := decodeStanding(b); return m.encode(), err },
		"begin":     func(b []byte) ([]byte, error) { m, err := decodeBegin(b); return m.encode(), err },
		"finish":    func(b []byte) ([]byte, error) { m, err := decodeFinish(b); return m.encode(), err },
		"stop":      func(b []byte) ([]byte, error) { m, err := decodeStop(b); return m.encode(), err },
		"put":       func(b []byte) ([]byte, error) { m, err := decodePut(b); return encodePut(m), err },
		"standings": func(b []byte) ([]byte, error) { m, err := decodeStandings(b); return encodeStandings(m), err },
		"fetch":     func(b []byte) ([]byte, error) { m, err := decodeFetch(b); return m.encode(), err },
		"reply":     func(b []byte) ([]byte, error) { m, err := decodeFetchReply(b); return m.encode(), err },
		"work":      func(b []byte) ([]byte, error) { m, err := decodeWork(b); return m.encode(), err },
		"workReply": func(b []byte) ([]byte, error) { m, err := decodeWorkReply(b); return m.encode(), err },
		"group":     func(b []byte) ([]byte, error) { m, err := decodeGroupOpen(b); return m.encode(), err },
		"addresses": func(b []byte) ([]byte, error) { m, err := decodeGroupAddresses(b); return m.encode(), err },
		"groupEnd":  func(b []byte) ([]byte, error) { m, err := decodeGroupEnd(b); return m.encode(), err },
		"room":      func(b []byte) ([]byte, error) { m, err := decodeRoom(b); return m.encode(), err },
		"outcome":   func(b []byte) ([]byte, error) { m, err := decodeOutcome(b); return encodeOutcome(m), err },
	}
}

func TestEveryTruncationIsAnError(t *testing.T) {
	ann := announce{Content: someID, Shape: []byte{9, 9}}
	st := standing{someID, session.Standing{Status: session.StatusVoted, Text: "text"}}
	adr := groupAddresses{5, refusal{refusedPlain, "x"}, map[int][]byte{0: {1}, 3: {2, 2}}}
	for name, b := range map[string][]byte{
		"announce": ann.encode(), "standing": st.encode(), "addresses": adr.encode(),
		"put": encodePut([]putItem{{Content: someID, Bytes: []byte("abc")}}),
	} {
		for n := range b {
			if _, err := decoders()[name](b[:n]); !errors.Is(err, errWire) {
				t.Errorf("%s cut to %d of %d bytes: %v", name, n, len(b), err)
			}
		}
		if _, err := decoders()[name](append(b, 0)); !errors.Is(err, errWire) {
			t.Errorf("%s with a byte too many: %v", name, err)
		}
	}
}

// FuzzDecodeMessages holds every decoder to: no panic, bounded memory, and what is accepted encodes to the same bytes.
func FuzzDecodeMessages(f *testing.F) {
	for _, b := range goldenMessages() {
		f.Add(b)
	}
	all := decoders()
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, again := range all {
			codertest.Again(t, b, again)
		}
	})
}
