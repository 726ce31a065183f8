package node

import (
	"fmt"

	"github.com/rdmcfs/rdmcfs/internal/format"
	"github.com/rdmcfs/rdmcfs/meta"
)

// formats is which formats the program of this node knows, and which one the cluster uses.
type formats struct {
	db      *meta.DB
	version string
	known   format.Range
}

// program is what this node says of its program when it boots.
func (f formats) program() meta.Program { return meta.Program{Version: f.version, Formats: f.known} }

// end is what this node says on its connections. A state without an entry does not know what the cluster uses.
func (f formats) end() format.End {
	out := format.End{Known: f.known}
	if f.db.Index() > 0 {
		out.Used = f.db.Format()
	}
	return out
}

// refused is why the log does not let this node in.
func (f formats) refused() error {
	return fmt.Errorf("the cluster uses format %d, and this version knows format %s: %w", f.db.Format(), f.known,
		format.ErrUnknown)
}

// numberOf is the format in use; without a function it is the first.
func numberOf(used func() uint64) uint64 {
	if used == nil {
		return format.First
	}
	return used()
}

// raised is called before the first state in a later format is stored.
func (n *node) raised(number uint64) error {
	if err := n.dir.raise(number, n.cfg.Host.formats()); err != nil {
		return err
	}
	n.log.Info("the cluster uses another format", "format", number)
	return nil
}
