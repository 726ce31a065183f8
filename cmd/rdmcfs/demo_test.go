package main

import (
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/exitcode"
)

func TestDemoRefuses(t *testing.T) {
	for _, c := range []struct {
		code int
		text string
		args []string
	}{
		{exitcode.Usage, "give 1 to", []string{"--size", "0"}},
		{exitcode.Usage, "0 nodes: want 1 to 16", []string{"--nodes", "0", "--once"}},
		{exitcode.Usage, "give 1 to", []string{"--size=-1"}},
		{exitcode.Usage, "give 1 to", []string{"--size", "9223372036854775807"}},
		{exitcode.Full, "smaller --size", []string{"--size", "268435456"}},
	} {
		expect(t, c.code, c.text, append([]string{"demo"}, c.args...)...)
	}
}
