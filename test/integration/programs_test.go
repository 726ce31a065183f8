package integration

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rdmcfs/rdmcfs/test/integration/cluster"
)

// Everyday programs work on the mount, and the others see what they made.
func TestGitOnTheMount(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3})
	source := filepath.Join(c.Dir, "source")
	makeRepository(t, source)
	repo := c.Nodes[0].Path("repo")
	run(t, "git", "clone", "-q", "--no-hardlinks", source, repo)
	if err := os.WriteFile(filepath.Join(repo, "new"), []byte("a new file\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	git(t, repo, "add", "new")
	git(t, repo, "commit", "-qm", "a commit on the mount")
	c.AwaitAgreement(60 * time.Second)
	for _, n := range c.Nodes {
		git(t, n.Path("repo"), "fsck", "--full", "--strict")
		if out := git(t, n.Path("repo"), "status", "--porcelain"); out != "" {
			t.Errorf("%s: git status: %s", n.Name(), out)
		}
	}
}

func makeRepository(t *testing.T, dir string) {
	t.Helper()
	run(t, "git", "init", "-q", dir)
	for i := range size(100, 1000) {
		path := filepath.Join(dir, fmt.Sprintf("d%d", i%10), fmt.Sprintf("f%d", i))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		cluster.Random(t, path, int64(i*37), uint64(i))
	}
	git(t, dir, "add", ".")
	git(t, dir, "commit", "-qm", "first")
}

func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	args = append([]string{"-C", dir, "-c", "user.name=tester", "-c", "user.email=tester@example.org", "-c",
		"safe.directory=*"}, args...)
	return run(t, "git", args...)
}

func TestTarAndRsync(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3})
	src := filepath.Join(goroot(t), "src", size("encoding", "net"))
	archive := filepath.Join(c.Dir, "a.tar")
	run(t, "tar", "-C", filepath.Dir(src), "-cf", archive, filepath.Base(src))
	run(t, "tar", "-C", c.Nodes[1].Mount, "-xf", archive)
	c.AwaitAgreement(60 * time.Second)
	cluster.SameTrees(t, src, c.Nodes[2].Path(filepath.Base(src)))

	run(t, "rsync", "-a", src+"/", c.Nodes[2].Path("synced"))
	c.AwaitAgreement(60 * time.Second)
	cluster.SameTrees(t, src, c.Nodes[0].Path("synced"))
	out := run(t, "rsync", "-ai", "--stats", src+"/", c.Nodes[2].Path("synced"))
	if !strings.Contains(out, "Number of regular files transferred: 0") {
		t.Errorf("the second rsync moved files:\n%s", out)
	}
}

func TestGoBuildOnTheMount(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3})
	dir := c.Nodes[0].Path("module")
	for name, text := range map[string]string{
		"go.mod": "module example.org/hello\n\ngo 1.26\n",
		"main.go": "package main\n\nimport (\n\t\"fmt\"\n\n\t\"example.org/hello/word\"\n)\n\nfunc main() { " +
			"fmt.Print(word.Of()) }\n",
		"word/w.go": "package word\n\nfunc Of() string { return \"hello\" }\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	runIn(t, dir, "go", "build", "-o", "hello", ".")
	c.AwaitAgreement(60 * time.Second)
	for _, n := range c.Nodes {
		if out := run(t, n.Path("module", "hello")); out != "hello" {
			t.Errorf("%s: the program printed %q", n.Name(), out)
		}
	}
}

// An editor saves by writing a new file and renaming it over the old one.
func TestEditorsSaveByRename(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3})
	for i := range 50 {
		text := fmt.Sprintf("revision %d\n", i)
		tmp := c.Nodes[0].Path(".doc.swp")
		f, err := os.Create(tmp)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(f, text)
		if err := f.Sync(); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(tmp, c.Nodes[0].Path("doc")); err != nil {
			t.Fatal(err)
		}
		for _, n := range c.Nodes { // a rename is seen elsewhere a moment later; what was closed before it comes whole
			c.Await(60*time.Second, n.Name()+" shows the save", func() (bool, string) {
				got, err := os.ReadFile(n.Path("doc"))
				return err == nil && string(got) == text, fmt.Sprintf("%q, %v, want %q", got, err, text)
			})
		}
	}
}

