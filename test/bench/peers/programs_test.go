package peers

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Ports of the programs, on each node.
const (
	uftpPort      = 1044
	udpcastPort   = 9000
	rsyncPort     = 8730
	uftpRateShare = 0.96 // of the link, as its manual advises to stay below; measured as its best
)

// uftp multicasts by UDP at a given rate.
func (s *site) uftp(ctx context.Context) (outcome, error) {
	c := s.newCrew(ctx)
	defer c.disband()
	var ids []string
	for node := 1; node < s.n; node++ {
		if _, err := c.daemon(node, "udp", uftpPort, "uftpd", "-d", "-I", "eth0", "-x", "1", "-D",
			s.folder(node)); err != nil {
			return outcome{}, err
		}
		ids = append(ids, uftpID(s.links.Address(node)))
	}
	rate := "-1" // as fast as it can
	if s.mbit > 0 {
		rate = strconv.Itoa(int(s.mbit * uftpRateShare * 1000))
	}
	start := time.Now()
	err := c.run(0, "uftp", "-I", "eth0", "-x", "1", "-R", rate, "-H", strings.Join(ids, ","), s.file(0))
	return s.finish(c, start, err)
}

// uftpID is how uftp names a node by default: its address in hexadecimal.
func uftpID(address string) string {
	a := netip.MustParseAddr(address).As4()
	return fmt.Sprintf("0x%02X%02X%02X%02X", a[0], a[1], a[2], a[3])
}

// finish ends a run of files that began at start.
func (s *site) finish(c *crew, start time.Time, err error) (outcome, error) {
	took := time.Since(start)
	cpu := c.disband()
	if err != nil {
		return outcome{}, err
	}
	return outcome{took.Seconds(), cpu}, s.verify()
}

// udpcast multicasts by UDP with acknowledgements.
func (s *site) udpcast(ctx context.Context) (outcome, error) {
	c := s.newCrew(ctx)
	defer c.disband()
	common := []string{"--nokbd", "--interface", "eth0", "--mcast-rdv-address", "239.7.7.7", "--file"}
	var waits []func() error
	for node := 1; node < s.n; node++ {
		wait, err := c.daemon(node, "udp", udpcastPort, append(append([]string{"udp-receiver"}, common...), s.file(node))...)
		if err != nil {
			return outcome{}, err
		}
		waits = append(waits, wait)
	}
	start := time.Now()
	args := append(append([]string{"udp-sender", "--full-duplex", "--min-receivers", strconv.Itoa(s.n - 1)}, common...),
		s.file(0))
	err := c.run(0, args...)
	for _, wait := range waits {
		if err == nil {
			err = wait()
		}
	}
	return s.finish(c, start, err)
}

func (s *site) rsyncParallel(ctx context.Context) (outcome, error)   { return s.rsync(ctx, true) }
func (s *site) rsyncSequential(ctx context.Context) (outcome, error) { return s.rsync(ctx, false) }

// rsync copies to a daemon on each node.
func (s *site) rsync(ctx context.Context, parallel bool) (outcome, error) {
	c := s.newCrew(ctx)
	defer c.disband()
	for node := 1; node < s.n; node++ {
		config := filepath.Join(s.dir, fmt.Sprintf("rsync%d.conf", node))
		text := fmt.Sprintf("use chroot = no\nuid = 0\ngid = 0\n[in]\npath = %s\nread only = no\n", s.folder(node))
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			return outcome{}, err
		}
		_, err := c.daemon(node, "tcp", rsyncPort, "rsync", "--daemon", "--no-detach", "--port", strconv.Itoa(rsyncPort),
			"--config", config)
		if err != nil {
			return outcome{}, err
		}
	}
	start := time.Now()
	errs := make([]error, s.n)
	var wg sync.WaitGroup
	for node := 1; node < s.n; node++ {
		wg.Go(func() {
			errs[node] = c.run(0, "rsync", "--whole-file", "--inplace", s.file(0),
				fmt.Sprintf("rsync://%s:%d/in/", s.links.Address(node), rsyncPort))
		})
		if !parallel {
			wg.Wait()
		}
	}
	wg.Wait()
	return s.finish(c, start, errors.Join(errs...))
}

func TestUftpID(t *testing.T) {
	if id := uftpID("10.77.1.2"); id != "0x0A4D0102" {
		t.Error(id)
	}
}
