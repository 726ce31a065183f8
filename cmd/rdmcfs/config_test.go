package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/exitcode"
)

// configFile is a configuration file with a text.
func configFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rdmcfs.toml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// A flag goes before a variable, a variable before the file, the file before the default; 'config check' says which.
func TestWhatSetsASetting(t *testing.T) {
	path := configFile(t, `# of the machine
data = "/srv/rdmcfs"
fabric = "tcp"
registered-memory = "64MiB"
http = "10.0.0.1:7480"
http-pprof = true
log-format = "json"
`)
	t.Setenv("RDMCFS_REGISTERED_MEMORY", "32MiB")
	t.Setenv("RDMCFS_HTTP_PPROF", "0")
	out := expect(t, exitcode.OK, "", "config", "check", "--json", "--config="+path, "--http=10.0.0.2:7480",
		"--registered-memory=16MiB")
	var list []setting
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatalf("%q: %v", out, err)
	}
	got := map[string]setting{}
	for _, s := range list {
		got[s.Name] = s
	}
	for _, want := range []setting{
		{"data", "/srv/rdmcfs", path}, {"fabric", "tcp", path}, {"log-format", "json", path},
		{"registered-memory", "16MiB", "--registered-memory"}, {"http", "10.0.0.2:7480", "--http"},
		{"http-pprof", "false", "RDMCFS_HTTP_PPROF"}, {"log-level", "info", "default"}, {"rdma-gid", "", "default"},
	} {
		if got[want.Name] != want {
			t.Errorf("got %+v, want %+v", got[want.Name], want)
		}
	}
	t.Setenv("RDMCFS_CONFIG", path)
	expect(t, exitcode.OK, "registered-memory  32MiB", "config", "check")
	expect(t, exitcode.NotRunning, "/srv/rdmcfs", "status") // each command goes by the data directory of the file
	expect(t, exitcode.NotRunning, "/srv/other", "status", "--data=/srv/other")
}

func TestBadConfigurationFile(t *testing.T) {
	for text, want := range map[string]string{
		`htpp = "10.0.0.1:7480"`:       `no setting is called "htpp": want data, log-level`,
		"[daemon]\nfabric = \"tcp\"":   `no setting is called "daemon"`,
		`config = "/etc/other"`:        `no setting is called "config"`,
		`json = true`:                  `no setting is called "json"`,
		"fabric = \"tcp\"\nhttp = 10.": "line 2",
		`fabric = ["tcp"]`:             "fabric: want text in quotes",
		`fabric = 1.5`:                 "fabric: want text in quotes",
		`fabric = "udp"`:               `--fabric must be one of "auto","verbs","tcp" but got "udp"`,
		`log-level = "loud"`:           "loud",
		`log-format = "xml"`:           "--log-format must be one of",
		`http-pprof = "perhaps"`:       "http-pprof",
		`http = "7480"`:                "want HOST:PORT",
		`registered-memory = "1MiB"`:   "at least 8.00 MiB",
		`http-pprof = true`:            "give --http too",
		"fabric = \"\x1b[2Jtcp\"":      "rdmcfs.toml",
	} {
		out := expect(t, exitcode.Usage, want, "config", "check", "--config="+configFile(t, text))
		if out != "" {
			t.Errorf("%s: printed %q", text, out)
		}
	}
	missing := filepath.Join(t.TempDir(), "none")
	expect(t, exitcode.Usage, "no such file", "status", "--config="+missing)
	expect(t, exitcode.Usage, "is a directory", "config", "check", "--config="+t.TempDir())
	for _, fine := range []string{"", "# nothing", "registered-memory = 0", `registered-memory = 1073741824`} {
		expect(t, exitcode.OK, "fabric", "config", "check", "--config="+configFile(t, fine))
	}
}

// A daemon that a command starts has the settings of the file, also where they are not flags of that command.
func TestDaemonOfAConfigurationFile(t *testing.T) {
	dir := dataDir(t)
	path := configFile(t, "http = \"127.0.0.1:7480\"\nlog-format = \"json\"\ndata = \""+dir+"\"\n")
	t.Chdir(filepath.Dir(path))
	expect(t, exitcode.OK, "", "init", "--no-start", "--listen", "127.0.0.1:7400", "--config=rdmcfs.toml")
	expect(t, exitcode.Usage, "that --fabric could", "init", "--no-start", "--listen", "127.0.0.1:7400", "--fabric=tcp",
		"--config=rdmcfs.toml", "--data="+dataDir(t))
	expect(t, exitcode.OK, "", "mount", "-d", "/mnt/x", "--config=rdmcfs.toml")
	expect(t, exitcode.OK, "", "stop", "--config=rdmcfs.toml")
	log, err := os.ReadFile(filepath.Join(dir, logFolder, logFile))
	if err != nil || !strings.Contains(string(log), `"addr":"127.0.0.1:7480"`) {
		t.Errorf("%s, %v", log, err)
	}
	second := dataDir(t)
	expect(t, exitcode.OK, "", "init", "--listen", "127.0.0.1:7401", "--config=rdmcfs.toml", "--data="+second)
	expect(t, exitcode.OK, "", "stop", "--data="+second)
	if log, err := os.ReadFile(filepath.Join(second, logFolder, logFile)); err != nil ||
		!strings.Contains(string(log), `"addr":"127.0.0.1:7480"`) {
		t.Errorf("of init: %s, %v", log, err)
	}
}
