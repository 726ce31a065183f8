// Command multicast sends a file from one process to all others with replicate/rdmc, without the file system. See README.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"

	"github.com/rdmcfs/rdmcfs/rdma/tcp"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc/rendezvous"
)

var (
	rank    = flag.Int("rank", 0, "this process's place in the group; 0 sends")
	members = flag.Int("members", 3, "processes in the group")
	room    = flag.String("room", "127.0.0.1:7400", "where rank 0 waits for the others")
	listen  = flag.String("listen", "127.0.0.1:0", "this host's address for data")
	path    = flag.String("file", "", "the file to send, or to write")
)

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "multicast:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	device, err := tcp.New(tcp.Config{}) // the fabric
	if err != nil {
		return err
	}
	defer device.Close()
	if _, err := device.Listen(*listen); err != nil {
		return err
	}
	engine, err := rdmc.NewEngine(rdmc.EngineConfig{Device: device}) // one poller for any number of groups
	if err != nil {
		return err
	}
	defer engine.Close()
	group, err := engine.NewGroup(rdmc.GroupConfig{
		Number: 1, Members: make([]string, *members), Rank: *rank,
		Unannounced: true,     // the first block of a message tells its size
		Incoming:    incoming, // a message begins: where do its blocks go?
		Completed:   func(*rdmc.Transfer) { fmt.Println("delivered", *path) },
		OnFailure:   func(err error) { fmt.Println("failed:", err) },
	})
	if err != nil {
		return err
	}
	if err = connect(ctx, group); err == nil && *rank == 0 {
		err = send(group)
	}
	if err != nil {
		group.Abort() // the others are told
		return err
	}
	return group.Close(ctx) // nil: every message reached every member
}

// connect brings the members' addresses to each other.
func connect(ctx context.Context, group *rdmc.Group) (err error) {
	var r *rendezvous.Room
	if *rank == 0 {
		listener, err := net.Listen("tcp", *room)
		if err != nil {
			return err
		}
		defer listener.Close()
		r, err = rendezvous.Host(ctx, listener, *members)
		if err != nil {
			return err
		}
	} else if r, err = rendezvous.Join(ctx, *room, *rank); err != nil {
		return err
	}
	defer r.Close()
	return r.Connect(ctx, group)
}

func send(group *rdmc.Group) error {
	f, err := os.Open(*path)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	_, err = group.Send(rdmc.Outgoing{Size: uint64(info.Size()), Source: blocks{f}}) // queued; Close waits for it
	return err
}

func incoming(size uint64) (rdmc.Sink, error) {
	f, err := os.Create(*path)
	return blocks{f}, err
}

// blocks is a message in a file.
type blocks struct{ *os.File }

func (b blocks) ReadBlock(i uint64, buf []byte) error {
	_, err := b.ReadAt(buf, int64(i)*rdmc.DefaultBlockSize)
	return err
}

func (b blocks) WriteBlock(i uint64, buf []byte) error {
	_, err := b.WriteAt(buf, int64(i)*rdmc.DefaultBlockSize)
	return err
}
