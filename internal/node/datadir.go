package node

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"

	"github.com/rdmcfs/rdmcfs/fs"
	"github.com/rdmcfs/rdmcfs/internal/control"
	"github.com/rdmcfs/rdmcfs/internal/credentials"
	"github.com/rdmcfs/rdmcfs/internal/durable"
	"github.com/rdmcfs/rdmcfs/internal/format"
	"github.com/rdmcfs/rdmcfs/internal/httpapi"
	"github.com/rdmcfs/rdmcfs/meta"
	"golang.org/x/sys/unix"
)

// Errors of a data directory. Each says what to do.
var (
	// ErrNotMember is returned for a directory that holds no node.
	ErrNotMember = errors.New("no node lives in this data directory: run 'rdmcfs init' or 'rdmcfs join' with it first")
	// ErrMember is returned by init and join on a directory that holds a node already.
	ErrMember = errors.New("a node lives in this data directory already: use another --data, or remove it if that node " +
		"is given up")
	// ErrForeignFiles is returned by them on a directory with files that are not a node's.
	ErrForeignFiles = errors.New("a data directory holds nothing but a node: use a new or empty --data")
	// ErrInUse is returned while another process runs the node of a directory.
	ErrInUse = errors.New("another rdmcfs daemon runs on this data directory: stop it with 'rdmcfs stop', or use " +
		"another --data")
	// ErrOnMount is returned for a directory on a mount of rdmcfs.
	ErrOnMount = errors.New("rdmcfs can't keep its own data on rdmcfs: give --data a directory on a local disk")
)

const (
	identityFile = "node.json"
	lockFile     = "lock"
	identityMax  = 64 << 10
)

// identity is what makes a data directory a node of a cluster. It is written by init or join, and again when the
// cluster uses another format.
type identity struct {
	// Format is the latest format in which anything in the directory may be written.
	Format     uint64            `json:"format"`
	Cluster    string            `json:"cluster"`
	Node       meta.NodeID       `json:"node"`
	Store      string            `json:"store"` // random, 16 bytes in hex: another disk is another store
	Generation uint32            `json:"generation"`
	Name       string            `json:"name"`
	Listen     string            `json:"listen"`
	Advertise  string            `json:"advertise"`
	Labels     map[string]string `json:"labels,omitempty"`
	Founder    bool              `json:"founder,omitempty"`
	// TokenHash is the founder's first join token, put into the log at its first start.
	TokenHash    string `json:"token_hash,omitempty"`
	TokenExpires int64  `json:"token_expires,omitempty"`
	// Left are the generations that this node has left by a recovery: it has forgotten what it promised there.
	Left []uint32 `json:"left,omitempty"`
	// Recovering says that a recovery has begun to give up this node's state and log, to follow another node.
	Recovering bool `json:"recovering,omitempty"`
	// Peers are the nodes known at join, to reach the cluster before the log is here.
	Peers map[meta.NodeID]peerAddr `json:"peers,omitempty"`
}

// peerAddr is where another node was at the time of the join.
type peerAddr struct {
	Addr  string `json:"addr"`
	Store string `json:"store"`
}

func (id identity) store() [16]byte { return decodeID(id.Store) }

// decodeID reads 32 hex digits; anything else, which check refuses, is zero.
func decodeID(s string) (out [16]byte) {
	if raw, err := hex.DecodeString(s); err == nil && len(raw) == len(out) {
		copy(out[:], raw)
	}
	return out
}

func (id identity) cluster() credentials.ClusterID {
	return credentials.ClusterID(decodeID(id.Cluster))
}

func (id identity) check(known format.Range) error {
	if err := known.Check(id.Format); err != nil {
		return err
	}
	switch {
	case id.store() == [16]byte{} || id.cluster() == credentials.ClusterID{}:
		return errors.New("cluster or store id is damaged: restore the file from a backup, or join again with --replace")
	case id.Node == 0 || id.Generation == 0:
		return errors.New("node number or generation is missing: restore the file from a backup, " +
			"or join again with --replace")
	}
	return nil
}

// dataDir is the directory of one node:
//
//	node.json   who this is
//	peers.json  where the other nodes are, should the state be lost
//	lock        held while a daemon runs
//	tls/        certificates and keys
//	raft/       the log
//	state/      the replicated state (badger)
//	content/    version files, staging
//	admin.sock  the command line's way in
//	http-token  what a reader at the port of --http shows
//	log/        what a background daemon prints
type dataDir string

func (d dataDir) path(elem ...string) string {
	return filepath.Join(append([]string{string(d)}, elem...)...)
}

func (d dataDir) tls() credentials.Dir { return credentials.Dir(d.path("tls")) }

