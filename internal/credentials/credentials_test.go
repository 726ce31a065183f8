package credentials

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var testTime = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func clockAt(t time.Time) func() time.Time { return func() time.Time { return t } }

func newTestAuthority(t testing.TB, cluster ClusterID) *Authority {
	t.Helper()
	a, err := NewAuthority(cluster, testTime)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func newTestIdentity(t testing.TB, a *Authority, node uint32, now time.Time) *Identity {
	t.Helper()
	req, err := NewRequest()
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := a.Sign(req.DER(), node, now)
	if err != nil {
		t.Fatal(err)
	}
	id, err := IdentityFromRequest(a.CertificateDER(), leaf, req, clockAt(now))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// handshake runs both sides over a pipe and returns what each says.
func handshake(t *testing.T, client, server *tls.Config) (clientErr, serverErr error) {
	t.Helper()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	deadline := time.Now().Add(10 * time.Second)
	a.SetDeadline(deadline)
	b.SetDeadline(deadline)
	served := make(chan error, 1)
	go func() {
		conn := tls.Server(b, server)
		err := conn.Handshake()
		if err == nil {
			_, err = conn.Write([]byte{1}) // the client learns of a refusal when it reads
		}
		b.Close()
		served <- err
	}()
	conn := tls.Client(a, client)
	clientErr = conn.Handshake()
	if clientErr == nil {
		_, clientErr = conn.Read(make([]byte, 1))
	}
	a.Close()
	return clientErr, <-served
}

func TestTokenRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var cluster ClusterID
		copy(cluster[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "cluster"))
		var hash [32]byte
		copy(hash[:], rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "hash"))
		expires := time.Unix(rapid.Int64Range(0, 1<<40).Draw(t, "expires"), 0).UTC()
		token := NewToken(cluster, hash, expires)
		got, err := ParseToken(token.String())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(token, got); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestTokenDamagedInOneCharacter(t *testing.T) {
	word := NewToken(NewClusterID(), [32]byte{7}, testTime).String()
	for i := range word {
		damaged := []byte(word)
		if damaged[i]++; damaged[i] == 0 {
			damaged[i] = 'x'
		}
		if _, err := ParseToken(string(damaged)); !errors.Is(err, ErrTokenMalformed) {
			t.Fatalf("character %d changed: %v", i, err)
		}
	}
	for _, bad := range []string{"", "rdmcfs1_", word[:len(word)-1], word + "A", "rdmcfs2_" + word[8:]} {
		if _, err := ParseToken(bad); !errors.Is(err, ErrTokenMalformed) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if _, err := ParseToken("  " + word + "\n"); err != nil {
		t.Errorf("space around it: %v", err)
	}
}

func TestTokenHashTellsReplacementApart(t *testing.T) {
	a, b := NewToken(ClusterID{}, [32]byte{}, testTime), NewToken(ClusterID{}, [32]byte{}, testTime)
	hashes := map[[32]byte]string{a.SecretHash(""): "a", a.SecretHash("n1"): "a for n1", a.SecretHash("n2"): "a for n2",
		b.SecretHash(""): "b"}
	if len(hashes) != 4 {
		t.Fatalf("hashes collide: %v", hashes)
	}
}

func FuzzParseToken(f *testing.F) {
	f.Add(NewToken(NewClusterID(), [32]byte{1}, testTime).String())
	f.Add("rdmcfs1_AAAA")
	f.Fuzz(func(t *testing.T, s string) {
		token, err := ParseToken(s)
		if err != nil {
			return
		}
		again, err := ParseToken(token.String())
		if err != nil || again != token {
			t.Fatalf("%v -> %v, %v", token, again, err)
		}
	})
}

func FuzzNameOf(f *testing.F) {
	f.Add("spiffe://0123456789abcdef0123456789abcdef/node/7")
	f.Add("spiffe://0123456789abcdef0123456789abcdef/node/007")
	f.Fuzz(func(t *testing.T, s string) {
		u, err := url.Parse(s)
		if err != nil {
			return
		}
		name, err := NameOf(&x509.Certificate{URIs: []*url.URL{u}})
		if err == nil && (name.URI().String() != s || name.Node == 0) {
			t.Fatalf("%q read as %v", s, name)
		}
	})
}

func TestNameOfRefusesOtherSpellings(t *testing.T) {
	const id = "0123456789abcdef0123456789abcdef"
	for _, s := range []string{"https://" + id + "/node/1", "spiffe://" + id + "/node/0", "spiffe://" + id + "/node/01",
		"spiffe://" + id + "/node/1?x=1",
		"spiffe://" + id + "/node/1/2", "spiffe://" + id + "/node/4294967296", "spiffe://u@" + id + "/node/1",
		"spiffe://ABCDEFabcdef0123456789abcdef012345/node/1", "spiffe://x/node/1"} {
		u, err := url.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		if name, err := NameOf(&x509.Certificate{URIs: []*url.URL{u}}); !errors.Is(err, ErrNoIdentity) {
			t.Errorf("%s: %v, %v", s, name, err)
		}
	}
}

func TestMutualTLSWithinACluster(t *testing.T) {
	a := newTestAuthority(t, NewClusterID())
	one, two := newTestIdentity(t, a, 1, testTime), newTestIdentity(t, a, 2, testTime)
	if c, s := handshake(t, two.ClientConfig(1, "p"), one.ServerConfig([]string{"p"}, false)); c != nil || s != nil {
		t.Fatalf("client %v, server %v", c, s)
	}
	if c, _ := handshake(t, two.ClientConfig(3, "p"), one.ServerConfig([]string{"p"}, false)); !errors.Is(c,
		ErrWrongNode) {
		t.Fatalf("called 3, answered 1: %v", c)
	}
}

// G8: a node of another cluster gets no connection, and gives none.
func TestStrangersAreRefused(t *testing.T) {
	ours, theirs := newTestAuthority(t, NewClusterID()), newTestAuthority(t, NewClusterID())
	one, stranger := newTestIdentity(t, ours, 1, testTime), newTestIdentity(t, theirs, 2, testTime)
	if c, _ := handshake(t, stranger.ClientConfig(1, "p"), one.ServerConfig([]string{"p"}, false)); !errors.Is(c,
		ErrForeignCluster) {
		t.Errorf("client of another cluster: %v", c)
	}
	conf := stranger.ClientConfig(1, "p")
	conf.VerifyConnection = nil // a client that does not care who answers
	if _, s := handshake(t, conf, one.ServerConfig([]string{"p"}, false)); !errors.Is(s, ErrForeignCluster) {
		t.Errorf("server called from another cluster: %v", s)
	}
	conf = &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"p"}}
	if _, s := handshake(t, conf, one.ServerConfig([]string{"p"}, false)); s == nil {
		t.Error("server took a caller without certificate")
	}
}

