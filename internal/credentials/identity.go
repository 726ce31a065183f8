package credentials

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// Identity is what a running node shows and trusts. Its certificate can be swapped while connections are
// made. All methods may be called from several goroutines.
type Identity struct {
	name      Name
	authority *x509.Certificate
	leaf      atomic.Pointer[tls.Certificate]
	now       func() time.Time
}

// NewIdentity joins a node's signed certificate with its key and the authority it trusts. now is the clock
// that certificates are checked by.
func NewIdentity(authorityDER, leafDER []byte, key crypto.Signer, now func() time.Time) (*Identity, error) {
	authority, cluster, err := parseAuthorityCert(authorityDER)
	if err != nil {
		return nil, err
	}
	id := &Identity{authority: authority, now: now}
	leaf, name, err := id.pair(leafDER, key)
	if err != nil {
		return nil, err
	}
	if name.Cluster != cluster {
		return nil, fmt.Errorf("credentials: certificate of node %d: %w", name.Node, ErrForeignCluster)
	}
	id.name = name
	id.leaf.Store(leaf)
	return id, nil
}

// IdentityFromRequest is NewIdentity for an answered request.
func IdentityFromRequest(authorityDER, leafDER []byte, req *Request, now func() time.Time) (*Identity, error) {
	return NewIdentity(authorityDER, leafDER, req.key, now)
}

// pair checks that the certificate is signed by our authority, whatever its time, and belongs to the key.
func (id *Identity) pair(leafDER []byte, key crypto.Signer) (*tls.Certificate, Name, error) {
	leaf, err := x509.ParseCertificate(leafDER)
	if err != nil {
		return nil, Name{}, fmt.Errorf("credentials: certificate: %w: %w", err, ErrDamaged)
	}
	if err := leaf.CheckSignatureFrom(id.authority); err != nil {
		return nil, Name{}, fmt.Errorf("credentials: certificate is not signed by the cluster: %w", ErrForeignCluster)
	}
	name, err := NameOf(leaf)
	if err != nil {
		return nil, Name{}, err
	}
	public, ok := key.Public().(*ecdsa.PublicKey)
	if !ok || !public.Equal(leaf.PublicKey) {
		return nil, Name{}, fmt.Errorf("credentials: key and certificate of node %d differ: %w", name.Node, ErrDamaged)
	}
	pair := &tls.Certificate{Certificate: [][]byte{leaf.Raw, id.authority.Raw}, PrivateKey: key, Leaf: leaf}
	return pair, name, nil
}

// Name is who we are.
func (id *Identity) Name() Name { return id.name }

// AuthorityDER is the certificate of the authority that we trust.
func (id *Identity) AuthorityDER() []byte { return id.authority.Raw }

// AuthorityKeyHash is what tokens pin.
func (id *Identity) AuthorityKeyHash() [32]byte {
	return sha256.Sum256(id.authority.RawSubjectPublicKeyInfo)
}

// Expires is the end of the present certificate.
func (id *Identity) Expires() time.Time { return id.leaf.Load().Leaf.NotAfter }

// Expired reports whether the present certificate has ended, so that nothing but its renewal works.
func (id *Identity) Expired() bool { return id.now().After(id.Expires()) }

// RenewAt is when the present certificate should be renewed.
func (id *Identity) RenewAt() time.Time { return id.Expires().Add(-RenewBefore) }

// RenewDue reports whether that time has come, or the certificate lasts longer than one that is signed now: then the
// clock of its signer was ahead.
func (id *Identity) RenewDue(now time.Time) bool {
	return !now.Before(id.RenewAt()) || id.Expires().After(now.Add(LeafValidity+ClockSkew))
}

// Install swaps in a renewed certificate. Connections that exist go on; new ones show the new certificate.
func (id *Identity) Install(leafDER []byte, req *Request) error {
	leaf, name, err := id.pair(leafDER, req.key)
	if err != nil {
		return err
	}
	if name != id.name {
		return fmt.Errorf("credentials: renewed certificate is for node %d, not %d: %w", name.Node, id.name.Node,
			ErrWrongNode)
	}
	id.leaf.Store(leaf)
	return nil
}

// Peer is what a checked connection says about the other end.
type Peer struct {
	Name    Name
	Expires time.Time
}

// ServerConfig is the TLS side of a listener for node-to-node protocols: mutual TLS 1.3 without resumption.
// Any node of the cluster passes; whether it was evicted is for the listener to ask after the handshake, where
// it can say so. Expired certificates pass for up to RenewGrace when allowExpired is set.
func (id *Identity) ServerConfig(protocols []string, allowExpired bool) *tls.Config {
	return &tls.Config{
		MinVersion:                  tls.VersionTLS13,
		NextProtos:                  protocols,
		SessionTicketsDisabled:      true,
		DynamicRecordSizingDisabled: true,
		ClientAuth:                  tls.RequireAnyClientCert,
		Time:                        id.now,
		GetCertificate:              func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return id.leaf.Load(), nil },
		VerifyConnection: func(cs tls.ConnectionState) error {
			_, err := id.Check(cs, allowExpired)
			return err
		},
	}
}

