package node

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/rdmcfs/rdmcfs/rdma/tcp"
	"github.com/rdmcfs/rdmcfs/rdma/verbs"
)

// A device that no machine has: TCP unless RDMA is demanded, and then an error that says what to do.
func TestFabricWithoutDevice(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	for _, f := range []Fabric{{Mode: FabricTCP}, {Mode: FabricAuto, Device: "none0"}, {Device: "none0"}} {
		if got, err := f.OpenWanted("host:1", log); err != nil || got != nil {
			t.Errorf("%+v: %v, %v", f, got, err)
		}
	}
	_, err := Fabric{Mode: FabricVerbs, Device: "none0"}.OpenWanted("host:1", log)
	known := errors.Is(err, verbs.ErrNoDevice) || errors.Is(err, verbs.ErrNoLibrary) || errors.Is(err, verbs.ErrNotBuilt)
	if !errors.Is(err, ErrFabric) || !known || !strings.Contains(err.Error(), "--fabric auto") {
		t.Errorf("%v", err)
	}
}

func TestOpenDevice(t *testing.T) {
	n := &node{log: slog.New(slog.DiscardHandler), cfg: Config{Fabric: Fabric{Mode: FabricTCP}},
		id: identity{Advertise: "10.0.0.1:7400"}}
	if err := n.openDevice(); err != nil {
		t.Fatal(err)
	}
	defer n.closer.Close()
	if got := n.device.String(); !strings.HasPrefix(got, "tcp 10.0.0.1:7400 ") {
		t.Errorf("fabric %q", got)
	}
	long := &node{log: n.log, cfg: n.cfg, id: identity{Advertise: strings.Repeat("h", 190) + ":7400"}}
	defer long.closer.Close()
	if err := long.openDevice(); err == nil || !strings.Contains(err.Error(), "shorter host name") {
		t.Errorf("a name of 190 bytes: %v", err)
	}
	if _, err := tcp.New(tcp.Config{Advertise: long.id.Advertise}); err != nil {
		t.Errorf("the name is too long for tcp alone: the test shows nothing: %v", err)
	}
}
