package credentials

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"fmt"
	"math/big"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	// LeafValidity is how long a node's certificate lasts.
	LeafValidity = 30 * 24 * time.Hour
	// RenewBefore is how long before its end a certificate is renewed.
	RenewBefore = 10 * 24 * time.Hour
	// RenewGrace is how long after its end a certificate still serves to ask for a new one, and for nothing
	// else: a node that was off for months comes back without a command. Eviction is checked in the log.
	RenewGrace = 5 * 365 * 24 * time.Hour
	// ClockSkew is how far the clocks of two nodes may differ.
	ClockSkew = time.Hour
	// ServerName is the DNS name in the certificate of each node. Programs that know nothing of spiffe URIs ask for it,
	// to see that a node of the cluster answers. It says nothing about which node.
	ServerName = "rdmcfs"

	authorityValidity = 30 * 365 * 24 * time.Hour
	requestBytesMax   = 8 << 10
	serialBits        = 127
)

// ClusterID names a cluster. It is random, made by init.
type ClusterID [16]byte

// NewClusterID makes a random id.
func NewClusterID() ClusterID {
	var id ClusterID
	rand.Read(id[:])
	return id
}

// String is 32 hex digits.
func (id ClusterID) String() string { return hex.EncodeToString(id[:]) }

// ParseClusterID reads what String wrote.
func ParseClusterID(s string) (ClusterID, error) {
	raw, err := hex.DecodeString(s)
	if err != nil || len(raw) != len(ClusterID{}) || strings.ToLower(s) != s {
		return ClusterID{}, fmt.Errorf("credentials: cluster id %q: want 32 hex digits", s)
	}
	return ClusterID(raw), nil
}

// Name is who a certificate is for.
type Name struct {
	Cluster ClusterID
	Node    uint32
}

// URI is the form in certificates: spiffe://<cluster id>/node/<number>.
func (n Name) URI() *url.URL {
	return &url.URL{Scheme: "spiffe", Host: n.Cluster.String(), Path: "/node/" + strconv.FormatUint(uint64(n.Node), 10)}
}

// NameOf reads the name of a node's certificate. The error is ErrNoIdentity.
func NameOf(cert *x509.Certificate) (Name, error) {
	if len(cert.URIs) != 1 || cert.IsCA {
		return Name{}, ErrNoIdentity
	}
	u := cert.URIs[0]
	number, found := strings.CutPrefix(u.Path, "/node/")
	node, err := strconv.ParseUint(number, 10, 32)
	cluster, idErr := ParseClusterID(u.Host)
	if !found || err != nil || idErr != nil || node == 0 || u.Scheme != "spiffe" {
		return Name{}, ErrNoIdentity
	}
	name := Name{Cluster: cluster, Node: uint32(node)}
	if name.URI().String() != u.String() { // one spelling only
		return Name{}, ErrNoIdentity
	}
	return name, nil
}

// Authority is the cluster's signing key with its certificate.
type Authority struct {
	cluster ClusterID
	cert    *x509.Certificate
	key     *ecdsa.PrivateKey
}

// NewAuthority makes the key and the self-signed certificate of a new cluster.
func NewAuthority(cluster ClusterID, now time.Time) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("credentials: make authority key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber:          newSerial(),
		Subject:               pkix.Name{CommonName: "rdmcfs cluster " + cluster.String()},
		URIs:                  []*url.URL{{Scheme: "spiffe", Host: cluster.String()}},
		NotBefore:             now.Add(-ClockSkew),
		NotAfter:              now.Add(authorityValidity),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("credentials: sign authority: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("credentials: read authority back: %w", err)
	}
	return &Authority{cluster: cluster, cert: cert, key: key}, nil
}

// NewAuthorityFrom joins a certificate with its key, as FetchAuthority or Dir.LoadAuthority got them.
func NewAuthorityFrom(certDER, keyDER []byte) (*Authority, error) {
	cert, cluster, err := parseAuthorityCert(certDER)
	if err != nil {
		return nil, err
	}
	key, err := parseKey(keyDER)
	if err != nil {
		return nil, err
	}
	if !key.PublicKey.Equal(cert.PublicKey) {
		return nil, fmt.Errorf("credentials: authority key and certificate differ: %w", ErrDamaged)
	}
	return &Authority{cluster: cluster, cert: cert, key: key}, nil
}

