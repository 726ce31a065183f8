package control

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rdmcfs/rdmcfs/internal/credentials"
	"github.com/rdmcfs/rdmcfs/internal/format"
)

// founding is a cluster of one node that takes others in, with a table of tokens instead of a log.
type founding struct {
	*fabricated
	identity *credentials.Identity
	port     *Port
	server   *Server
	now      func() time.Time

	mu     sync.Mutex
	tokens map[[32]byte]bool // known; true = used
	names  map[string]uint32
	keys   map[string][32]byte // of the machines that joined under these names

	end   format.End     // what the port says
	asked []Registration // of register
}

func found(t *testing.T, change ...func(*founding, *ClusterConfig)) *founding {
	t.Helper()
	f := &founding{fabricated: newFabricated(t), now: time.Now, tokens: map[[32]byte]bool{},
		names: map[string]uint32{"node1": 1}, keys: map[string][32]byte{}, end: format.End{Known: format.Known}}
	f.identity = f.node(1)
	f.server = NewServer(quiet())
	f.port = listen(t, PortConfig{Identity: f.identity, Server: f.server, Format: f.format})
	cfg := ClusterConfig{Identity: f.identity, Generation: 4, Authority: func() *credentials.Authority {
		return f.authority
	},
		Signers: func() []string { return nil }, Register: f.register, MaySign: func(n uint32) bool { return n == 2 },
		Now: func() time.Time { return f.now() }, Clock: func() time.Time { return f.now() }, Log: quiet()}
	for _, c := range change {
		c(f, &cfg)
	}
	ServeCluster(f.port, f.server, cfg)
	return f
}

func (f *founding) format() format.End {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.end
}

func (f *founding) register(_ context.Context, r Registration) (Admission, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, r)
	used, known := f.tokens[r.SecretHash]
	switch node, taken := f.names[r.Name]; {
	case !known:
		return Admission{}, ErrTokenUnknown
	case taken && f.keys[r.Name] == r.KeyHash:
		return Admission{Node: node, Name: r.Name}, nil
	case used:
		return Admission{}, ErrTokenUsed
	case taken && !r.Replace:
		return Admission{}, fmt.Errorf("node %d: %w", node, ErrNameTaken)
	}
	f.tokens[r.SecretHash] = true
	f.names[r.Name], f.keys[r.Name] = uint32(len(f.names)+1), r.KeyHash
	return Admission{Node: f.names[r.Name], Name: r.Name,
		Peers: []PeerAddr{{Node: 1, Addr: f.port.Addr().String(), Store: "ab"}}}, nil
}

// token makes one that the cluster knows.
func (f *founding) token(replaces string) credentials.Token {
	token := credentials.NewToken(f.id, f.authority.KeyHash(), time.Now().Add(time.Hour))
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tokens[token.SecretHash(replaces)] = false
	return token
}

func (f *founding) wish(token credentials.Token, name string) JoinConfig {
	f.t.Helper()
	req, err := credentials.NewRequest()
	if err != nil {
		f.t.Fatal(err)
	}
	return JoinConfig{Addr: f.port.Addr().String(), Token: token.String(), Request: req, Listen: "10.0.0.2:7400",
		Name: name, Now: time.Now}
}

