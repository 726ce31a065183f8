// Command multicast sends a file from one process to all others. See README.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc/rendezvous"
)

const blockBytes = 256 << 10

var path = flag.String("file", "", "the file to send, or to write")

func main() {
	var cfg rendezvous.Config
	flag.IntVar(&cfg.Rank, "rank", 0, "this process's number; 0 sends")
	flag.IntVar(&cfg.Members, "members", 3, "how many processes take part")
	flag.StringVar(&cfg.Room, "room", "127.0.0.1:7400", "where rank 0 waits for the others")
	flag.StringVar(&cfg.Listen, "listen", "127.0.0.1:0", "this host's address for data")
	flag.Parse()
	if err := run(context.Background(), cfg); err != nil {
		fmt.Fprintln(os.Stderr, "multicast:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, cfg rendezvous.Config) error {
	var file *os.File
	defer func() { file.Close() }()
	cfg.Group.BlockSize = blockBytes
	cfg.Group.Incoming = func(uint64) (_ rdmc.Sink, err error) { // at all others, when the message begins
		file, err = os.Create(*path)
		return rendezvous.NewBlocks(file, blockBytes), err
	}
	meeting, err := rendezvous.Meet(ctx, cfg) // waits until all are there
	if err != nil {
		return err
	}
	defer meeting.Close() // if something fails, the others get word
	if cfg.Rank == 0 {
		if file, err = os.Open(*path); err != nil {
			return err
		}
		if _, err := meeting.SendFile(file); err != nil {
			return err
		}
	}
	if err := meeting.Group.Close(ctx); err != nil { // nil: all have every byte
		return err
	}
	fmt.Println("rank", cfg.Rank, "has", *path, "and so have all others")
	return nil
}