// Two processes on one node share a database that is held open.
func TestSqliteByTwoProcesses(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3})
	db := c.Nodes[0].Path("data.db")
	run(t, "sqlite3", db, "create table t(who int, n int)")
	holder, err := os.Open(db)
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close()
	each := size(50, 2000)
	var wg sync.WaitGroup
	for who := range 2 {
		wg.Go(func() {
			var script strings.Builder
			script.WriteString(".timeout 60000\n")
			for n := range each {
				fmt.Fprintf(&script, "insert into t values(%d,%d);\n", who, n)
			}
			cmd := exec.Command("sqlite3", "-bail", db)
			cmd.Stdin = strings.NewReader(script.String())
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("sqlite process %d: %v\n%s", who, err, out)
			}
		})
	}
	wg.Wait()
	for _, n := range c.Nodes {
		out := run(t, "sqlite3", "-readonly", n.Path("data.db"), "pragma integrity_check; select count(*) from t;")
		if want := fmt.Sprintf("ok\n%d\n", 2*each); out != want {
			t.Errorf("%s: %q, want %q", n.Name(), out, want)
		}
	}
}

func TestShellsAppending(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3})
	log := c.Nodes[0].Path("log")
	lines := size(100, 500)
	var wg sync.WaitGroup
	for who := range 4 {
		wg.Go(func() {
			script := fmt.Sprintf("i=0; while [ $i -lt %d ]; do echo %d $i >> %q || exit 1; i=$((i+1)); done", lines, who, log)
			if out, err := exec.Command("sh", "-c", script).CombinedOutput(); err != nil {
				t.Errorf("shell %d: %v\n%s", who, err, out)
			}
		})
	}
	wg.Wait()
	for _, n := range c.Nodes {
		next := [4]int{}
		f, err := os.Open(n.Path("log"))
		if err != nil {
			t.Fatal(err)
		}
		for sc := bufio.NewScanner(f); sc.Scan(); {
			who, i, ok := strings.Cut(sc.Text(), " ")
			w, err := strconv.Atoi(who)
			if got, err2 := strconv.Atoi(i); !ok || err != nil || err2 != nil || got != next[w] {
				t.Fatalf("%s: line %q, want number %d of its shell", n.Name(), sc.Text(), next[w])
			}
			next[w]++
		}
		f.Close()
		for who, got := range next {
			if got != lines {
				t.Errorf("%s: shell %d has %d lines, want %d", n.Name(), who, got, lines)
			}
		}
	}
}

// 500 children of one script write to its log: at most one version per FLUSH that found changes.
func TestScriptWithManyChildren(t *testing.T) {
	t.Parallel()
	c := start(t, cluster.Options{Nodes: 3})
	log := c.Nodes[0].Path("log")
	before := c.Nodes[0].Status().AppliedIndex
	run(t, "sh", "-c", fmt.Sprintf("i=0; (while [ $i -lt 500 ]; do /bin/echo line $i; i=$((i+1)); done) > %q", log))
	got, err := os.ReadFile(c.Nodes[2].Path("log"))
	if err != nil || strings.Count(string(got), "\n") != 500 {
		t.Errorf("the log has %d lines (%v), want 500", strings.Count(string(got), "\n"), err)
	}
	entries := c.Nodes[0].Status().AppliedIndex - before
	t.Logf("%d log entries for 500 children", entries)
	if entries > 520 {
		t.Errorf("%d log entries: more than one version per FLUSH", entries)
	}
}

// The cost of fsync after a small change in a large file is printed.
func TestFsyncOfASmallChange(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 3})
	path := c.Nodes[0].Path("big")
	bytes := size[int64](128<<20, 1<<30)
	src := filepath.Join(c.Dir, "big")
	cluster.Random(t, src, bytes, 9)
	run(t, "cp", src, path)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	g, err := os.OpenFile(src, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	var worst time.Duration
	for i := range int64(20) {
		block := []byte(strings.Repeat(fmt.Sprintf("%8d", i), 512))
		off := (i * 7919 * 4096) % bytes
		if _, err := f.WriteAt(block, off); err != nil {
			t.Fatal(err)
		}
		if _, err := g.WriteAt(block, off); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		if err := f.Sync(); err != nil {
			t.Fatal(err)
		}
		worst = max(worst, time.Since(begin))
	}
	t.Logf("fsync after a 4 KiB change in %d MiB: worst of 20 %v", bytes>>20, worst)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	sameEverywhere(t, c, src, "big")
}
