package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/exitcode"
)

func TestUsersStory(t *testing.T) {
	a, b := dataDir(t), dataDir(t)
	out := expect(t, exitcode.OK, "rdmcfs join 10.0.0.1:7400 --token rdmcfs1_secret --listen", "init", "--listen",
		"10.0.0.1:7400", "--data", a)
	if strings.Count(out, "\n") != 2 {
		t.Errorf("init printed %q", out)
	}
	expect(t, exitcode.OK, "n1", "status", "--data", a) // the daemon runs already
	expect(t, exitcode.OK, "rdmcfs mount DIR", "join", "10.0.0.1:7400", "--token", "rdmcfs1_secret", "--listen",
		"10.0.0.2:7400", "--name", "n2", "--data", b)
	expect(t, exitcode.OK, "", "mount", "-d", "/mnt/x", "--data", b)
	expect(t, exitcode.OK, "mount /mnt/x: mounted", "status", "--data", b)
	expect(t, exitcode.Exists, "mounted already", "mount", "-d", "/mnt/x", "--data", b)
	expect(t, exitcode.OK, "2 copies", "where", "/mnt/x/a/b", "--data", b)
	expect(t, exitcode.NotFound, "/mnt/x/c: no such file", "where", "/mnt/x/c", "--data", b)
	expect(t, exitcode.NotFound, "below no mount", "where", "/etc/passwd", "--data", b)
	expect(t, exitcode.NotFound, `/etc/caf\xe9 lies below no mount`, "where", "/etc/caf\xe9", "--data", b) // not UTF-8
	expect(t, exitcode.Timeout, "n2 is owed 3 contents", "wait", "--timeout", "1s", "--data", b)
	expect(t, exitcode.NotFound, "no node", "evict", "n9", "--data", b)
	expect(t, exitcode.OK, "", "umount", "/mnt/x", "--data", b)
	expect(t, exitcode.NotFound, "no mount", "umount", "/mnt/x", "--data", b)
	expect(t, exitcode.OK, "", "stop", "--data", b)
	expect(t, exitcode.NotRunning, "no daemon answers", "status", "--data", b)
	expect(t, exitcode.NotRunning, "", "stop", "--data", b)
}

func TestInitRefusesAndReports(t *testing.T) {
	d := dataDir(t)
	out := expect(t, exitcode.OK, "", "init", "--no-start", "--json", "--listen", "10.0.0.1:7400", "--data", d)
	var token admin.Token
	if err := json.Unmarshal([]byte(out), &token); err != nil || token.Token != "rdmcfs1_secret" ||
		token.Listen != "10.0.0.1:7400" {
		t.Errorf("%q: %v", out, err)
	}
	expect(t, exitcode.NotRunning, "", "status", "--data", d)
	expect(t, exitcode.Exists, "already", "init", "--listen", "10.0.0.1:7400", "--data", d)
	expect(t, exitcode.Usage, "--listen", "init", "--data", d)
	for _, ttl := range []string{"0", "-1s"} {
		expect(t, exitcode.Usage, "more than 0", "init", "--no-start", "--ttl="+ttl, "--listen", "10.0.0.1:7400", "--data",
			dataDir(t))
		expect(t, exitcode.Usage, "more than 0", "token", "--ttl="+ttl, "--data", d)
	}
	expect(t, exitcode.Usage, "check the name", "join", "10.0.0.1:7400", "--token", "x", "--listen", "10.0.0.2:7400",
		"--advertise", "none.invalid:7400", "--data", dataDir(t))
	expect(t, exitcode.Denied, "rdmcfs token", "join", "10.0.0.1:7400", "--token", "x", "--listen", "10.0.0.2:7400",
		"--data", dataDir(t))
}

func TestDaemonThatFailsToStartSaysWhy(t *testing.T) {
	d := dataDir(t)
	expect(t, exitcode.Failure, "no node lives here", "mount", "-d", "/mnt/x", "--data", d)
	expect(t, exitcode.Failure, "no node lives here", "mount", "/mnt/x", "--data", d)
	expect(t, exitcode.Failure, "no node lives here", "daemon", "--data", d)
	expect(t, exitcode.NotFound, "data directory", "mount", "-d", "/mnt/x", "--data", filepath.Join(d, "nothing"))
}

