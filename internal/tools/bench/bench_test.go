package bench

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
)

func TestMain(m *testing.M) {
	if slices.Contains(os.Args, childFlag) {
		if err := RunChild(context.Background(), os.Stdin, os.Stdout, nil); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestProcessorTimes(t *testing.T) {
	a, err := parseProcessorTimes("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 2 3\n")
	if err != nil || a != (ProcessorTimes{Idle: 850, Total: 1000}) {
		t.Fatalf("%+v, %v", a, err)
	}
	b := ProcessorTimes{Idle: 900, Total: 1100}
	if got := b.IdleSince(a); got != 0.5 {
		t.Fatalf("idle %v", got)
	}
	for _, bad := range []string{"", "cpu 1 2", "cpu a b c d e f g h"} {
		if _, err := parseProcessorTimes(bad); err == nil {
			t.Errorf("%q was parsed", bad)
		}
	}
}
