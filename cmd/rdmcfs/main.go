// Command rdmcfs makes a directory the same on many machines: what is copied into it on one is on all of them,
// verified and durable, when the copy ends.
//
// This folder has flags and printing only. A command either asks the daemon of its data directory over the admin
// socket, or is the daemon.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"reflect"
	"runtime"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/exitcode"
	"github.com/rdmcfs/rdmcfs/internal/terminal"
)

func main() {
	runtime.MemProfileRate = 0 // a daemon with --http-pprof sets it
	os.Exit(run(os.Args, os.Stdout, os.Stderr))
}

// app is what each command gets.
type app struct {
	ctx    context.Context // ends at SIGINT and SIGTERM
	out    io.Writer
	err    io.Writer
	data   string // the data directory, absolute
	client *admin.Client
	// settings is what the configuration file says.
	settings *settings
}

// run is main with everything as an argument.
func run(args []string, stdout, stderr io.Writer) int {
	words, err := helperWords(filepath.Base(args[0]), args[1:])
	if err != nil {
		terminal.Println(stderr, "rdmcfs:", err)
		return exitcode.Usage
	}
	if len(words) == 1 && words[0] == "--version" { // no flag of its own: restore has one of this name
		words[0] = "version"
	}
	var c cli
	exited := -1
	parser, err := kong.New(&c,
		kong.Name("rdmcfs"),
		kong.Description("A directory that is the same on many machines. What is copied in on one node is on all of them "+
			"when the copy ends."),
		kong.Writers(stdout, stderr),
		kong.Exit(func(code int) { exited = code }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.Vars{"data": defaultData, "config": configDefault},
		kong.KindMapper(reflect.String, kong.MapperFunc(wordAsItIs)),
	)
	if err != nil {
		terminal.Println(stderr, "rdmcfs:", err)
		return exitcode.Failure
	}
	kctx, err := parser.Parse(words)
	if exited >= 0 { // --help
		return exited
	}
	if err != nil {
		terminal.Println(stderr, "rdmcfs:", err)
		terminal.Println(stderr, "Try 'rdmcfs --help'.")
		return exitcode.Usage
	}
	out := &printer{w: stdout}
	err = runCommand(kctx, &c, out, stderr)
	if err == nil && out.err != nil { // a script that reads a part must not take it for the whole
		err = fmt.Errorf("output: %w", out.err)
	}
	return finish(stderr, err)
}

// printer is standard output, and the first error of writing to it.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) Write(b []byte) (int, error) {
	n, err := p.w.Write(b)
	if p.err == nil {
		p.err = err
	}
	return n, err
}

func runCommand(kctx *kong.Context, c *cli, stdout, stderr io.Writer) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends a program that does not end
	data, err := filepath.Abs(c.Data)
	if err != nil {
		return err
	}
	a := &app{ctx: ctx, out: stdout, err: stderr, data: data, client: admin.NewClient(admin.SocketPath(data)),
		settings: c.settings}
	err = kctx.Run(a)
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return withCode(exitcode.Failure, "interrupted")
	}
	return err
}

// finish prints an error and turns it into the exit code.
func finish(stderr io.Writer, err error) int {
	if err == nil {
		return exitcode.OK
	}
	var silent *exitError
	if errors.As(err, &silent) && silent.err == nil {
		return silent.code
	}
	terminal.Println(stderr, "rdmcfs:", err)
	return codeOf(err)
}
