package integration

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// followMount gives a node one more mount, whose open files follow.
func followMount(t *testing.T, c *cluster.Cluster, n *cluster.Node) (dir string) {
	t.Helper()
	dir = filepath.Join(c.Dir, "follow-"+n.Name())
	must(t, os.MkdirAll(dir, 0o755))
	n.MustCLI("mount", "-d", dir, "-o", "follow")
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir
}

// tail -f on one node prints what another one appends.
func TestTailFollows(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3})
	dir := followMount(t, c, c.Nodes[1])
	log := c.Nodes[0].Path("log")
	must(t, os.WriteFile(log, []byte("line 0\n"), 0o644))
	printed := filepath.Join(c.Dir, "printed")
	out, err := os.Create(printed)
	must(t, err)
	defer out.Close()
	tail := exec.Command("tail", "-n", "+1", "-s", "0.1", "-f", filepath.Join(dir, "log"))
	tail.Stdout = out
	must(t, tail.Start())
	defer func() {
		_ = tail.Process.Kill()
		_ = tail.Wait()
	}()
	want := "line 0\n"
	for i := 1; i <= size(30, 300); i++ {
		line := fmt.Sprintf("line %d %s\n", i, strings.Repeat("x", i*i%5000))
		want += line
		must(t, appendTo(c.Nodes[i%3].Path("log"), line))
		if i%5 == 0 {
			c.Await(60*time.Second, "tail prints what was appended", func() (bool, string) {
				got, err := os.ReadFile(printed)
				return err == nil && string(got) == want, fmt.Sprintf("%d bytes of %d, %v", len(got), len(want), err)
			})
		}
	}
}

func appendTo(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	if _, err := f.WriteString(text); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// talk is a program that answers lines, and stays.
type talk struct {
	t   *testing.T
	cmd *exec.Cmd
	in  *os.File
	out *bufio.Scanner
}

// converse starts a program. Its errors are answers too.
func converse(t *testing.T, name string, args ...string) *talk {
	t.Helper()
	in, ours, err := os.Pipe()
	must(t, err)
	out, theirs, err := os.Pipe()
	must(t, err)
	cmd := exec.Command(name, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, theirs, theirs
	must(t, cmd.Start())
	in.Close()
	theirs.Close()
	s := &talk{t: t, cmd: cmd, in: ours, out: bufio.NewScanner(out)}
	t.Cleanup(func() {
		s.close()
		out.Close()
	})
	return s
}

// close ends the program, if that was not done.
func (s *talk) close() {
	if s.in.Close() == nil {
		_ = s.cmd.Wait()
	}
}

// say sends a line, and gives the next line of the answer.
func (s *talk) say(line string) string {
	s.t.Helper()
	if _, err := fmt.Fprintln(s.in, line); err != nil {
		s.t.Fatal(err)
	}
	return s.next(line)
}

func (s *talk) next(after string) string {
	s.t.Helper()
	if !s.out.Scan() {
		s.t.Fatalf("%s ended after %q: %v", s.cmd.Args[0], after, s.out.Err())
	}
	return s.out.Text()
}

// sqlShell is a connection of sqlite that stays open.
type sqlShell struct{ *talk }

// connect opens a database, with arguments of sqlite3 before its name.
func connect(t *testing.T, args ...string) sqlShell {
	t.Helper()
	s := sqlShell{converse(t, "sqlite3", args...)}
	s.ask(".timeout 60000")
	return s
}

// ask gives what a statement prints, its errors too, in one line.
func (s sqlShell) ask(sql string) string {
	s.t.Helper()
	var lines []string
	for line := s.say(sql + "\n.print end-of-answer"); line != "end-of-answer"; line = s.next(sql) {
		lines = append(lines, line)
	}
	return strings.Join(lines, " ")
}

func (s sqlShell) want(sql, answer string) {
	s.t.Helper()
	if got := s.ask(sql); got != answer {
		s.t.Fatalf("%s: %q, want %q", sql, got, answer)
	}
}

// A connection of sqlite sees what a program of another node commits, and one state in each transaction.
func TestReaderFollows(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3})
	dir := followMount(t, c, c.Nodes[1])
	for _, mode := range []string{"memory", "delete"} {
		name := mode + ".db"
		insert := func(i int) {
			t.Helper()
			run(t, "sqlite3", "-bail", c.Nodes[0].Path(name), fmt.Sprintf(
				"pragma journal_mode=%s; insert into t values(%d, randomblob(%d));", mode, i, 100+i*3000))
		}
		run(t, "sqlite3", c.Nodes[0].Path(name), "create table t(n int, b blob)")
		reader := connect(t, "-readonly", filepath.Join(dir, name))
		reader.want("select count(*) from t;", "0")
		for i := 1; i <= size(20, 200); i += 2 {
			insert(i)
			reader.want("pragma integrity_check; select count(*), max(n) from t;", fmt.Sprintf("ok %d|%d", i, i))
			reader.ask("begin; select count(*) from t;")
			insert(i + 1)
			reader.want("select count(*) from t;", fmt.Sprint(i))
			reader.want("commit; select count(*) from t;", fmt.Sprint(i+1))
		}
	}
}

// What a user may get wrong is refused with what to do. Programs run on such a mount.
func TestFollowForUsers(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 1})
	dir := filepath.Join(c.Dir, "follow")
	must(t, os.MkdirAll(dir, 0o755))
	if _, stderr, err := c.Nodes[0].CLI("mount", "-d", dir, "-o", "follow,rw"); err == nil ||
		!strings.Contains(stderr, "leave out rw") {
		t.Errorf("follow,rw: %v, %s", err, stderr)
	}
	dir = followMount(t, c, c.Nodes[0])
	run(t, "cp", "/bin/true", c.Nodes[0].Path("true"))
	run(t, filepath.Join(dir, "true"))
	if err := os.WriteFile(filepath.Join(dir, "f"), nil, 0o644); err == nil {
		t.Error("a mount that follows takes a file")
	}
}
