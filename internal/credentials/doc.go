// Package credentials makes and checks what proves who a node is: the cluster's certificate authority, the certificate
// of each node, and the join tokens (G8: no strangers).
//
// The authority is an ECDSA P-256 key made by `rdmcfs init`. It signs one leaf certificate per node, valid for
// LeafValidity, that is named by a URI: spiffe://<cluster id>/node/<number>. All control traffic is mutual TLS 1.3
// between such leaves. The DNS name in them, ServerName, is for programs that read at the port of --http. A Token lets
// a new machine ask for its first leaf. It carries a one-time secret for the cluster to check, and the hash of the
// authority's public key, so that the newcomer can check the cluster before it reveals the secret.
//
//	init ── NewAuthority ──> DATA/tls/ca.crt, ca.key
//	token ─ NewToken ──────> hash of the secret into the log, the string to the user
//	join ── NewRequest ────> (secret, request) over TLS checked by the token ──> Authority.Sign ──> NewIdentity
//	every 20 days ─ NewRequest ─> over mutual TLS ──> Authority.Sign ──> Identity.Install, without a restart
//
// Nothing here talks to the network or the log; the clock comes in as an argument.
package credentials
