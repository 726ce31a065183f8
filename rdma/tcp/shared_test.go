package tcp

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/minio/crc64nvme"

	"github.com/rdmcfs/rdmcfs/rdma"
	"github.com/rdmcfs/rdmcfs/rdma/rdmatest"
)

// port is a listener that is not the device's: each connection goes through admit to Serve.
func port(t testing.TB, cfg Config, admit func(net.Conn) net.Conn) *Device {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg.Advertise = l.Addr().String()
	cfg.ReceiverTimeout = 1500 * time.Millisecond
	d, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { _ = d.Serve(admit(conn)) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		_ = d.Close()
		wg.Wait()
	})
	return d
}

// shared wraps a device so that closing it closes its port too: the suite looks for goroutines then.
type shared struct {
	*Device
	stop func()
}

func (s shared) Close() error {
	s.stop()
	return s.Device.Close()
}

// TestConformanceOverTLS runs the suite where the device gets neither the listener nor a TCP socket.
func TestConformanceOverTLS(t *testing.T) {
	server, client := selfSigned(t)
	rdmatest.Run(t, func(t testing.TB) rdmatest.Pair {
		var devices [2]rdma.Device
		for i := range devices {
			devices[i] = tlsDevice(t, server, client)
		}
		return rdmatest.Pair{Devices: devices[:], Allocates: true}
	})
}

func tlsDevice(t testing.TB, server, client *tls.Config) rdma.Device {
	l, err := tls.Listen("tcp", "127.0.0.1:0", server)
	if err != nil {
		t.Fatal(err)
	}
	dialer := tls.Dialer{Config: client}
	d, err := New(Config{
		Advertise: l.Addr().String(), ReceiverTimeout: 1500 * time.Millisecond,
		Dial: func(ctx context.Context, addr string) (net.Conn, error) { return dialer.DialContext(ctx, "tcp", addr) },
	})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { _ = d.Serve(conn) })
		}
	})
	return shared{d, func() {
		_ = l.Close()
		_ = d.Close()
		wg.Wait()
	}}
}

func selfSigned(t testing.TB) (server, client *tls.Config) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(cert)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}},
		&tls.Config{RootCAs: roots}
}

// TestServeGetsTheSocket: what admits connections hands the socket itself on.
func TestServeGetsTheSocket(t *testing.T) {
	admit := func(conn net.Conn) net.Conn { return conn }
	a, b := port(t, Config{}, admit), port(t, Config{}, admit)
	qa, qb := pairOf(t, a), pairOf(t, b)
	connectBoth(t, qa, qb)
	if !qa.stream.direct() || !qb.stream.direct() {
		t.Error("a plain socket is not read directly")
	}
}

func pairOf(t testing.TB, d *Device) *queuePair {
	t.Helper()
	cq, err := d.NewCQ(16)
	if err != nil {
		t.Fatal(err)
	}
	qp, err := d.NewQP(rdma.QPConfig{SendCQ: cq, RecvCQ: cq})
	if err != nil {
		t.Fatal(err)
	}
	return qp.(*queuePair)
}

func connectBoth(t testing.TB, a, b *queuePair) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	failed := make(chan error, 1)
	go func() { failed <- a.Connect(ctx, b.Address()) }()
	if err := b.Connect(ctx, a.Address()); err != nil {
		t.Fatal(err)
	}
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
}