func TestForegroundMountIsTheDaemon(t *testing.T) {
	d := dataDir(t)
	expect(t, exitcode.OK, "", "init", "--no-start", "--listen", "10.0.0.1:7400", "--data", d)
	cmd := foreground(t, "Ctrl-C unmounts", "mount", "/mnt/x", "--data", d)
	expect(t, exitcode.OK, "mount /mnt/x", "status", "--data", d)
	expect(t, exitcode.Exists, "runs on", "daemon", "--data", d)
	cmd.Process.Signal(syscall.SIGINT)
	ends(t, cmd)
	expect(t, exitcode.NotRunning, "", "status", "--data", d)

	cmd = foreground(t, "Ctrl-C unmounts", "mount", "/mnt/x", "--data", d)
	expect(t, exitcode.OK, "", "umount", "/mnt/x", "--data", d)
	ends(t, cmd)
	expect(t, exitcode.NotRunning, "", "status", "--data", d)
}

func TestForegroundMountOfARunningDaemon(t *testing.T) {
	d := dataDir(t)
	expect(t, exitcode.OK, "", "init", "--listen", "10.0.0.1:7400", "--data", d)
	cmd := foreground(t, "Ctrl-C unmounts", "mount", "/mnt/x", "--data", d)
	cmd.Process.Signal(syscall.SIGTERM)
	ends(t, cmd)
	if out := expect(t, exitcode.OK, "n1", "status", "--data", d); strings.Contains(out, "/mnt/x") {
		t.Errorf("still mounted:\n%s", out)
	}
	cmd = foreground(t, "Ctrl-C unmounts", "mount", "/mnt/x", "--data", d)
	expect(t, exitcode.OK, "", "umount", "/mnt/x", "--data", d)
	ends(t, cmd)
}

// A node that rebuilds its state at the start answers before it makes its mount. The foreground waits for that, and
// says meanwhile what is going on: it does not take the mount for one that has ended.
func TestForegroundMountOfANodeThatRebuilds(t *testing.T) {
	d := dataDir(t)
	expect(t, exitcode.OK, "", "init", "--no-start", "--listen", "10.0.0.1:7400", "--data", d)
	cmd := foreground(t, "! the state is rebuilt\nMounted on "+madeLater, "mount", madeLater, "--data", d)
	expect(t, exitcode.OK, "mount "+madeLater, "status", "--data", d)
	expect(t, exitcode.OK, "", "umount", madeLater, "--data", d)
	ends(t, cmd)
}

// A node that rebuilds its state makes no mount before it has done so: a request for one waits.
func TestMountAwaitsTheRebuiltState(t *testing.T) {
	d := dataDir(t)
	expect(t, exitcode.OK, "", "init", "--no-start", "--listen", "10.0.0.1:7400", "--data", d)
	if err := os.WriteFile(filepath.Join(d, rottenState), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	expect(t, exitcode.OK, "! the state is rebuilt", "mount", "-d", "/mnt/x", "--data", d)
	expect(t, exitcode.OK, "mount /mnt/x", "status", "--data", d)
}

// G10: a mount that has ended before its end could be waited for keeps no process in the foreground, neither the daemon
// nor the command that asked for it.
func TestMountThatEndsAtOnce(t *testing.T) {
	d := dataDir(t)
	expect(t, exitcode.OK, "", "init", "--no-start", "--listen", "10.0.0.1:7400", "--data", d)
	ends(t, foreground(t, "Ctrl-C unmounts", "mount", goneAtOnce, "--data", d))
	expect(t, exitcode.NotRunning, "", "status", "--data", d)
	expect(t, exitcode.OK, "", "mount", "-d", "/mnt/x", "--data", d)
	ends(t, foreground(t, "Ctrl-C unmounts", "mount", goneAtOnce, "--data", d))
	expect(t, exitcode.OK, "mount /mnt/x", "status", "--data", d)
}

func TestMountHelper(t *testing.T) {
	d := dataDir(t)
	expect(t, exitcode.OK, "", "init", "--no-start", "--listen", "10.0.0.1:7400", "--data", d)
	cmd := program(d, "/mnt/x", "-o", "rw,nosuid,x-systemd.automount")
	cmd.Env = append(cmd.Env, beProgramEnv+"=/sbin/mount.fuse.rdmcfs")
	cmd.Env = append(cmd.Env, "RDMCFS_DATA=/nonexistent")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	expect(t, exitcode.OK, "mount /mnt/x", "status", "--data", d)
}

func TestHelperWords(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		want []string
	}{
		{"rdmcfs", []string{"status"}, []string{"status"}},
		{"mount.fuse.rdmcfs", []string{"rdmcfs", "/m", "-o", "rw,ro"},
			[]string{"mount", "--background", "--option=" + mountDefaults, "--option=rw,ro", "--source=rdmcfs", "--", "/m"}},
		{"mount.rdmcfs", []string{"/data", "/m", "-sfnv", "-t", "fuse.rdmcfs"},
			[]string{"mount", "--background", "--option=" + mountDefaults, "--source=/data", "--data=/data", "--", "/m"}},
		{"mount.rdmcfs", []string{"-f", "x", "-odd"}, nil},
	} {
		got, err := helperWords(c.name, c.args)
		if diff := cmp.Diff(c.want, got); diff != "" || (err == nil) != (c.want != nil) {
			t.Errorf("%s %v: %v %s", c.name, c.args, err, diff)
		}
	}
}

