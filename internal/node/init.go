package node

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/internal/control"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/credentials"
	"github.com/rdmcfs/rdmcfs/internal/format"
	"github.com/rdmcfs/rdmcfs/meta"
	"golang.org/x/sys/unix"
)

const (
	firstNode       = meta.NodeID(1)
	firstGeneration = 1
	// DefaultTokenTTL is how long a join token is good for.
	DefaultTokenTTL = 24 * time.Hour
	// FirstTokenUses is how many machines the token of init lets in: one line is enough for the whole cluster.
	FirstTokenUses = 1024
)

// InitConfig says how to make a cluster.
type InitConfig struct {
	DataDir   string
	Listen    string // host:port of the one port
	Advertise string // what others dial; "" = Listen
	Name      string // "" = the host's name
	Labels    map[string]string
	TokenTTL  time.Duration // 0 = DefaultTokenTTL
	HTTP      string        // what Config.HTTP is to bind; "" = nothing
	Fabric    Fabric        // what Config.Fabric is to be; RDMA that is demanded must be there
	Host      Host
}

// JoinConfig says how to become a member.
type JoinConfig struct {
	DataDir   string
	Seed      string // address of any member
	Token     string
	Listen    string
	Advertise string
	Name      string
	Labels    map[string]string
	Replace   bool
	HTTP      string // as in InitConfig
	Fabric    Fabric // as in InitConfig
	Version   string // of the program
	Host      Host
}

// Init makes the data directory of a new cluster's first node. It starts nothing. The token lets other machines join
// once the node runs.
func Init(cfg InitConfig) (admin.Token, error) {
	addr, err := checkNode(cfg.Listen, cfg.Advertise, cfg.Name, cfg.Labels)
	if err != nil {
		return admin.Token{}, err
	}
	if err := cfg.Fabric.check(addr); err != nil {
		return admin.Token{}, err
	}
	d := dataDir(cfg.DataDir)
	claimed, err := d.claim(cfg.Host, cfg.Listen, cfg.HTTP)
	if err != nil {
		return admin.Token{}, err
	}
	defer claimed.Close()
	now := time.Now()
	authority, err := newAuthority(d, now)
	if err != nil {
		return admin.Token{}, err
	}
	token := credentials.NewToken(authority.Cluster(), authority.KeyHash(),
		now.Add(orDefault(cfg.TokenTTL, DefaultTokenTTL)))
	hash := token.SecretHash("")
	id := newIdentity(authority.Cluster(), firstNode, firstGeneration, cfg.Host.formats())
	id.Name, id.Listen, id.Advertise, id.Labels = orHostname(cfg.Name), cfg.Listen, addr, cfg.Labels
	id.Founder, id.TokenHash, id.TokenExpires = true, hex.EncodeToString(hash[:]), token.Expires.UnixNano()
	voters := []consensus.ID{raftID(id.Node, id.store())}
	if err := d.createLog(cfg.Host, id, consensus.CreateOptions{Voters: voters}); err != nil {
		return admin.Token{}, err
	}
	if err := d.save(id); err != nil {
		return admin.Token{}, err
	}
	return admin.Token{Token: token.String(), Expires: token.Expires, Listen: addr}, nil
}

// newAuthority makes the cluster's signing key and the first node's certificate.
func newAuthority(d dataDir, now time.Time) (*credentials.Authority, error) {
	authority, err := credentials.NewAuthority(credentials.NewClusterID(), now)
	if err != nil {
		return nil, err
	}
	req, err := credentials.NewRequest()
	if err != nil {
		return nil, err
	}
	leaf, err := authority.Sign(req.DER(), uint32(firstNode), now)
	if err != nil {
		return nil, err
	}
	if err := d.tls().SaveAuthority(authority); err != nil {
		return nil, err
	}
	return authority, d.tls().SaveIdentity(authority.CertificateDER(), leaf, req)
}