// A forged authority for the same cluster id must not help.
func TestForgedAuthorityIsRefused(t *testing.T) {
	cluster := NewClusterID()
	ours, forged := newTestAuthority(t, cluster), newTestAuthority(t, cluster)
	one, liar := newTestIdentity(t, ours, 1, testTime), newTestIdentity(t, forged, 2, testTime)
	conf := liar.ClientConfig(1, "p")
	conf.VerifyConnection = nil
	if _, s := handshake(t, conf, one.ServerConfig([]string{"p"}, false)); !errors.Is(s, ErrForeignCluster) {
		t.Errorf("server: %v", s)
	}
	token := NewToken(cluster, ours.KeyHash(), testTime.Add(time.Hour))
	if c, _ := handshake(t, JoinClientConfig(token, "j", clockAt(testTime)),
		liar.JoinServerConfig([]string{"j"})); !errors.Is(c, ErrForeignCluster) {
		t.Errorf("joining: %v", c)
	}
	if c, s := handshake(t, JoinClientConfig(token, "j", clockAt(testTime)),
		one.JoinServerConfig([]string{"j"})); c != nil || s != nil {
		t.Errorf("the real one: client %v, server %v", c, s)
	}
}

// A node's own key must not make it an authority, even when it shows itself as one.
func TestLeafIsNoAuthority(t *testing.T) {
	a := newTestAuthority(t, NewClusterID())
	leaf := newTestIdentity(t, a, 2, testTime)
	token := NewToken(a.Cluster(), a.KeyHash(), testTime.Add(time.Hour))
	conf := leaf.JoinServerConfig([]string{"j"})
	pair := *leaf.leaf.Load()
	pair.Certificate = [][]byte{pair.Certificate[0], pair.Certificate[0]}
	conf.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &pair, nil }
	if c, _ := handshake(t, JoinClientConfig(token, "j", clockAt(testTime)), conf); !errors.Is(c, ErrForeignCluster) {
		t.Fatalf("client: %v", c)
	}
}

func TestExpiredCertificateOnlyRenews(t *testing.T) {
	a := newTestAuthority(t, NewClusterID())
	later := testTime.Add(LeafValidity + 40*24*time.Hour)
	server := newTestIdentity(t, a, 1, later)
	old := newTestIdentity(t, a, 2, testTime)
	old.now = clockAt(later)
	if !old.Expired() {
		t.Fatal("not expired")
	}
	if _, s := handshake(t, old.ClientConfig(1, "p"), server.ServerConfig([]string{"p"}, false)); !errors.Is(s,
		ErrCertificateExpired) {
		t.Errorf("expired caller: %v", s)
	}
	if c, s := handshake(t, old.ClientConfig(1, "p"), server.ServerConfig([]string{"p"}, true)); c != nil || s != nil {
		t.Errorf("expired caller that renews: client %v, server %v", c, s)
	}
	server.now = clockAt(testTime.Add(LeafValidity + RenewGrace + time.Hour))
	if _, s := handshake(t, old.ClientConfig(1, "p"), server.ServerConfig([]string{"p"}, true)); !errors.Is(s,
		ErrCertificateExpired) {
		t.Errorf("beyond the grace: %v", s)
	}
}

