package credentials

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/durable"
)

// Dir is the tls directory of a data directory: mode 0700, files 0600.
//
//	ca.crt      the authority's certificate
//	ca.key      the authority's private key, on nodes that may sign
//	node.pem    the node's private key and certificate, replaced as one
//	join.key    the key of a join until the directory is a node, so that it can be repeated
//
// Every write is atomic and durable: a new file, synced, renamed, directory synced.
type Dir string

// JoinKeyFile is the name of the key of a join until the directory is a node.
const JoinKeyFile = "join.key"

const (
	fileAuthority    = "ca.crt"
	fileAuthorityKey = "ca.key"
	fileNode         = "node.pem"

	pemCertificate = "CERTIFICATE"
	pemPrivateKey  = "PRIVATE KEY"

	fileBytesMax = 64 << 10
)

// SaveIdentity stores a node's certificate and key, and the authority's certificate.
func (d Dir) SaveIdentity(authorityDER, leafDER []byte, req *Request) error {
	keyDER, err := x509.MarshalPKCS8PrivateKey(req.key)
	if err != nil {
		return fmt.Errorf("credentials: node key: %w", err)
	}
	node := append(pem.EncodeToMemory(&pem.Block{Type: pemPrivateKey, Bytes: keyDER}),
		pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: leafDER})...)
	if err := d.write(fileAuthority, pem.EncodeToMemory(&pem.Block{Type: pemCertificate,
		Bytes: authorityDER})); err != nil {
		return err
	}
	return d.write(fileNode, node)
}

// ForgetJoin removes the key of a join that is over.
func (d Dir) ForgetJoin() error { return d.remove(JoinKeyFile) }

// ForgetAuthority removes the authority's key, which an init that was cut short has left: its cluster never was.
func (d Dir) ForgetAuthority() error { return d.remove(fileAuthorityKey) }

// LoadIdentity reads what SaveIdentity stored. The error wraps fs.ErrNotExist when there is none, else ErrDamaged.
func (d Dir) LoadIdentity(now func() time.Time) (*Identity, error) {
	authority, err := d.readPEM(fileAuthority, pemCertificate)
	if err != nil {
		return nil, err
	}
	node, err := d.readPEM(fileNode, pemPrivateKey, pemCertificate)
	if err != nil {
		return nil, err
	}
	key, err := parseKey(node[0])
	if err != nil {
		return nil, fmt.Errorf("credentials: %s: %w", d.path(fileNode), err)
	}
	id, err := NewIdentity(authority[0], node[1], key, now)
	if err != nil {
		return nil, fmt.Errorf("credentials: %s: %w", d.path(fileNode), err)
	}
	return id, nil
}

// SaveAuthority stores the authority with its key.
func (d Dir) SaveAuthority(a *Authority) error {
	der, err := a.KeyDER()
	if err != nil {
		return err
	}
	if err := d.write(fileAuthority, pem.EncodeToMemory(&pem.Block{Type: pemCertificate,
		Bytes: a.CertificateDER()})); err != nil {
		return err
	}
	return d.write(fileAuthorityKey, pem.EncodeToMemory(&pem.Block{Type: pemPrivateKey, Bytes: der}))
}

// LoadAuthority reads the authority with its key. The error wraps fs.ErrNotExist where this node has none.
func (d Dir) LoadAuthority() (*Authority, error) {
	key, err := d.readPEM(fileAuthorityKey, pemPrivateKey)
	if err != nil {
		return nil, err
	}
	cert, err := d.readPEM(fileAuthority, pemCertificate)
	if err != nil {
		return nil, err
	}
	return NewAuthorityFrom(cert[0], key[0])
}

// JoinRequest returns the request of an unfinished join, or begins one: the same key is used until
// ForgetJoin, so that a repeated join is recognised as the same machine's.
func (d Dir) JoinRequest() (*Request, error) {
	der, err := d.readPEM(JoinKeyFile, pemPrivateKey)
	if err == nil {
		key, err := parseKey(der[0])
		if err != nil {
			return nil, fmt.Errorf("credentials: %s: %w", d.path(JoinKeyFile), err)
		}
		return newRequestFor(key)
	}
	if !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	req, err := NewRequest()
	if err != nil {
		return nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(req.key)
	if err != nil {
		return nil, fmt.Errorf("credentials: join key: %w", err)
	}
	return req, d.write(JoinKeyFile, pem.EncodeToMemory(&pem.Block{Type: pemPrivateKey, Bytes: keyDER}))
}

func (d Dir) path(name string) string { return filepath.Join(string(d), name) }

// readPEM reads a file of exactly the given blocks.
func (d Dir) readPEM(name string, types ...string) ([][]byte, error) {
	info, err := os.Stat(d.path(name))
	if err != nil {
		return nil, fmt.Errorf("credentials: %w", err)
	}
	if info.Size() > fileBytesMax {
		return nil, fmt.Errorf("credentials: %s is too large: %w", d.path(name), ErrDamaged)
	}
	raw, err := os.ReadFile(d.path(name))
	if err != nil {
		return nil, fmt.Errorf("credentials: %w", err)
	}
	var blocks [][]byte
	for _, want := range types {
		block, rest := pem.Decode(raw)
		if block == nil || block.Type != want {
			return nil, fmt.Errorf("credentials: %s: no %s: %w", d.path(name), want, ErrDamaged)
		}
		blocks, raw = append(blocks, block.Bytes), rest
	}
	return blocks, nil
}

func (d Dir) remove(name string) error {
	err := os.Remove(d.path(name))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("credentials: %w", err)
	}
	return d.sync()
}

func (d Dir) write(name string, data []byte) error {
	if err := durable.MakeDir(string(d)); err != nil {
		return fmt.Errorf("credentials: %w", err)
	}
	if err := durable.WriteFile(d.path(name), data); err != nil {
		return fmt.Errorf("credentials: %w", err)
	}
	return nil
}

func (d Dir) sync() error {
	if err := durable.Sync(string(d)); err != nil {
		return fmt.Errorf("credentials: sync %s: %w", d, err)
	}
	return nil
}
