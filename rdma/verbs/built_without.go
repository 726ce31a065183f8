//go:build nordma || !linux || !(amd64 || arm64)

package verbs

import "github.com/rdmcfs/rdmcfs/rdma"

// Open returns ErrNotBuilt.
func Open(Config) (rdma.Device, error) { return nil, ErrNotBuilt }

// Devices returns ErrNotBuilt.
func Devices() ([]DeviceInfo, error) { return nil, ErrNotBuilt }

// Present is false: this program has no use for devices.
func Present() bool { return false }
