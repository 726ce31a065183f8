package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
)

// options are the flags.
type options struct {
	root  string
	which *regexp.Regexp
	list  bool
	table bool
	exec  string
	seeds uint64
	from  uint64
}

func main() {
	var o options
	var which string
	flag.StringVar(&o.root, "root", ".", "the `folder` with go.mod")
	flag.StringVar(&which, "run", "", "only mutants whose name or file matches this regular `expression`")
	flag.BoolVar(&o.list, "list", false, "print the names and stop")
	flag.BoolVar(&o.table, "table", false, "write what killed each into "+docsFile)
	flag.StringVar(&o.exec, "exec", "", "run test binaries with this `command`")
	flag.Uint64Var(&o.seeds, "seeds", 0,
		"instead, undo whole fixes, and run whole daemons for up to this `number` of seeds")
	flag.Uint64Var(&o.from, "from", 1, "the first of the seeds")
	flag.Parse()
	var err error
	if o.which, err = regexp.Compile(which); err != nil {
		fmt.Fprintln(os.Stderr, "mutants: -run:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := runAll(ctx, &o); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// chosen gives the mutants that match.
func (o *options) chosen() (out []mutant) {
	for _, m := range all() {
		if o.which.MatchString(m.name) || o.which.MatchString(m.file) {
			out = append(out, m)
		}
	}
	return out
}

// runAll tries the mutants that match and prints a line for each. It fails if one survives or cannot be tried.
func runAll(ctx context.Context, o *options) error {
	if o.list {
		for _, m := range o.chosen() {
			fmt.Fprintln(os.Stdout, m.name)
		}
		return nil
	}
	docs := filepath.Join(o.root, docsFile)
	text, err := os.ReadFile(docs)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	r := runner{root: o.root, dir: dir, launch: strings.Fields(o.exec), last: readTable(string(text))}
	if o.seeds > 0 {
		return runReverts(ctx, o, &r)
	}
	killed, bad := 0, 0
	for _, m := range o.chosen() {
		v := r.try(ctx, &m)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		v.report(os.Stdout, m.name)
		if v.killer.test == "" {
			bad++
			delete(r.last, m.name)
		} else {
			killed++
			r.last[m.name] = v.killer
		}
		if o.table {
			if err := saveTable(docs, r.last); err != nil {
				return err
			}
		}
	}
	fmt.Fprintf(os.Stdout, "%d killed, %d survivors or broken\n", killed, bad)
	if bad > 0 {
		return errors.New("not every mutant was killed")
	}
	return nil
}
