package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// A database is open for reading before the first program of its node opens it for writing: the readers see each
// commit, also a second writer's, and in each transaction one state.
func TestDatabasesWithReadersFirst(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3})
	for _, mode := range []string{"delete", "wal"} {
		for _, kib := range []int{0, 8, 1024, 20 << 10} {
			t.Run(fmt.Sprintf("%s, %d KiB", mode, kib), func(t *testing.T) { testReadersFirst(t, c, mode, kib) })
		}
	}
}

func testReadersFirst(t *testing.T, c *cluster.Cluster, mode string, kib int) {
	name := fmt.Sprintf("%s%d.db", mode, kib)
	path := c.Nodes[0].Path(name)
	must(t, os.WriteFile(path, nil, 0o644))
	if kib > 0 {
		run(t, "sqlite3", "-bail", path, fmt.Sprintf("pragma journal_mode=%s; create table filling(b blob);"+
			"with recursive c(n) as (select 1 union all select n+1 from c where n < %d)"+
			"insert into filling select randomblob(1000) from c;", mode, kib))
	}
	first := connect(t, "-readonly", path)
	first.ask("select count(*) from sqlite_master;")
	writer := connect(t, "-bail", path)
	writer.want(fmt.Sprintf("pragma journal_mode=%s;", mode), mode)
	writer.want("create table t(n int, b blob);", "")
	first.want("select count(*) from t;", "0")
	second := connect(t, "-readonly", path)
	rows := size(10, 100)
	for i := range rows {
		writer.want(fmt.Sprintf("insert into t values(%d, randomblob(5000));", i), "")
		first.want("select count(*), max(n) from t;", fmt.Sprintf("%d|%d", i+1, i))
		second.want("select count(*) from t;", fmt.Sprint(i+1))
	}
	other := connect(t, "-bail", path)
	other.want("delete from t where n = 0;", "")
	first.want("pragma integrity_check; select count(*) from t;", fmt.Sprintf("ok %d", rows-1))
	if mode == "wal" {
		first.ask("begin; select count(*) from t;")
		other.want("delete from t where n = 1;", "")
		first.want("select count(*) from t;", fmt.Sprint(rows-1))
		first.want("commit; select count(*) from t;", fmt.Sprint(rows-2))
		rows--
	}
	for _, s := range []sqlShell{first, second, writer, other} {
		s.close()
	}
	for _, n := range c.Nodes {
		out := run(t, "sqlite3", n.Path(name), "pragma integrity_check; select count(*) from t;")
		if want := fmt.Sprintf("ok\n%d\n", rows-1); out != want {
			t.Errorf("%s: %q, want %q", n.Name(), out, want)
		}
	}
}

// lmdbProgram is testdata/lmdb.c, compiled.
func lmdbProgram(t *testing.T, dir string) string {
	t.Helper()
	out := filepath.Join(dir, "lmdb")
	run(t, "gcc", "-O2", "-Wall", "-o", out, "testdata/lmdb.c", "-llmdb")
	return out
}

// LMDB maps its file: a reader that was there first sees what a writer writes, and one state in each transaction.
func TestDatabasesThatAreMappedWithReadersFirst(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3})
	program, path := lmdbProgram(t, c.Dir), c.Nodes[0].Path("map.mdb")
	open := func(how string) *talk { return converse(t, program, how, path) }
	answers := func(s *talk, line, want string) {
		t.Helper()
		if got := s.say(line); got != want {
			t.Fatalf("%s: %q, want %q", line, got, want)
		}
	}
	w := open("write")
	answers(w, "put 0 100000", "put")
	w.close()
	reader, sum := open("read"), 0
	answers(reader, "count", "1 0")
	w = open("write")
	rows := size(30, 300)
	for i := 1; i <= rows; i++ {
		answers(reader, "begin", "begin")
		answers(w, fmt.Sprintf("put %d %d", i, 1+i*i*13%60_000), "put")
		answers(reader, "count", fmt.Sprintf("%d %d", i, sum))
		answers(reader, "end", "end")
		sum += i % 251
		answers(reader, "count", fmt.Sprintf("%d %d", i+1, sum))
	}
	w.close()
	reader.close()
	for _, n := range c.Nodes[1:] {
		c.AwaitAgreement(60 * time.Second)
		s := converse(t, program, "read", n.Path("map.mdb"))
		answers(s, "count", fmt.Sprintf("%d %d", rows+1, sum))
		s.close()
	}
}