func TestJoin(t *testing.T) {
	f := found(t)
	cfg := f.wish(f.token(""), "node2")
	joined, err := Join(bounded(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if joined.Node != 2 || joined.Name != "node2" || joined.Cluster != f.id || joined.Generation != 4 {
		t.Errorf("joined as %+v", joined)
	}
	if diff := cmp.Diff([]PeerAddr{{Node: 1, Addr: f.port.Addr().String(), Store: "ab"}}, joined.Peers); diff != "" {
		t.Error(diff)
	}
	id, err := credentials.IdentityFromRequest(joined.AuthorityDER, joined.LeafDER, cfg.Request, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	f.server.HandleCall(kindTest, echo)
	if _, err := peersTo(t, id, f.port.Addr().String()).Call(bounded(t), 1, kindTest, nil); err != nil {
		t.Errorf("first call of the new node: %v", err)
	}
}

// A join whose answer was lost is repeated with the same key: the token is used, and yet it succeeds, once.
func TestJoinCanBeRepeatedByTheSameMachineOnly(t *testing.T) {
	f := found(t)
	cfg := f.wish(f.token(""), "node2")
	first, err := Join(bounded(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Join(bounded(t), cfg)
	if err != nil || again.Node != first.Node {
		t.Errorf("again: %+v, %v", again, err)
	}
	if len(f.names) != 2 {
		t.Errorf("nodes %v", f.names)
	}
	other := f.wish(credentials.Token{}, "node3")
	other.Token = cfg.Token
	if _, err := Join(bounded(t), other); !errors.Is(err, ErrTokenUsed) {
		t.Errorf("another machine with the same token: %v", err)
	}
}

// The log decides about each join: the node of a machine that did not hear of it may have been evicted meanwhile.
func TestRepeatedJoinIsNotOfANodeThatIsGone(t *testing.T) {
	f := found(t)
	cfg := f.wish(f.token(""), "node2")
	if _, err := Join(bounded(t), cfg); err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	delete(f.names, "node2")
	f.mu.Unlock()
	if joined, err := Join(bounded(t), cfg); !errors.Is(err, ErrTokenUsed) {
		t.Errorf("joined as node %d, which is gone: %v", joined.Node, err)
	}
}

func TestJoinIsRefusedWithAReason(t *testing.T) {
	f, stranger := found(t), found(t)
	good := f.token("")
	unknown := credentials.NewToken(f.id, f.authority.KeyHash(), time.Now().Add(time.Hour))
	expired := credentials.NewToken(f.id, f.authority.KeyHash(), time.Now().Add(-time.Second))
	long := map[string]string{"k": string(make([]byte, 300))}
	for name, c := range map[string]struct {
		change func(*JoinConfig)
		want   error
	}{
		"wrong token":   {func(c *JoinConfig) { c.Token = unknown.String() }, ErrTokenUnknown},
		"no token":      {func(c *JoinConfig) { c.Token = "hunter2" }, credentials.ErrTokenMalformed},
		"expired token": {func(c *JoinConfig) { c.Token = expired.String() }, credentials.ErrTokenExpired},
		"another's token": {func(c *JoinConfig) { c.Token = stranger.token("").String() },
			credentials.ErrForeignCluster},
		"another's address": {func(c *JoinConfig) { c.Addr = stranger.port.Addr().String() },
			credentials.ErrForeignCluster},
		"name taken":             {func(c *JoinConfig) { c.Name = "node1" }, ErrNameTaken},
		"replace, plain token":   {func(c *JoinConfig) { c.Name, c.Replace = "node1", true }, ErrNotReplaceable},
		"odd name":               {func(c *JoinConfig) { c.Name = "../../etc" }, errAny},
		"address without a host": {func(c *JoinConfig) { c.Listen = ":7400" }, errAny},
		"unspecified address":    {func(c *JoinConfig) { c.Listen = "0.0.0.0:7400" }, errAny},
		"endless label":          {func(c *JoinConfig) { c.Labels = long }, errAny},
		"clock months ahead":     {func(c *JoinConfig) { c.Now = inMonths(3) }, ErrClock},
		"clock years ahead":      {func(c *JoinConfig) { c.Now = inMonths(36) }, ErrClock},
		"nobody there":           {func(c *JoinConfig) { c.Addr = "127.0.0.1:1" }, errAny},
	} {
		cfg := f.wish(good, "node2")
		c.change(&cfg)
		_, err := Join(bounded(t), cfg)
		if err == nil || c.want != errAny && !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
		t.Logf("%s: %v", name, err)
	}
	if _, err := Join(bounded(t), f.wish(good, "node2")); err != nil {
		t.Errorf("the token is good still: %v", err)
	}
}

// inMonths is a clock that is so many months ahead.
func inMonths(months int) func() time.Time {
	return func() time.Time { return time.Now().AddDate(0, months, 0) }
}

// A clock that is behind, by however much, is no reason to refuse a machine, nor is one that is a little ahead.
func TestJoinWithAClockBehind(t *testing.T) {
	for name, now := range map[string]func() time.Time{
		"years behind": inMonths(-50 * 12),
		"hours ahead":  func() time.Time { return time.Now().Add(23 * time.Hour) },
	} {
		f := found(t)
		cfg := f.wish(f.token(""), "node2")
		cfg.Now = now
		if _, err := Join(bounded(t), cfg); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

var errAny = errors.New("any error")

// The cluster's clock decides, not the newcomer's.
func TestTokenExpiresByTheClustersClock(t *testing.T) {
	f := found(t)
	f.now = func() time.Time { return time.Now().Add(2 * time.Hour) }
	if _, err := Join(bounded(t), f.wish(f.token(""), "node2")); !errors.Is(err, credentials.ErrTokenExpired) {
		t.Error(err)
	}
}

func TestReplaceNeedsATokenForThatName(t *testing.T) {
	f := found(t)
	token := f.token("node1")
	plain := f.wish(token, "node5")
	if _, err := Join(bounded(t), plain); !errors.Is(err, ErrTokenUnknown) {
		t.Errorf("a replacement's token for a plain join: %v", err)
	}
	cfg := f.wish(token, "node1")
	cfg.Replace = true
	if _, err := Join(bounded(t), cfg); err != nil {
		t.Error(err)
	}
}

func TestMembersWithoutTheKeySendOn(t *testing.T) {
	signer := found(t)
	other := listen(t, PortConfig{Identity: signer.node(3), Server: NewServer(quiet())})
	ServeCluster(other, NewServer(quiet()), ClusterConfig{Identity: signer.node(3),
		Authority: func() *credentials.Authority { return nil },
		Signers:   func() []string { return []string{"127.0.0.1:1", signer.port.Addr().String()} },
		Register: func(context.Context, Registration) (Admission, error) {
			return Admission{}, errors.New("asked the wrong one")
		},
		MaySign: func(uint32) bool { return false }, Now: time.Now, Clock: time.Now, Log: quiet()})
	cfg := signer.wish(signer.token(""), "node2")
	cfg.Addr = other.Addr().String()
	joined, err := Join(bounded(t), cfg)
	if err != nil || joined.Node != 2 {
		t.Errorf("%+v, %v", joined, err)
	}
}

func TestJoinWhereNobodyHasTheKey(t *testing.T) {
	f := found(t)
	other := listen(t, PortConfig{Identity: f.node(3), Server: NewServer(quiet())})
	ServeCluster(other, NewServer(quiet()), ClusterConfig{Identity: f.node(3), Authority: func() *credentials.Authority {
		return nil
	},
		Signers: func() []string { return nil }, MaySign: func(uint32) bool { return false }, Now: time.Now, Clock: time.Now,
		Log: quiet()})
	cfg := f.wish(f.token(""), "node2")
	cfg.Addr = other.Addr().String()
	if _, err := Join(bounded(t), cfg); !errors.Is(err, errRedirected) {
		t.Errorf("the error is about something else: %v", err)
	}
}

// renewal is what node 2 needs to renew its certificate at the founder.
func renewal(t *testing.T, f *founding, id *credentials.Identity) RenewalConfig {
	t.Helper()
	return RenewalConfig{Identity: id, Dir: credentials.Dir(filepath.Join(t.TempDir(), "tls")),
		Authority: func() *credentials.Authority { return nil },
		Addrs:     func() []string { return []string{f.port.Addr().String()} }, Now: time.Now, Log: quiet()}
}

func TestRenewSwapsTheCertificateWhileConnected(t *testing.T) {
	f := found(t)
	f.server.HandleCall(kindTest, echo)
	id := f.nodeAt(2, time.Now().Add(-25*24*time.Hour))
	peers := peersTo(t, id, f.port.Addr().String())
	if _, err := peers.Call(bounded(t), 1, kindTest, nil); err != nil {
		t.Fatal(err)
	}
	before := id.Expires()
	cfg := renewal(t, f, id)
	if err := Renew(bounded(t), cfg); err != nil {
		t.Fatal(err)
	}
	if !id.Expires().After(before.Add(20 * 24 * time.Hour)) {
		t.Errorf("expires %v, before %v", id.Expires(), before)
	}
	if _, err := peers.Call(bounded(t), 1, kindTest, nil); err != nil {
		t.Errorf("the old connection: %v", err)
	}
	peers.Drop(1)
	if _, err := peers.Call(bounded(t), 1, kindTest, nil); err != nil {
		t.Errorf("a new connection: %v", err)
	}
	stored, err := cfg.Dir.LoadIdentity(time.Now)
	if err != nil || !stored.Expires().Equal(id.Expires()) || stored.Name() != id.Name() {
		t.Errorf("stored: %v", err)
	}
}

func TestExpiredNodeComesBack(t *testing.T) {
	f := found(t)
	f.server.HandleCall(kindTest, echo)
	id := f.nodeAt(2, time.Now().Add(-100*24*time.Hour))
	peers := peersTo(t, id, f.port.Addr().String())
	if _, err := peers.Call(bounded(t), 1, kindTest, nil); !errors.Is(err, ErrRefused) {
		t.Errorf("expired: %v", err)
	}
	ctx, cancel := context.WithCancel(bounded(t))
	kept := make(chan struct{})
	go func() {
		defer close(kept)
		KeepRenewed(ctx, renewal(t, f, id))
	}()
	for id.Expired() {
		select {
		case <-ctx.Done():
			t.Fatal("not renewed")
		case <-time.After(time.Millisecond):
		}
	}
	cancel()
	await(t, "end of KeepRenewed", kept)
	peers.Seen(1)
	if _, err := peers.Call(bounded(t), 1, kindTest, nil); err != nil {
		t.Errorf("renewed: %v", err)
	}
}

func TestEvictedNodeGetsNoCertificate(t *testing.T) {
	f := newFabricated(t)
	server := NewServer(quiet())
	port := listen(t, PortConfig{Identity: f.node(1), Server: server, Evicted: func(n uint32) bool { return n == 2 }})
	ServeCluster(port, server, ClusterConfig{Identity: f.node(1), Authority: func() *credentials.Authority {
		return f.authority
	},
		Signers: func() []string { return nil }, MaySign: func(uint32) bool { return true }, Now: time.Now, Log: quiet()})
	cfg := renewal(t, &founding{fabricated: f, port: port}, f.nodeAt(2, time.Now().Add(-100*24*time.Hour)))
	if err := Renew(bounded(t), cfg); !errors.Is(err, credentials.ErrEvicted) {
		t.Error(err)
	}
}

// The certificate is for the caller, whatever it asks for; and for a key that it has.
func TestRenewalIsForTheCaller(t *testing.T) {
	f := found(t)
	id := f.node(2)
	cfg := renewal(t, f, id)
	req, err := credentials.NewRequest()
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := renewedLeaf(bounded(t), cfg, req)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(leaf)
	if err != nil {
		t.Fatal(err)
	}
	if name, err := credentials.NameOf(cert); err != nil || name != id.Name() {
		t.Errorf("%v, %v", name, err)
	}
}

func TestSigningKeyIsForVotersOnly(t *testing.T) {
	f := found(t)
	addr := f.port.Addr().String()
	authority, err := FetchAuthority(bounded(t), peersTo(t, f.node(2), addr), 1)
	if err != nil || authority.KeyHash() != f.authority.KeyHash() {
		t.Errorf("voter: %v", err)
	}
	if _, err := FetchAuthority(bounded(t), peersTo(t, f.node(3), addr), 1); !errors.Is(err, ErrNotYours) {
		t.Errorf("an observer: %v", err)
	}
}

func FuzzJoinPayload(f *testing.F) {
	f.Add([]byte(`{"token":"rdmcfs1_x","addr":"a:1","name":"n"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		fab := newFabricated(t)
		c := &cluster{cfg: ClusterConfig{Identity: fab.node(1), Now: time.Now, Log: quiet(),
			Authority: func() *credentials.Authority { return fab.authority },
			Register: func(context.Context, Registration) (Admission, error) {
				t.Fatal("registered")
				return Admission{}, nil
			}}}
		if _, err := c.join(context.Background(), Caller{}, b); err == nil {
			t.Fatal("joined")
		}
		c.renew(context.Background(), Caller{Node: 2}, b)
	})
}
