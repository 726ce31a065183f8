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
	log, cfg := slog.New(slog.DiscardHandler), Config{Fabric: Fabric{Mode: FabricTCP}}
	var opened, long closer
	d, err := openDevices(cfg, "10.0.0.1:7400", log, &opened)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	if got := d.all.String(); !strings.HasPrefix(got, "tcp 10.0.0.1:7400 ") {
		t.Errorf("fabric %q", got)
	}
	name := strings.Repeat("h", 190) + ":7400"
	defer long.Close()
	if _, err := openDevices(cfg, name, log, &long); err == nil || !strings.Contains(err.Error(), "shorter host name") {
		t.Errorf("a name of 190 bytes: %v", err)
	}
	if _, err := tcp.New(tcp.Config{Advertise: name}); err != nil {
		t.Errorf("the name is too long for tcp alone: the test shows nothing: %v", err)
	}
}
