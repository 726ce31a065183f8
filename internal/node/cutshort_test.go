package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/consensus"
	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/format"
	"github.com/rdmcfs/rdmcfs/meta"
)

// noRoom is a disk that takes no new file of the log.
type noRoom struct{ raftlog.FS }

func (noRoom) List(string) ([]string, error) { return nil, os.ErrNotExist }
func (noRoom) MakeDir(string) error          { return syscall.ENOSPC }

func noNodes(t *testing.T) *clocked {
	c := &clocked{t: t, dir: t.TempDir(), nodes: map[string]*clockedNode{}}
	t.Cleanup(func() {
		for name, n := range c.nodes {
			if n.cancel != nil {
				c.stop(name)
			}
		}
	})
	return c
}

// cutShort is a cluster of one node for machines whose first attempt to join fails.
func cutShort(t *testing.T) (c *clocked, token func(admin.TokenRequest) admin.Token) {
	c = noNodes(t)
	first := c.add("n1", func(dir, listen string) error {
		_, err := Init(InitConfig{DataDir: dir, Listen: listen, Name: "n1"})
		return err
	})
	c.until("n1", "serving", serving)
	return c, func(req admin.TokenRequest) admin.Token {
		t.Helper()
		out, err := first.admin.Token(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
}

// G9: a machine on which an init was cut short, or which was to be the first node of another cluster, can join: the
// signing key of the cluster that never existed does not pass for this one's.
func TestJoinAfterAnInitThatWasCutShort(t *testing.T) {
	c, token := cutShort(t)
	tok := token(admin.TokenRequest{TTL: time.Hour})
	c.add("n2", func(dir, listen string) error {
		if _, err := Init(InitConfig{DataDir: dir, Listen: listen, Name: "n2"}); err != nil {
			return err
		}
		if err := os.Remove(dataDir(dir).path(identityFile)); err != nil { // it is written last
			return err
		}
		_, err := Join(t.Context(), JoinConfig{DataDir: dir, Seed: tok.Listen, Token: tok.Token, Listen: listen, Name: "n2"})
		return err
	})
	c.until("n2", "serving", serving)
}

// G9: a join that was cut short after its answer can be repeated with its token, until the directory is a node.
func TestJoinThatWasCutShortIsRepeated(t *testing.T) {
	t.Parallel() // it waits more than it works
	c, token := cutShort(t)
	for i, again := range []admin.TokenRequest{{TTL: time.Hour}, {TTL: time.Hour, Replace: "n2"}} {
		tok := token(again)
		c.add(fmt.Sprint("n", 2+i), func(dir, listen string) error {
			cfg := JoinConfig{DataDir: dir, Seed: tok.Listen, Token: tok.Token, Listen: listen, Name: "n2",
				Replace: again.Replace != ""}
			cfg.Host.Log = noRoom{}
			if _, err := Join(t.Context(), cfg); err == nil {
				t.Fatal("it joined without room for the log")
			}
			cfg.Host.Log = nil
			_, err := Join(t.Context(), cfg)
			return err
		})
		c.until(fmt.Sprint("n", 2+i), "serving", serving)
		if i == 0 {
			c.stop("n2")
			delete(c.nodes, "n2")
		}
	}
}

// G9: the token that init prints is good although the first start was cut short before the token was in the log.
func TestFirstStartThatWasCutShort(t *testing.T) {
	t.Parallel() // it waits more than it works
	c := noNodes(t)
	var token admin.Token
	c.add("n1", func(dir, listen string) (err error) {
		if token, err = Init(InitConfig{DataDir: dir, Listen: listen, Name: "n1"}); err != nil {
			return err
		}
		return onlyTheNode(t, dataDir(dir))
	})
	c.until("n1", "serving", serving)
	c.add("n2", func(dir, listen string) error {
		_, err := Join(t.Context(), JoinConfig{DataDir: dir, Seed: token.Listen, Token: token.Token, Listen: listen,
			Name: "n2"})
		return err
	})
	c.until("n2", "serving", serving)
}

// onlyTheNode puts the first of what a first start proposes into the log.
func onlyTheNode(t *testing.T, d dataDir) error {
	id, err := d.load(format.Known)
	if err != nil {
		return err
	}
	db, err := meta.Open(d.path("state"), meta.Options{})
	if err != nil {
		return err
	}
	raft, err := consensus.Open(consensus.Config{
		Dir: d.path("raft"), Identity: id.raft(),
		StateMachine: &machine{db: db, point: func(string) {}, changed: func(uint64, []meta.Event) {}},
		Dial:         func(context.Context, consensus.ID) (net.Conn, error) { return nil, net.ErrClosed },
	})
	if err != nil {
		return err
	}
	entry := meta.Entry{Node: id.Node, Generation: id.Generation, Op: &meta.Join{Name: id.Name, Addr: id.Advertise}}
	_, err = raft.Propose(t.Context(), meta.EncodeEntry(entry), consensus.ProposeOptions{})
	return errors.Join(err, raft.Close(), db.Close())
}
