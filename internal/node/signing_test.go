package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
)

// The only voter, which alone has the signing key, is evicted: the node that votes then has the key, and others can
// join.
func TestSigningKeyStaysWhenTheOnlyVoterIsEvicted(t *testing.T) {
	t.Parallel() // it waits more than it works
	c := noNodes(t)
	first := c.add("n1", func(dir, listen string) error {
		_, err := Init(InitConfig{DataDir: dir, Listen: listen, Name: "n1"})
		return err
	})
	t.Cleanup(func() { first.cancel(); first.done.Wait() })
	c.until("n1", "serving", serving)
	second := c.join("n2", "n1")
	c.until("n2", "serving", serving)
	delete(c.nodes, "n1")
	if _, err := second.admin.Evict(t.Context(), admin.EvictRequest{Node: 1}); err != nil {
		t.Fatal(err)
	}
	if first.done.Wait(); !errors.Is(first.err, ErrEvicted) {
		t.Errorf("n1 ended: %v", first.err)
	}
	c.until("n2", "the voter", func(st admin.Status) bool {
		return serving(st) && len(st.Voters) == 1 && st.Voters[0] == st.Node
	})
	c.join("n3", "n2")
	c.until("n3", "serving", serving)
}

// The only holder of the signing key is evicted by a node that does not vote, before the present voters have got the
// key: it leaves only after one of them has it, and others can join.
func TestSigningKeyStaysWhenItsOnlyHolderIsEvicted(t *testing.T) {
	t.Parallel() // it waits more than it works
	c, first, inTheWay := keyOnOneVoter(t)
	c.join("n4", "n1")
	c.until("n4", "one beside three voters", func(st admin.Status) bool {
		voters := 0
		for _, n := range st.Nodes {
			if n.Voter && n.ID != st.Node {
				voters++
			}
		}
		return len(st.Voters) == 3 && voters == 3
	})
	delete(c.nodes, "n1")
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	if _, err := c.nodes["n4"].admin.Evict(ctx, admin.EvictRequest{Node: 1}); err == nil {
		t.Fatal("the only node with the signing key was evicted")
	}
	for _, dir := range inTheWay {
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.nodes["n4"].admin.Evict(t.Context(), admin.EvictRequest{Node: 1}); err != nil {
		t.Fatal(err)
	}
	if first.done.Wait(); !errors.Is(first.err, ErrEvicted) {
		t.Errorf("n1 ended: %v", first.err)
	}
	c.join("n5", "n2")
	c.until("n5", "serving", serving)
}

// The only holder of the signing key, which runs, is asked to let a machine take its place: it does so only after
// another voter has got the key, and the token is good until then.
func TestSigningKeyStaysWhenItsOnlyHolderIsReplaced(t *testing.T) {
	t.Parallel() // it waits more than it works
	c, first, inTheWay := keyOnOneVoter(t)
	token, err := first.admin.Token(t.Context(), admin.TokenRequest{TTL: time.Hour, Replace: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	listen := freePort(t)
	join := func(dir string) error {
		_, err := Join(t.Context(), JoinConfig{DataDir: dir, Seed: token.Listen, Token: token.Token, Listen: listen,
			Name: "n1", Replace: true})
		return err
	}
	if err := join(filepath.Join(c.dir, "early")); err == nil || !strings.Contains(err.Error(), "signing key") {
		t.Fatalf("the only node with the signing key is replaced: %v", err)
	}
	for _, dir := range inTheWay {
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
	}
	delete(c.nodes, "n1")
	if err := join(filepath.Join(c.dir, "late")); err != nil {
		t.Fatal(err)
	}
	c.join("n5", "n2")
	c.until("n5", "serving", serving)
}

// keyOnOneVoter is three voters of which only the first has the signing key: something lies where the others would
// store it.
func keyOnOneVoter(t *testing.T) (c *clocked, first *clockedNode, inTheWay []string) {
	t.Helper()
	c = noNodes(t)
	first = c.add("n1", func(dir, listen string) error {
		_, err := Init(InitConfig{DataDir: dir, Listen: listen, Name: "n1"})
		return err
	})
	t.Cleanup(func() { first.cancel(); first.done.Wait() })
	c.until("n1", "serving", serving)
	for _, name := range []string{"n2", "n3"} {
		token, err := first.admin.Token(t.Context(), admin.TokenRequest{TTL: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		c.add(name, func(dir, listen string) error {
			inTheWay = append(inTheWay, filepath.Join(string(dataDir(dir).tls()), "ca.key.new"))
			cfg := JoinConfig{DataDir: dir, Seed: token.Listen, Token: token.Token, Listen: listen, Name: name}
			_, err := Join(t.Context(), cfg)
			return errors.Join(err, os.Mkdir(inTheWay[len(inTheWay)-1], 0o700))
		})
		c.until(name, "serving", serving)
	}
	c.until("n1", "one of three voters", func(st admin.Status) bool {
		voters := 0
		for _, n := range st.Nodes {
			if n.Voter {
				voters++
			}
		}
		return len(st.Voters) == 3 && voters == 3
	})
	return c, first, inTheWay
}
