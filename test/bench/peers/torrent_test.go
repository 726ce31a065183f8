package peers

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha1"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	trackerPort = 6969
	peerPort    = 6881
	pieceBytes  = 1 << 20
)

// aria2 shares the file by BitTorrent: node 0 seeds, the others load and share, a tracker of ours on node 0 brings
// them together.
func (s *site) aria2(ctx context.Context) (outcome, error) {
	c := s.newCrew(ctx)
	defer c.disband()
	ends, err := newSignals(filepath.Join(s.dir, "ends"))
	if err != nil {
		return outcome{}, err
	}
	defer ends.close()
	hook := filepath.Join(s.dir, "loaded.sh")
	if err := os.WriteFile(hook, fmt.Appendf(nil, "#!/bin/sh\necho loaded >%s\n", ends.path), 0o700); err != nil {
		return outcome{}, err
	}
	torrent, err := s.startSeed(c)
	if err != nil {
		return outcome{}, err
	}
	start := time.Now()
	for node := 1; node < s.n; node++ {
		if _, _, err := c.start(node, aria2Command(s.folder(node), torrent,
			"--on-bt-download-complete="+hook)...); err != nil {
			return outcome{}, err
		}
	}
	return s.finish(c, start, ends.await(ctx, s.n-1))
}

// startSeed starts tracker and seed, and returns the torrent file.
func (s *site) startSeed(c *crew) (torrent string, err error) {
	tracker := net.JoinHostPort(s.links.Address(0), strconv.Itoa(trackerPort))
	if _, err := c.daemon(0, "tcp", trackerPort, os.Args[0], trackerFlag, tracker); err != nil {
		return "", err
	}
	message, err := os.ReadFile(s.file(0))
	if err != nil {
		return "", err
	}
	torrent = filepath.Join(s.dir, "message.torrent")
	if err := os.WriteFile(torrent, torrentFile("http://"+tracker+"/announce", "message", message), 0o600); err != nil {
		return "", err
	}
	_, err = c.daemon(0, "tcp", peerPort, aria2Command(s.folder(0), torrent, "--check-integrity=true")...)
	return torrent, err
}

func aria2Command(dir, torrent string, more ...string) []string {
	return append(append([]string{"aria2c", "--quiet=true", "--dir=" + dir, "--seed-ratio=0.0",
		"--listen-port=" + strconv.Itoa(peerPort),
		"--enable-dht=false", "--bt-enable-lpd=false", "--file-allocation=none", "--disable-ipv6=true",
		"--allow-overwrite=true"}, more...), torrent)
}

// torrentFile describes a file in BitTorrent's format.
func torrentFile(announce, name string, data []byte) []byte {
	var pieces []byte
	for from := 0; from < len(data); from += pieceBytes {
		sum := sha1.Sum(data[from:min(from+pieceBytes, len(data))])
		pieces = append(pieces, sum[:]...)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "d8:announce%d:%s4:infod6:lengthi%de4:name%d:%s12:piece lengthi%de6:pieces%d:",
		len(announce), announce, len(data), len(name), name, pieceBytes, len(pieces))
	b.Write(pieces)
	b.WriteString("ee")
	return b.Bytes()
}

// tracker introduces the members of one torrent to each other.
type tracker struct {
	mu    sync.Mutex
	peers map[netip.AddrPort]bool
}

// serveTracker runs until the process ends.
func serveTracker(addr string) error {
	server := http.Server{Addr: addr, Handler: &tracker{peers: make(map[netip.AddrPort]bool)},
		ReadHeaderTimeout: 5 * time.Second}
	return server.ListenAndServe()
}

// ServeHTTP answers an announcement with all members that are there.
func (tr *tracker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	port, perr := strconv.ParseUint(r.URL.Query().Get("port"), 10, 16)
	if err != nil || perr != nil {
		http.Error(w, "want a port", http.StatusBadRequest)
		return
	}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.peers[netip.AddrPortFrom(from.Addr().Unmap(), uint16(port))] = true
	var compact []byte
	for p := range tr.peers {
		ip := p.Addr().As4()
		compact = append(compact, ip[0], ip[1], ip[2], ip[3], byte(p.Port()>>8), byte(p.Port()))
	}
	fmt.Fprintf(w, "d8:intervali1e12:min intervali1e5:peers%d:%se", len(compact), compact)
}

// signals is a pipe with a name, into which programs write a line each.
type signals struct {
	path string
	file *os.File
}

func newSignals(path string) (*signals, error) {
	if err := os.RemoveAll(path); err != nil {
		return nil, err
	}
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0) // both ends, so that it never ends
	return &signals{path, f}, err
}

func (g *signals) close() { g.file.Close() }

// await returns when n lines have come.
func (g *signals) await(ctx context.Context, n int) error {
	stop := context.AfterFunc(ctx, func() { g.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	lines := bufio.NewReader(g.file)
	for got := range n {
		if _, err := lines.ReadString('\n'); err != nil {
			return errors.Join(ctx.Err(), fmt.Errorf("%d of %d nodes have the file: %w", got, n, err))
		}
	}
	return nil
}

func TestTorrentFile(t *testing.T) {
	got := torrentFile("http://x/a", "m", make([]byte, pieceBytes+5))
	want := "d8:announce10:http://x/a4:infod6:lengthi1048581e4:name1:m12:piece lengthi1048576e6:pieces40:"
	if !bytes.HasPrefix(got, []byte(want)) || !bytes.HasSuffix(got, []byte("ee")) || len(got) != len(want)+40+2 {
		t.Errorf("%q", got)
	}
}