func TestMountOptions(t *testing.T) {
	got, err := mountOptions([]string{"rw,ro,stage=memory", "defaults,,_netdev,x-a=b,comment=c,noatime,suid"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"rw", "ro", "noatime", "suid"}, got.flags); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]string{"stage": "memory"}, got.options); diff != "" || got.remount {
		t.Error(diff, got.remount)
	}
	for words, writable := range map[string]bool{"rw,follow": false, "follow": false, "follow,rw": true} {
		if got, err := mountOptions([]string{words}); err != nil || got.change.Writable() != writable {
			t.Errorf("%s: %+v %v", words, got, err)
		}
	}
	if got, err := mountOptions([]string{"rw,remount"}); err != nil || !got.remount {
		t.Errorf("%+v %v", got, err)
	}
	if _, err := mountOptions([]string{"stage=a,stage=b"}); codeOf(err) != exitcode.Usage {
		t.Errorf("twice: %v", err)
	}
}

func TestRemountRefusals(t *testing.T) {
	d := dataDir(t)
	expect(t, exitcode.NotFound, "no mount of rdmcfs", "mount", "-o", "remount,ro", t.TempDir(), "--data", d)
	expect(t, exitcode.Usage, "remount can't change acl", "mount", "-o", "remount,acl", "/mnt/x", "--data", d)
}