// Join makes the data directory of a member. A running member is asked; nothing is started. It may be
// repeated when it failed without an answer.
func Join(ctx context.Context, cfg JoinConfig) (name string, err error) {
	addr, err := checkNode(cfg.Listen, cfg.Advertise, cfg.Name, cfg.Labels)
	if err != nil {
		return "", err
	}
	if err := control.CheckJoin(cfg.Seed, cfg.Token); err != nil {
		return "", err
	}
	if err := cfg.Fabric.check(addr); err != nil {
		return "", err
	}
	d := dataDir(cfg.DataDir)
	missing := d.missing()
	claimed, err := d.claim(cfg.Host, cfg.Listen, cfg.HTTP)
	if err != nil {
		return "", err
	}
	defer claimed.Close()
	req, err := d.tls().JoinRequest()
	if err != nil {
		return "", err
	}
	joined, err := control.Join(ctx, control.JoinConfig{Addr: cfg.Seed, Token: cfg.Token, Request: req, Listen: addr,
		Name: orHostname(cfg.Name), Labels: cfg.Labels, Replace: cfg.Replace, Dial: cfg.Host.Dial, Now: cfg.Host.wall,
		Formats: cfg.Host.formats(), Version: cfg.Version})
	if control.JoinRefused(err) {
		return "", errors.Join(err, removeMade(missing)) // before the lock is let go
	}
	if err != nil {
		return "", err
	}
	if err := d.tls().SaveIdentity(joined.AuthorityDER, joined.LeafDER, req); err != nil {
		return "", err
	}
	id := newIdentity(joined.Cluster, meta.NodeID(joined.Node), joined.Generation, cfg.Host.formats())
	id.Name, id.Listen, id.Advertise, id.Labels = joined.Name, cfg.Listen, addr, cfg.Labels
	id.Peers = map[meta.NodeID]peerAddr{}
	for _, p := range joined.Peers {
		id.Peers[meta.NodeID(p.Node)] = peerAddr{Addr: p.Addr, Store: p.Store}
	}
	if err := d.createLog(cfg.Host, id, consensus.CreateOptions{}); err != nil {
		return "", err
	}
	return joined.Name, d.save(id)
}

// missing lists what a join makes before it is answered and is not there yet, in the order in which it can be removed.
func (d dataDir) missing() (paths []string) {
	wanted := []string{d.path("tls", credentials.JoinKeyFile), string(d.tls()), d.path(lockFile)}
	for dir := d.path(); !slices.Contains(wanted, dir); dir = filepath.Dir(dir) {
		wanted = append(wanted, dir)
	}
	for _, path := range wanted {
		if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
			paths = append(paths, path)
		}
	}
	return paths
}

// removeMade removes what a join has made that was refused, so that nothing is left of it. A directory that has other
// files by now stays.
func removeMade(paths []string) error {
	for _, path := range paths {
		err := os.Remove(path)
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) {
			return fmt.Errorf("node: what the join has made stays: %w", err)
		}
	}
	return nil
}

func checkNode(listen, advertise, name string, labels map[string]string) (addr string, err error) {
	if addr, err = advertised(listen, advertise); err != nil {
		return "", err
	}
	if err = control.CheckNodeName(name); err != nil {
		return "", err
	}
	return addr, control.CheckLabels(labels)
}

// claim takes the ports, then a directory that no node lives in: nothing is made for a node that could not serve. What
// an interrupted init or join left there is removed, except the key of the join.
func (d dataDir) claim(h Host, listen, http string) (io.Closer, error) {
	if err := admin.CheckPath(admin.SocketPath(string(d))); err != nil {
		return nil, err
	}
	if err := d.vacant(h); err != nil {
		return nil, err
	}
	var claimed closer
	ports, err := h.bind(listen, http)
	if err != nil {
		return nil, err
	}
	claimed.add(ports.Close)
	if err := d.take(h, &claimed); err != nil {
		return nil, errors.Join(err, claimed.Close())
	}
	return &claimed, nil
}

// take makes the directory and locks it.
func (d dataDir) take(h Host, claimed *closer) error {
	if err := d.make(); err != nil {
		return err
	}
	lock, err := d.lock()
	if err != nil {
		return err
	}
	claimed.add(lock.Close)
	if err := d.vacant(h); err != nil {
		return err
	}
	if err := d.tls().ForgetAuthority(); err != nil {
		return err
	}
	return os.RemoveAll(d.path("raft"))
}

func newIdentity(
	cluster credentials.ClusterID, node meta.NodeID, generation uint32, known format.Range,
) identity {
	var store [16]byte
	rand.Read(store[:])
	return identity{Format: known.Oldest, Cluster: cluster.String(), Node: node, Store: hex.EncodeToString(store[:]),
		Generation: generation}
}

func (d dataDir) createLog(h Host, id identity, opts consensus.CreateOptions) error {
	return consensus.Create(consensus.Config{Dir: d.path("raft"), FS: h.Log,
		Tuning: consensus.Tuning{SegmentBytes: h.LogSegment}, Identity: id.raft()}, opts)
}

// raft is what the raft log says about its owner.
func (id identity) raft() consensus.Identity {
	out := consensus.Identity{Cluster: id.cluster(), Store: id.store(), Generation: uint64(id.Generation),
		ID: raftID(id.Node, id.store())}
	copy(out.Node[:], fmt.Sprintf("node/%d", id.Node))
	return out
}

func orDefault[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

func orHostname(name string) string {
	if name != "" {
		return name
	}
	if host, err := os.Hostname(); err == nil && control.CheckNodeName(host) == nil {
		return host
	}
	return ""
}
