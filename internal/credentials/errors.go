package credentials

import "errors"

// Errors that say why a peer, a token or a file was refused. Each text ends with what to do.
var (
	// ErrTokenMalformed is a token that was not copied whole.
	ErrTokenMalformed = errors.New("malformed join token: copy the whole word that 'rdmcfs token' printed")
	// ErrTokenExpired is a token past its time.
	ErrTokenExpired = errors.New("join token expired: make a new one with 'rdmcfs token' on a member")
	// ErrForeignCluster is a peer, or a token, of another cluster.
	ErrForeignCluster = errors.New("belongs to another cluster: check the address and the token, or use another --data " +
		"directory")
	// ErrWrongNode is a peer whose certificate names another node than the one called.
	ErrWrongNode = errors.New("certificate names another node: two nodes may use one address; check 'rdmcfs status'")
	// ErrEvicted is a peer that the log has evicted.
	ErrEvicted = errors.New("node was evicted: join again with a new token and an empty --data directory")
	// ErrCertificateExpired is a certificate outside its time.
	ErrCertificateExpired = errors.New("certificate outside its time: check the clocks of both machines")
	// ErrNoIdentity is a peer certificate that is not one of a node.
	ErrNoIdentity = errors.New("certificate names no rdmcfs node")
	// ErrDamaged is a file of the tls directory that can't be read back.
	ErrDamaged = errors.New("damaged credentials: restore the tls directory from a backup, or join again with --replace")
	// ErrNoAuthority is asked of a node that does not hold the authority's key.
	ErrNoAuthority = errors.New("this node does not hold the cluster's signing key: ask a voter")
)
