package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
)

func main() {
	root := flag.String("root", ".", "the `folder` with go.mod")
	which := flag.String("run", "", "only mutants whose name matches this regular `expression`")
	list := flag.Bool("list", false, "print the names and stop")
	flag.Parse()
	match, err := regexp.Compile(*which)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants: -run:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if !runAll(ctx, *root, match, *list) {
		os.Exit(1)
	}
}

// runAll tries the mutants that match, prints a line for each, and reports whether all were killed.
func runAll(ctx context.Context, root string, match *regexp.Regexp, list bool) bool {
	killed, bad := 0, 0
	for _, m := range all() {
		switch {
		case !match.MatchString(m.name):
			continue
		case list:
			fmt.Fprintln(os.Stdout, m.name)
			continue
		}
		v := try(ctx, root, &m)
		if ctx.Err() != nil {
			return false
		}
		switch {
		case v.broken != "":
			bad++
			fmt.Fprintf(os.Stdout, "BROKEN    %s: %s\n", m.name, v.broken)
		case v.killer == "":
			bad++
			fmt.Fprintf(os.Stdout, "SURVIVOR  %s (%.0f s)\n", m.name, v.took.Seconds())
		default:
			killed++
			fmt.Fprintf(os.Stdout, "killed    %s | %s (%.0f s)\n", m.name, v.killer, v.took.Seconds())
		}
	}
	if !list {
		fmt.Fprintf(os.Stdout, "%d killed, %d survivors or broken\n", killed, bad)
	}
	return bad == 0
}
