// Command multicast sends a file from one process to all others, also when some of them die meanwhile. See README.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"github.com/rdmcfs/rdmcfs/replicate/rdmc/rendezvous"
)

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
	session, err := rendezvous.Open(ctx, cfg) // waits until all are there
	if err != nil {
		return err
	}
	defer session.Close()
	if cfg.Rank > 0 {
		return receive(ctx, session)
	}
	file, err := os.Open(*path)
	if err != nil {
		return err
	}
	defer file.Close()
	delivery, err := session.SendFile(ctx, file)
	if err != nil {
		return err
	}
	fmt.Println("delivered", *path, "to", delivery.Members, "and lost", delivery.Out)
	return nil
}

func receive(ctx context.Context, session *rendezvous.Session) error {
	message, err := session.Next(ctx)
	if err != nil {
		return err
	}
	file, err := os.Create(*path)
	if err != nil {
		return err
	}
	defer file.Close()
	return message.Receive(ctx, session.Blocks(file)) // nil: all that are left have every byte
}
