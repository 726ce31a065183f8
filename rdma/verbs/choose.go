//go:build linux && (amd64 || arm64) && !nordma

package verbs

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// place is where a device is reached: a port and one of its addresses.
type place struct {
	port PortInfo
	gid  GIDInfo
}

// choosePlace finds the first port that is active and has the address that the configuration asks for.
func choosePlace(info *DeviceInfo, cfg *Config) (*place, error) {
	var reasons []string
	for i := range info.Ports {
		p := &info.Ports[i]
		if cfg.Port != 0 && cfg.Port != p.Number {
			continue
		}
		if !p.Active() {
			reasons = append(reasons, fmt.Sprintf("port %d is %s", p.Number, p.State))
			continue
		}
		gid, err := chooseGID(p, cfg.GID)
		if err == nil {
			return &place{*p, gid}, nil
		}
		reasons = append(reasons, err.Error())
	}
	if len(reasons) == 0 && cfg.Port != 0 {
		reasons = append(reasons, fmt.Sprintf("it has no port %d", cfg.Port))
	}
	return nil, fmt.Errorf("%s: %s", info.Name, strings.Join(reasons, ", "))
}

// moved is where the device is reached when its port has become p. Among equally good addresses the present one stays.
func (l *place) moved(p *PortInfo, want string) (*place, error) {
	gid, err := chooseGID(p, want)
	if err != nil {
		return nil, err
	}
	for _, g := range p.GIDs {
		same := g.GID == l.gid.GID && g.Type == l.gid.Type
		if same && want == "" && (p.LinkLayer == "InfiniBand" || gidRank(g) == gidRank(gid)) {
			gid = g
			break
		}
	}
	return &place{*p, gid}, nil
}

// chooseGID finds the address that the configuration asks for.
func chooseGID(p *PortInfo, want string) (GIDInfo, error) {
	if want == "" {
		return bestGID(p)
	}
	index, err := strconv.Atoi(want)
	addr, errAddr := netip.ParseAddr(want)
	if err != nil && errAddr != nil {
		return GIDInfo{}, fmt.Errorf("GID %q is neither an index nor an address", want)
	}
	var found []GIDInfo
	for _, g := range p.GIDs {
		if err == nil && g.Index == index || errAddr == nil && g.GID.Unmap() == addr.Unmap() {
			found = append(found, g)
		}
	}
	if len(found) == 0 {
		return GIDInfo{}, fmt.Errorf("port %d has no GID %s but %s", p.Number, want, gidList(p.GIDs))
	}
	return slices.MinFunc(found, compareGID), nil // the same address may be there as v1 and v2
}

func bestGID(p *PortInfo) (GIDInfo, error) {
	if len(p.GIDs) == 0 {
		return GIDInfo{}, fmt.Errorf("port %d has no GID: give its network interface an address", p.Number)
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
