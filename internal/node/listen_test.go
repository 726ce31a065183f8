package node

import (
	"net"
	"testing"
)

// A node does not listen on what stands for several hosts: it would join, and nobody could dial it.
func TestAddressOfManyHosts(t *testing.T) {
	for ip, want := range map[string]string{
		"239.1.1.1": "multicast", "ff02::1": "multicast", "255.255.255.255": "broadcast", "127.0.0.1": "", "127.0.0.2": "",
		"0.0.0.0": "", "::": "", "::1": "",
	} {
		if got := manyHosts(&net.TCPAddr{IP: net.ParseIP(ip), Port: 7400}); got != want {
			t.Errorf("%s: %q, want %q", ip, got, want)
		}
	}
	for cidr, want := range map[string]string{
		"10.99.0.7/24": "10.99.0.255", "10.1.2.3/8": "10.255.255.255", "10.0.0.1/31": "<nil>", "10.0.0.1/32": "<nil>",
		"127.0.0.1/8": "<nil>", "fd00::1/64": "<nil>",
	} {
		ip, n, err := net.ParseCIDR(cidr)
		if err != nil {
			t.Fatal(err)
		}
		n.IP = ip
		if got := broadcastOf(n).String(); got != want {
			t.Errorf("%s: %s, want %s", cidr, got, want)
		}
	}
	if _, err := bindTCP(flagListen, "239.1.1.1:0"); err == nil {
		t.Error("a node listens on a multicast address")
	}
}
