//go:build nordma || !linux || !(amd64 || arm64)

package verbs

import (
	"errors"
	"testing"
)

func TestBuiltWithout(t *testing.T) {
	if _, err := Open(Config{}); !errors.Is(err, ErrNotBuilt) {
		t.Errorf("open: %v", err)
	}
	if _, err := Devices(); !errors.Is(err, ErrNotBuilt) {
		t.Errorf("devices: %v", err)
	}
	if Present() {
		t.Error("there are devices for nobody")
	}
}