// TestOneSideCannotBeDialled: then the other one is, whatever the tokens.
func TestOneSideCannotBeDialled(t *testing.T) {
	d := testDevice(t, Config{})
	for range 8 {
		connectBoth(t, silent(t), pairOf(t, d))
		connectBoth(t, pairOf(t, d), silent(t))
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := silent(t).Connect(ctx, silent(t).Address()); err == nil {
		t.Error("two pairs connected that cannot be dialled")
	}
}

// TestCongestionControlIsTold: Info and String report what the sockets really use.
func TestCongestionControlIsTold(t *testing.T) {
	for _, ask := range []string{"", "reno", "default", "no-such-control"} {
		d := testDevice(t, Config{Congestion: ask})
		connectBoth(t, pairOf(t, d), pairOf(t, d))
		got := d.Info().Congestion
		if got == "" || slices.Contains([]string{"default", "no-such-control"}, got) || !strings.Contains(d.String(), got) {
			t.Errorf("asked for %q, told %q in %q", ask, got, d)
		}
		t.Logf("asked for %q: %v", ask, d)
	}
}

func TestConfigIsChecked(t *testing.T) {
	for _, cfg := range []Config{{PeerTimeout: -1}, {ReceiverTimeout: -1},
		{Advertise: strings.Repeat("x", maxHostPort+1)}} {
		if _, err := New(cfg); err == nil {
			t.Errorf("configuration %+v was taken", cfg)
		}
	}
}

// TestChecksumsAreTold: where they are asked for, and only there.
func TestChecksumsAreTold(t *testing.T) {
	for _, want := range []bool{true, false} {
		d := testDevice(t, Config{})
		cq, err := d.NewCQ(16)
		if err != nil {
			t.Fatal(err)
		}
		a := pairOf(t, d)
		b, err := d.NewQP(rdma.QPConfig{SendCQ: cq, RecvCQ: cq, WantCRC: want})
		if err != nil {
			t.Fatal(err)
		}
		connectBoth(t, a, b.(*queuePair))
		if err := b.PostRecv(rdma.RecvWR{}); err != nil {
			t.Fatal(err)
		}
		if err := a.PostSend(rdma.SendWR{Op: rdma.OpSend}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := cq.Wait(ctx); err != nil {
			t.Fatal(err)
		}
		out := make([]rdma.Completion, 1)
		if cq.Poll(out); out[0].HasCRC != want {
			t.Errorf("asked for a checksum: %v, completion %+v", want, out[0])
		}
	}
}

// TestChecksumsOverTLS: messages larger than what is summed up at once come whole also where all bytes go through the
// buffer.
func TestChecksumsOverTLS(t *testing.T) {
	const size = 3*sumBytes + 7
	server, client := selfSigned(t)
	var pairs [2]rdma.QueuePair
	var queues [2]rdma.CompletionQueue
	var regions [2]rdma.Region
	for i := range pairs {
		d := tlsDevice(t, server, client)
		t.Cleanup(func() { _ = d.Close() })
		var err error
		if queues[i], err = d.NewCQ(16); err != nil {
			t.Fatal(err)
		}
		if regions[i], err = d.AllocRegion(size, 0); err != nil {
			t.Fatal(err)
		}
		if pairs[i], err = d.NewQP(rdma.QPConfig{SendCQ: queues[i], RecvCQ: queues[i], WantCRC: true}); err != nil {
			t.Fatal(err)
		}
	}
	rand.Read(regions[0].Bytes())
	connectBoth(t, pairs[0].(*queuePair), pairs[1].(*queuePair))
	if err := pairs[1].PostRecv(rdma.RecvWR{List: []rdma.SGE{{Region: regions[1], Length: size}}}); err != nil {
		t.Fatal(err)
	}
	if err := pairs[0].PostSend(rdma.SendWR{Op: rdma.OpSend,
		List: []rdma.SGE{{Region: regions[0], Length: size}}}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := queues[1].Wait(ctx); err != nil {
		t.Fatal(err)
	}
	out := make([]rdma.Completion, 1)
	queues[1].Poll(out)
	if want := crc64nvme.Checksum(regions[0].Bytes()); out[0].Status != rdma.StatusOK || !out[0].HasCRC ||
		out[0].CRC != want {
		t.Errorf("completion %+v, want checksum %016x", out[0], want)
	}
	if !bytes.Equal(regions[0].Bytes(), regions[1].Bytes()) {
		t.Error("other bytes came")
	}
}
