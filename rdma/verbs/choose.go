//go:build linux && (amd64 || arm64) && !nordma

package verbs

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// choosePort finds the port that the configuration asks for.
func choosePort(info *DeviceInfo, cfg *Config) (*PortInfo, error) {
	for i := range info.Ports {
		p := &info.Ports[i]
		switch {
		case cfg.Port == p.Number && !p.Active():
			return nil, fmt.Errorf("%w: %s port %d is %s", ErrNoDevice, info.Name, p.Number, p.State)
		case cfg.Port == p.Number, cfg.Port == 0 && p.Active():
			return p, nil
		}
	}
	if cfg.Port != 0 {
		return nil, fmt.Errorf("%w: %s has no port %d", ErrNoDevice, info.Name, cfg.Port)
	}
	return nil, fmt.Errorf("%w: no port of %s is active", ErrNoDevice, info.Name)
}

// chooseGID finds the address that the configuration asks for.
func chooseGID(p *PortInfo, want string) (GIDInfo, error) {
	if want == "" {
		return bestGID(p)
	}
	index, err := strconv.Atoi(want)
	addr, errAddr := netip.ParseAddr(want)
	if err != nil && errAddr != nil {
		return GIDInfo{}, fmt.Errorf("%w: GID %q is neither an index nor an address", ErrNoDevice, want)
	}
	var found []GIDInfo
	for _, g := range p.GIDs {
		if err == nil && g.Index == index || errAddr == nil && g.GID.Unmap() == addr.Unmap() {
			found = append(found, g)
		}
	}
	if len(found) == 0 {
		return GIDInfo{}, fmt.Errorf("%w: port %d has no GID %s; it has %s", ErrNoDevice, p.Number, want, gidList(p.GIDs))
	}
	return slices.MinFunc(found, compareGID), nil // the same address may be there as v1 and v2
}

func bestGID(p *PortInfo) (GIDInfo, error) {
	if len(p.GIDs) == 0 {
		return GIDInfo{}, fmt.Errorf("%w: port %d has no GID: give its network interface an address", ErrNoDevice, p.Number)
	}
	if p.LinkLayer == "InfiniBand" {
		return p.GIDs[0], nil
	}
	return slices.MinFunc(p.GIDs, compareGID), nil
}

// compareGID orders the entries of an Ethernet port, the best first.
func compareGID(a, b GIDInfo) int {
	if d := gidRank(a) - gidRank(b); d != 0 {
		return d
	}
	return a.Index - b.Index
}

func gidRank(g GIDInfo) int {
	rank := 0
	if g.Type != "RoCE v2" {
		rank += 4
	}
	switch {
	case g.GID.Is4In6():
	case g.GID.IsLinkLocalUnicast():
		rank += 2
	default:
		rank++
	}
	return rank
}

func gidList(all []GIDInfo) string {
	var out []string
	for _, g := range all {
		out = append(out, fmt.Sprintf("%d=%v (%s)", g.Index, g.GID.Unmap(), g.Type))
	}
	if len(out) == 0 {
		return "none"
	}
	return strings.Join(out, ", ")
}