// load reads which node lives here. The error wraps ErrNotMember when none does, and format.ErrUnknown when a program
// that knows the given formats can't run it.
func (d dataDir) load(known format.Range) (identity, error) {
	var id identity
	f, err := os.Open(d.path(identityFile))
	if errors.Is(err, os.ErrNotExist) {
		return id, fmt.Errorf("node: %s: %w", string(d), ErrNotMember)
	}
	if err != nil {
		return id, fmt.Errorf("node: %w", err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, identityMax))
	if err != nil {
		return id, fmt.Errorf("node: read %s: %w", f.Name(), err)
	}
	if err := json.Unmarshal(raw, &id); err != nil {
		return id, fmt.Errorf("node: %s: %w: restore the file from a backup, or join again with --replace", f.Name(), err)
	}
	if err := id.check(known); err != nil {
		return id, fmt.Errorf("node: %s: %w", f.Name(), err)
	}
	return id, nil
}

// raise notes, durably, that what is written here may be in another format from now on. A program that does not know
// that one finds the note first of all.
func (d dataDir) raise(number uint64, known format.Range) error {
	id, err := d.load(known)
	if err != nil || id.Format >= number {
		return err
	}
	id.Format = number
	return d.save(id)
}

// save writes which node lives here, durably: last of all that init and join make.
func (d dataDir) save(id identity) error {
	raw, err := json.MarshalIndent(id, "", "  ")
	if err != nil {
		return fmt.Errorf("node: %w", err)
	}
	if err := durable.WriteFile(d.path(identityFile), append(raw, '\n')); err != nil {
		return fmt.Errorf("node: %w", err)
	}
	return nil
}

// local refuses a directory on a mount of rdmcfs: a node that keeps its data there would wait for itself, or for
// another node.
func (d dataDir) local() error {
	if dir := fs.MountAbove(string(d)); dir != "" {
		return fmt.Errorf("node: data directory %s lies on the mount %s: %w", string(d), dir, ErrOnMount)
	}
	return nil
}

// make makes the directory, durably.
func (d dataDir) make() error {
	if err := durable.MakeDir(string(d)); err != nil {
		return fmt.Errorf("node: data directory: %w", err)
	}
	return nil
}

// vacant makes sure that the directory can become a node: it lies on a local disk, and nobody lives in it. It makes
// nothing.
func (d dataDir) vacant(h Host) error {
	if err := h.local(d); err != nil {
		return err
	}
	if _, err := os.Stat(d.path(identityFile)); err == nil {
		return fmt.Errorf("node: %s: %w", string(d), ErrMember)
	}
	entries, err := os.ReadDir(string(d))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("node: data directory: %w", err)
	}
	for _, e := range entries {
		if !slices.Contains(ownNames, e.Name()) {
			return fmt.Errorf("node: %s: %s is in it: %w", string(d), e.Name(), ErrForeignFiles)
		}
	}
	return nil
}

// ownNames are what may be in a directory before a node is: what an init or join that was cut short has left, what mkfs
// makes, and a token for --http that several nodes are to have.
var ownNames = []string{identityFile + ".new", lockFile, "raft", "tls", "state", "content", "log", "admin.sock",
	httpapi.TokenFile, "lost+found"}

// lock keeps other daemons out until the returned file is closed. It ends with the process.
func (d dataDir) lock() (*os.File, error) {
	f, err := os.OpenFile(d.path(lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("node: lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("node: %s: %w", string(d), ErrInUse)
		}
		return nil, fmt.Errorf("node: lock %s: %w", f.Name(), err)
	}
	held, err := f.Stat()
	if there, lerr := os.Stat(f.Name()); err != nil || lerr != nil || !os.SameFile(held, there) {
		f.Close() // a join that was refused has just removed it
		return nil, fmt.Errorf("node: %s: %w", string(d), ErrInUse)
	}
	return f, nil
}

// advertised is the address that others dial: the listening one, which must name a host.
func advertised(listen, advertise string) (string, error) {
	addr := advertise
	if addr == "" {
		addr = listen
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", control.Usagef("node: address %q: want HOST:PORT, such as 10.0.0.1:7400", addr)
	}
	ip := net.ParseIP(host)
	if host == "" || (ip != nil && ip.IsUnspecified()) || port == "0" || port == "" {
		return "",
			control.Usagef("node: address %q: other nodes can't dial it; give --listen (or --advertise) a host and a port", addr)
	}
	if _, err := net.LookupPort("tcp", port); err != nil {
		return "", control.Usagef("node: address %q: %q is no port", addr, port)
	}
	return addr, nil
}
