package node

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"

	"github.com/rdmcfs/rdmcfs/internal/durable"
	"github.com/rdmcfs/rdmcfs/meta"
)

// peersFile holds where the other nodes are, for a node that has no state to read it from.
const peersFile = "peers.json"

// loadPeers adds the nodes of the peers file to those of the join.
func (d dataDir) loadPeers(joined map[meta.NodeID]peerAddr) map[meta.NodeID]peerAddr {
	out := map[meta.NodeID]peerAddr{}
	maps.Copy(out, joined)
	var known map[meta.NodeID]peerAddr
	if raw, err := os.ReadFile(d.path(peersFile)); err == nil && json.Unmarshal(raw, &known) == nil {
		maps.Copy(out, known)
	}
	return out
}

// peerAddresses keeps the peers file up to date.
type peerAddresses struct {
	dir     dataDir
	self    meta.NodeID
	members *members
	log     *slog.Logger
	kept    map[meta.NodeID]peerAddr // as in the file; the applying goroutine's
}

// keep writes the peers file if another node came, moved or went.
func (f *peerAddresses) keep() {
	now := map[meta.NodeID]peerAddr{}
	for id, rec := range f.members.book().nodes {
		if id != f.self && rec.Addr != "" && rec.State != meta.NodeEvicted {
			now[id] = peerAddr{Addr: rec.Addr, Store: fmt.Sprintf("%x", rec.Store)}
		}
	}
	if maps.Equal(now, f.kept) {
		return
	}
	raw, err := json.MarshalIndent(now, "", "  ")
	if err == nil {
		err = durable.WriteFile(f.dir.path(peersFile), append(raw, '\n'))
	}
	if err != nil {
		f.log.Warn("peers file", "err", err)
		return
	}
	f.kept = now
}
