// Package mixed is a fabric made of others: a device of several devices, in order of preference, that
// decides for each queue pair which of them carries it. So RDMA and TCP work side by side in one cluster, and each
// pair of nodes uses the best provider that both have.
//
//	d, err := mixed.New(mixed.Config{Devices: []rdma.Device{verbs, tcp}})
//
// # Addresses and the choice
//
// The address of a pair holds those of a queue pair on each device. Both ends choose by the same pure function
// of both addresses, without another message; the queue pairs of the other devices are closed. The last
// device should be one that every node has.
//
//	address{host, offers: verbs{...} tcp{...}, avoid} <- exchanged by the caller -> address{host, offers: tcp{...}}
//	                                   choose = tcp, at both ends
//
// If a provider that both ends have fails to connect them, the pair fails (ErrRoute), and each end that saw it
// notes the other's host for a while. Later addresses carry these notes (a Bloom filter: a false hit only
// means that a lesser provider is used), so the next pair of the two hosts takes the next provider. A host is
// known by a number that its device draws when it is made, so a restart ends what was noted.
//
// # Regions
//
// A region is registered for local use with a device when work on it is first posted there; for remote use
// with all devices at once. Its key is that of the last device. Pairs that another device carries translate
// it: the directory of a device is a table, readable by its peers, that has the other devices' keys,
// sealed with the region's key. A pair reads a word of the peer's directory when it meets a key for the first time;
// requests that need it, and those behind them, are held until then.
//
// # Completions
//
// A completion queue has one queue on each device and one goroutine for each, which moves completions to
// where callers wait for them. A caller that polls an empty queue moves them itself.
//
// # One device
//
// A device of one only translates addresses: regions are those of the device, and nothing waits or moves.
package mixed