func TestPathsBelowMounts(t *testing.T) {
	mounts := []admin.Mount{{Dir: "/mnt/s"}, {Dir: "/mnt/s/in"}, {Dir: "/m p"}}
	for path, want := range map[string]string{"/mnt/s": "", "/mnt/s/a/../b": "b", "/mnt/s/in/x": "x", "/m p/ü/y": "ü/y",
		"/mnt/s/": ""} {
		if got, err := insidePath(mounts, path); err != nil || got != want {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
	for _, path := range []string{"/mnt/sx", "/mnt", "/mnt/s/../t"} {
		if got, err := insidePath(mounts, path); codeOf(err) != exitcode.NotFound {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	real, err := filepath.EvalSymlinks(link)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(real, "dir"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"", "dir", "gone", "dir/gone", "gone/too"} { // what is gone can be restored
		if got, err := insidePath([]admin.Mount{{Dir: real}}, filepath.Join(link, want)); err != nil || got != want {
			t.Errorf("through a link: %q, %v, want %q", got, err, want)
		}
	}
}

func TestUmountWithoutADaemon(t *testing.T) {
	expect(t, exitcode.NotFound, "no mount of rdmcfs", "umount", "/tmp", "--data", dataDir(t))
	expect(t, exitcode.NotRunning, "no daemon", "umount", "--data", dataDir(t))
}

func TestUsageErrorsDoNothing(t *testing.T) {
	for _, args := range [][]string{{}, {"bogus"}, {"status", "--bogus"}, {"mount"}, {"restore", "x"},
		{"restore", "--drop", "--version", "3", "x"}, {"restore", "--removed"}, {"restore", "--removed", "--drop"},
		{"policy", "x", "--keep-removed", "soon"},
		{"policy", "x", "--ack", "sometimes"}, {"policy", "x", "--all", "--copies", "2"}, {"policy", "x", "-r"},
		{"wait", "--timeout", "soon"}, {"demo", "--nodes", "1000"}, {"demo", "--size", "-1"}} {
		args := append(args, "--data", dataDir(t))
		if _, errs, code := rdmcfs(t, args...); code != exitcode.Usage || errs == "" {
			t.Errorf("%v: exit %d, %s", args, code, errs)
		}
	}
	expect(t, exitcode.OK, "Usage:", "--help")
	expect(t, exitcode.OK, "--token", "join", "--help")
	expect(t, exitcode.OK, "rdmcfs "+versionString(), "version")
	expect(t, exitcode.OK, "rdmcfs "+versionString(), "--version")
}

// A script must not take a part of the output for the whole.
func TestOutputThatCannotBeWritten(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	var errs strings.Builder
	if code := run([]string{"rdmcfs", "version"}, full, &errs); code != exitcode.Full ||
		!strings.Contains(errs.String(), "no space") {
		t.Errorf("exit %d, %s", code, errs.String())
	}
}

func TestPolicyChangesOnlyWhatIsSaid(t *testing.T) {
	one, none, local, yes, week := uint32(1), uint32(0), "local", true, 7*24*time.Hour
	rate, bytes, low := "50MiB", uint64(50<<20), "low"
	for name, x := range map[string]struct {
		cmd  policyCmd
		want *admin.PolicyChange
	}{
		"a question":   {},
		"two settings": {policyCmd{MinCopies: &one, Ack: &local}, &admin.PolicyChange{MinCopies: &one, AckLocal: &yes}},
		"all":          {policyCmd{All: true}, &admin.PolicyChange{Placement: "all"}},
		"labels": {policyCmd{Label: map[string]string{"rack": "a"}},
			&admin.PolicyChange{Placement: "labels", Labels: map[string]string{"rack": "a"}}},
		"a cap and a class": {policyCmd{SendRate: &rate, Priority: &low},
			&admin.PolicyChange{SendRate: &bytes, Priority: &low}},
		"a time":    {policyCmd{KeepRemoved: &week}, &admin.PolicyChange{KeepRemoved: &week}},
		"nothing":   {policyCmd{Retain: &none}, &admin.PolicyChange{Retain: &none}},
		"no copies": {policyCmd{Copies: &none}, &admin.PolicyChange{Placement: "copies"}},
	} {
		req, changes, err := x.cmd.request()
		diff := cmp.Diff(admin.PolicyRequest{Change: x.want}, req)
		if diff != "" || changes != (x.want != nil) || err != nil {
			t.Errorf("%s: %v, %v %s", name, changes, err, diff)
		}
	}
	for _, c := range []policyCmd{{MinCopies: &one}, {Ack: &local}, {Retain: &one}, {KeepRemoved: new(time.Duration)},
		{SendRate: &rate}, {Priority: &low}} {
		c.Inherit = true
		if err := c.Run(nil); codeOf(err) != exitcode.Usage {
			t.Errorf("a policy that is dropped is changed: %v", err)
		}
	}
	much := "much"
	if err := (&policyCmd{SendRate: &much}).Run(nil); codeOf(err) != exitcode.Usage {
		t.Errorf("a rate of %q: %v", much, err)
	}
	if text := policyText(admin.Policy{SendRate: bytes, Priority: low}); text !=
		"all nodes, each node sends at most 50MiB/s, low priority" {
		t.Errorf("%q", text)
	}
	if text := policyText(admin.Policy{KeepRemoved: week}); !strings.HasSuffix(text, ", removed files kept for 168h") {
		t.Errorf("%q", text)
	}
}

// exitCodes lists each code with its name in docs/CLI.md, in order.
var exitCodes = []struct {
	code int
	name string
}{
	{exitcode.OK, "ok"}, {exitcode.Failure, "failure"}, {exitcode.Usage, "usage"}, {exitcode.NotRunning, "not-running"},
	{exitcode.Timeout, "timeout"}, {exitcode.Unavailable, "unavailable"}, {exitcode.NotFound, "not-found"},
	{exitcode.Denied, "denied"},
	{exitcode.Exists, "exists"}, {exitcode.Busy, "busy"}, {exitcode.Full, "full"}, {exitcode.Differs, "differs"},
	{exitcode.Problem, "problem"}, {exitcode.Needed, "needed"}, {exitcode.Damaged, "damaged"},
}

// docs/CLI.md is a promise: each command, and each exit code, is in it.
func TestDocumentationIsWhole(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("..", "..", "docs", "CLI.md"))
	if err != nil {
		t.Fatal(err)
	}
	doc := string(raw)
	for i, c := range exitCodes {
		if c.code != i {
			t.Errorf("code %d is at place %d", c.code, i)
		}
		if told := exitcode.Codes[i]; told.Name != c.name ||
			!strings.Contains(doc, "| "+itoa(c.code)+" | "+c.name+" | "+told.Meaning+" |") {
			t.Errorf("docs/CLI.md lacks exit code %d %s: %s", c.code, c.name, told.Meaning)
		}
	}
	help := expect(t, exitcode.OK, "Commands:", "--help")
	_, list, _ := strings.Cut(help, "Commands:\n")
	list, _, _ = strings.Cut(list, "\n\n")
	count := 0
	for line := range strings.SplitSeq(list, "\n") {
		if !strings.HasPrefix(line, "  ") || strings.HasPrefix(line, "    ") {
			continue
		}
		name := strings.Fields(line)[0]
		if count++; !strings.Contains(doc, "rdmcfs "+name) {
			t.Errorf("docs/CLI.md lacks the command %s", name)
		}
	}
	if count < 15 {
		t.Errorf("only %d commands found in the help", count)
	}
}