func TestInstallSwapsForNewConnections(t *testing.T) {
	a := newTestAuthority(t, NewClusterID())
	id := newTestIdentity(t, a, 1, testTime)
	if got := id.RenewAt(); !got.Equal(testTime.Add(LeafValidity - RenewBefore)) {
		t.Errorf("renew at %v", got)
	}
	req, err := NewRequest()
	if err != nil {
		t.Fatal(err)
	}
	other, err := a.Sign(req.DER(), 2, testTime)
	if err != nil {
		t.Fatal(err)
	}
	if err := id.Install(other, req); !errors.Is(err, ErrWrongNode) {
		t.Errorf("certificate of another node: %v", err)
	}
	leaf, err := a.Sign(req.DER(), 1, testTime.Add(20*24*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if err := id.Install(leaf, req); err != nil {
		t.Fatal(err)
	}
	if !id.Expires().Equal(testTime.Add(50 * 24 * time.Hour)) {
		t.Errorf("expires %v", id.Expires())
	}
	id.now = clockAt(testTime.Add(20 * 24 * time.Hour))
	two := newTestIdentity(t, a, 2, testTime.Add(20*24*time.Hour))
	if c, s := handshake(t, two.ClientConfig(1, "p"), id.ServerConfig([]string{"p"}, false)); c != nil || s != nil {
		t.Fatalf("after the swap: client %v, server %v", c, s)
	}
}

func TestSignRefuses(t *testing.T) {
	a := newTestAuthority(t, NewClusterID())
	req, err := NewRequest()
	if err != nil {
		t.Fatal(err)
	}
	damaged := append([]byte{}, req.DER()...)
	damaged[len(damaged)-1] ^= 1
	for name, der := range map[string][]byte{"empty": nil, "garbage": []byte("x"), "bad signature": damaged,
		"huge": make([]byte, 1<<20)} {
		if _, err := a.Sign(der, 1, testTime); err == nil {
			t.Errorf("%s: signed", name)
		}
	}
	if _, err := a.Sign(req.DER(), 0, testTime); err == nil {
		t.Error("node 0 signed")
	}
}

func TestDirKeepsIdentityAndAuthority(t *testing.T) {
	d := Dir(filepath.Join(t.TempDir(), "tls"))
	if _, err := d.LoadIdentity(clockAt(testTime)); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("empty: %v", err)
	}
	a := newTestAuthority(t, NewClusterID())
	req, err := d.JoinRequest()
	if err != nil {
		t.Fatal(err)
	}
	again, err := d.JoinRequest()
	if err != nil {
		t.Fatal(err)
	}
	first, err1 := RequestKeyHash(req.DER())
	second, err2 := RequestKeyHash(again.DER())
	if first != second || err1 != nil || err2 != nil {
		t.Errorf("a repeated join has another key: %v, %v", err1, err2)
	}
	leaf, err := a.Sign(req.DER(), 3, testTime)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(d.SaveIdentity(a.CertificateDER(), leaf, req), d.SaveAuthority(a), d.ForgetJoin()); err != nil {
		t.Fatal(err)
	}
	id, err := d.LoadIdentity(clockAt(testTime))
	if err != nil {
		t.Fatal(err)
	}
	if id.Name() != (Name{a.Cluster(), 3}) {
		t.Errorf("name %v", id.Name())
	}
	loaded, err := d.LoadAuthority()
	if err != nil || loaded.KeyHash() != a.KeyHash() || loaded.Cluster() != a.Cluster() {
		t.Errorf("authority: %v", err)
	}
	checkModes(t, d)
}

func checkModes(t *testing.T, d Dir) {
	t.Helper()
	entries, err := os.ReadDir(string(d))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", e.Name(), info.Mode())
		}
		names = append(names, e.Name())
	}
	if diff := cmp.Diff([]string{"ca.crt", "ca.key", "node.pem"}, names); diff != "" {
		t.Errorf("files: %s", diff)
	}
}

func TestDamagedFilesAreReported(t *testing.T) {
	a := newTestAuthority(t, NewClusterID())
	for _, file := range []string{"ca.crt", "node.pem"} {
		for name, data := range map[string][]byte{"empty": nil, "garbage": []byte("hello"),
			"other block": []byte("-----BEGIN X-----\nAAAA\n-----END X-----\n"), "huge": make([]byte, 1<<20)} {
			d := Dir(t.TempDir())
			req, err := NewRequest()
			if err != nil {
				t.Fatal(err)
			}
			leaf, err := a.Sign(req.DER(), 1, testTime)
			if err != nil {
				t.Fatal(err)
			}
			if err := d.SaveIdentity(a.CertificateDER(), leaf, req); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(string(d), file), data, 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := d.LoadIdentity(clockAt(testTime)); !errors.Is(err, ErrDamaged) {
				t.Errorf("%s %s: %v", file, name, err)
			}
		}
	}
}

func TestAuthorityKeyOfAnotherClusterIsRefused(t *testing.T) {
	a, b := newTestAuthority(t, NewClusterID()), newTestAuthority(t, NewClusterID())
	key, err := b.KeyDER()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewAuthorityFrom(a.CertificateDER(), key); !errors.Is(err, ErrDamaged) {
		t.Fatal(err)
	}
}