// JoinServerConfig is the TLS side of a listener for machines that have no certificate yet.
func (id *Identity) JoinServerConfig(protocols []string) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		NextProtos:             protocols,
		SessionTicketsDisabled: true,
		ClientAuth:             tls.NoClientCert,
		GetCertificate:         func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return id.leaf.Load(), nil },
	}
}

// ReaderServerConfig is the TLS side of a listener for programs that only read, such as Prometheus. They may show a
// certificate; the listener calls Check on it, and does without if they prove themselves in another way.
func (id *Identity) ReaderServerConfig(protocols []string) *tls.Config {
	conf := id.JoinServerConfig(protocols)
	conf.ClientAuth = tls.RequestClientCert
	conf.ClientCAs = x509.NewCertPool() // says which certificate is asked for; nothing is checked by it
	conf.ClientCAs.AddCert(id.authority)
	return conf
}

// ClientConfig is the TLS side of a call to a node of the cluster. node 0 accepts any of its nodes.
func (id *Identity) ClientConfig(node uint32, protocol string) *tls.Config {
	return &tls.Config{
		MinVersion:                  tls.VersionTLS13,
		NextProtos:                  []string{protocol},
		InsecureSkipVerify:          true, // VerifyConnection checks the chain and the name
		DynamicRecordSizingDisabled: true,
		Time:                        id.now,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return id.leaf.Load(), nil
		},
		VerifyConnection: func(cs tls.ConnectionState) error {
			peer, err := id.Check(cs, false)
			if err == nil && node != 0 && peer.Name.Node != node {
				err = fmt.Errorf("credentials: called node %d, answered node %d: %w", node, peer.Name.Node, ErrWrongNode)
			}
			return err
		},
	}
}

// JoinClientConfig is the TLS side of a join: the server must show a chain up to the authority that the token pins, for
// the token's cluster. now is the joining machine's clock. It is not believed beyond the end of the token: the log
// decides whether the token has expired.
func JoinClientConfig(token Token, protocol string, now func() time.Time) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		NextProtos:         []string{protocol},
		InsecureSkipVerify: true, // VerifyConnection checks the chain against the token
		VerifyConnection: func(cs tls.ConnectionState) error {
			certs := cs.PeerCertificates
			if len(certs) != 2 || sha256.Sum256(certs[1].RawSubjectPublicKeyInfo) != token.KeyHash {
				return fmt.Errorf("credentials: the node that answered %w", ErrForeignCluster)
			}
			at := now()
			if at.After(token.Expires) {
				at = token.Expires
			}
			peer, err := checkLeaf(certs[0], certs[1], at)
			if err == nil && peer.Name.Cluster != token.Cluster {
				err = fmt.Errorf("credentials: the node that answered %w", ErrForeignCluster)
			}
			return err
		},
	}
}

// Check returns who is at the other end of a handshake, or the reason to refuse it: ErrForeignCluster,
// ErrCertificateExpired, ErrNoIdentity.
func (id *Identity) Check(cs tls.ConnectionState, allowExpired bool) (Peer, error) {
	if len(cs.PeerCertificates) == 0 {
		return Peer{}, ErrNoIdentity
	}
	leaf := cs.PeerCertificates[0]
	at := id.now()
	if allowExpired && at.After(leaf.NotAfter) && at.Before(leaf.NotAfter.Add(RenewGrace)) {
		at = leaf.NotAfter
	}
	peer, err := checkLeaf(leaf, id.authority, at)
	if err == nil && peer.Name.Cluster != id.name.Cluster {
		err = fmt.Errorf("credentials: node %d %w", peer.Name.Node, ErrForeignCluster)
	}
	return peer, err
}

// checkLeaf verifies a certificate at a time. A certificate that begins later counts as begun: the clock of its
// signer was ahead, or this one is behind. Its end is what bounds the use of a stolen key.
func checkLeaf(leaf, authority *x509.Certificate, at time.Time) (Peer, error) {
	for _, begin := range []time.Time{leaf.NotBefore, authority.NotBefore} {
		if at.Before(begin) {
			at = begin
		}
	}
	roots := x509.NewCertPool()
	roots.AddCert(authority)
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots:       roots,
		CurrentTime: at,
		KeyUsages:   []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return Peer{}, fmt.Errorf("credentials: peer: %s: %w", invalid.Detail, ErrCertificateExpired)
	case err != nil:
		return Peer{}, fmt.Errorf("credentials: peer %w", ErrForeignCluster)
	}
	name, err := NameOf(leaf)
	if err != nil {
		return Peer{}, err
	}
	return Peer{Name: name, Expires: leaf.NotAfter}, nil
}