// parseAuthorityCert reads an authority's certificate and the cluster it is for.
func parseAuthorityCert(der []byte) (*x509.Certificate, ClusterID, error) {
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, ClusterID{}, fmt.Errorf("credentials: authority certificate: %w: %w", err, ErrDamaged)
	}
	if !cert.IsCA || len(cert.URIs) != 1 || cert.URIs[0].Path != "" {
		return nil, ClusterID{}, fmt.Errorf("credentials: authority certificate: %w", ErrNoIdentity)
	}
	cluster, err := ParseClusterID(cert.URIs[0].Host)
	if err != nil {
		return nil, ClusterID{}, fmt.Errorf("credentials: authority certificate: %w", ErrNoIdentity)
	}
	return cert, cluster, nil
}

func parseKey(der []byte) (*ecdsa.PrivateKey, error) {
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, fmt.Errorf("credentials: key: %w: %w", err, ErrDamaged)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, fmt.Errorf("credentials: key is not ECDSA P-256: %w", ErrDamaged)
	}
	return key, nil
}

func newSerial() *big.Int {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), serialBits))
	if err != nil {
		panic("credentials: random source failed: " + err.Error()) // tidy: crypto/rand promises that it does not
	}
	return n.Add(n, big.NewInt(1))
}

// Cluster is the cluster that the authority signs for.
func (a *Authority) Cluster() ClusterID { return a.cluster }

// CertificateDER is the authority's certificate.
func (a *Authority) CertificateDER() []byte { return a.cert.Raw }

// KeyDER returns the private key (PKCS #8). Anyone who has it can make nodes.
func (a *Authority) KeyDER() ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(a.key)
	if err != nil {
		return nil, fmt.Errorf("credentials: authority key: %w", err)
	}
	return der, nil
}

// KeyHash is what tokens pin: SHA-256 of the authority's public key.
func (a *Authority) KeyHash() [32]byte { return sha256.Sum256(a.cert.RawSubjectPublicKeyInfo) }

// Sign makes the certificate of a node from its request. Only the public key is taken from the request.
func (a *Authority) Sign(requestDER []byte, node uint32, now time.Time) ([]byte, error) {
	public, err := checkRequest(requestDER)
	if err != nil {
		return nil, err
	}
	if node == 0 {
		return nil, fmt.Errorf("credentials: sign: node 0: %w", ErrNoIdentity)
	}
	name := Name{Cluster: a.cluster, Node: node}
	template := &x509.Certificate{
		SerialNumber:          newSerial(),
		Subject:               pkix.Name{CommonName: "rdmcfs node " + strconv.FormatUint(uint64(node), 10)},
		URIs:                  []*url.URL{name.URI()},
		DNSNames:              []string{ServerName},
		NotBefore:             a.cert.NotBefore,
		NotAfter:              now.Add(LeafValidity),
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, public, a.key)
	if err != nil {
		return nil, fmt.Errorf("credentials: sign node %d: %w", node, err)
	}
	return der, nil
}

// checkRequest reads a certificate request and proves that its sender has the key.
func checkRequest(der []byte) (*ecdsa.PublicKey, error) {
	if len(der) > requestBytesMax {
		return nil, fmt.Errorf("credentials: certificate request of %d bytes is too large", len(der))
	}
	req, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, fmt.Errorf("credentials: certificate request: %w", err)
	}
	if err := req.CheckSignature(); err != nil {
		return nil, fmt.Errorf("credentials: certificate request: %w", err)
	}
	public, ok := req.PublicKey.(*ecdsa.PublicKey)
	if !ok || public.Curve != elliptic.P256() {
		return nil, fmt.Errorf("credentials: certificate request: key is not ECDSA P-256")
	}
	return public, nil
}

// Request is a new key and the request to have it signed.
type Request struct {
	key *ecdsa.PrivateKey
	der []byte
}

// NewRequest makes a key and a request for it.
func NewRequest() (*Request, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("credentials: make node key: %w", err)
	}
	return newRequestFor(key)
}

func newRequestFor(key *ecdsa.PrivateKey) (*Request, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, fmt.Errorf("credentials: certificate request: %w", err)
	}
	return &Request{key: key, der: der}, nil
}

// DER is what is sent to the authority.
func (r *Request) DER() []byte { return r.der }

// RequestKeyHash is SHA-256 of the public key in a request: the same for a repeated join of one machine.
func RequestKeyHash(requestDER []byte) ([32]byte, error) {
	public, err := checkRequest(requestDER)
	if err != nil {
		return [32]byte{}, err
	}
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return [32]byte{}, fmt.Errorf("credentials: certificate request: %w", err)
	}
	return sha256.Sum256(der), nil
}
