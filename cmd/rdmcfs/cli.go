package main

import (
	"fmt"
	"path/filepath"
	"reflect"
	"runtime/debug"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/rdmcfs/rdmcfs/fs"
	"github.com/rdmcfs/rdmcfs/internal/exitcode"
	"github.com/rdmcfs/rdmcfs/internal/terminal"
)

const defaultData = "/var/lib/rdmcfs"

// version is set by the linker in releases.
var version = ""

// cli is the command line. Each command is a struct with a Run method; its flags are the fields.
type cli struct {
	Data string `help:"Data directory of the node, ${default} if not given; tells several nodes of one machine apart." default:"${data}" env:"RDMCFS_DATA" placeholder:"DIR"`

	Config string `help:"Configuration file, ${config} if not given and there is one." default:"${config}" env:"RDMCFS_CONFIG" placeholder:"FILE"`

	Init     initCmd     `cmd:"" help:"Make a cluster with this machine as its first node."`
	Join     joinCmd     `cmd:"" help:"Make this machine a node of a cluster."`
	Mount    mountCmd    `cmd:"" help:"Mount the cluster's files on a directory."`
	Umount   umountCmd   `cmd:"" help:"End a mount."`
	Status   statusCmd   `cmd:"" help:"Show nodes, who is behind and by what, and transfers."`
	Watch    watchCmd    `cmd:"" help:"Follow transfers as they run."`
	Where    whereCmd    `cmd:"" help:"Show which nodes hold a file."`
	Wait     waitCmd     `cmd:"" help:"Wait until nothing is owed to any node."`
	Versions versionsCmd `cmd:"" help:"List kept versions, removed files, and what was never published."`
	Restore  restoreCmd  `cmd:"" help:"Make a kept version current, bring a removed file back, or publish or drop what was never published."`
	Policy   policyCmd   `cmd:"" help:"Show or set where the files of a directory live."`
	Scrub    scrubCmd    `cmd:"" help:"Check what this node holds, and mend it from other nodes."`
	Fsck     fsckCmd     `cmd:"" help:"Compare names, contents and nodes; changes nothing."`
	Backup   backupCmd   `cmd:"" help:"Write all names, attributes and policies to one file."`
	Audit    auditCmd    `cmd:"" help:"List the commands that changed the cluster, and whose they were."`
	Token    tokenCmd    `cmd:"" help:"Make a token for one machine to join."`
	Drain    drainCmd    `cmd:"" help:"Have the others fetch what depends on a node, before it is evicted."`
	Upgrade  upgradeCmd  `cmd:"" help:"Show which versions the nodes run, and end an upgrade of all of them."`
	Evict    evictCmd    `cmd:"" help:"Remove a node for good."`
	Recover  recoverCmd  `cmd:"" help:"Go on after most voters were lost for good; shows what this node has."`
	Demo     demoCmd     `cmd:"" help:"Run a small cluster on this machine and copy a file in."`
	Doctor   doctorCmd   `cmd:"" help:"Check this machine: what works, what is off, and what that costs."`
	Bench    benchCmd    `cmd:"" help:"Measure the multicast."`
	Daemon   daemonCmd   `cmd:"" help:"Run the node in the foreground without a mount (systemd)."`
	Stop     stopCmd     `cmd:"" help:"Unmount and end the daemon."`
	Metrics  metricsCmd  `cmd:"" help:"Print the node's counters in Prometheus' text format."`
	Version  versionCmd  `cmd:"" help:"Print the version."`

	RestoreBackup restoreBackupCmd `cmd:"" help:"Bring names back from a backup into an empty directory."`

	Completion completionCmd `cmd:"" help:"Print the completion script for a shell."`
	Conf       configCmd     `cmd:"" name:"config" help:"Check the configuration file."`
	Man        manCmd        `cmd:"" help:"Print the man page."`
	Complete   completeCmd   `cmd:"" hidden:"" help:"What a completion script asks at each TAB."`

	settings *settings // what the configuration file says
}

// jsonFlag is embedded by every query.
type jsonFlag struct {
	JSON bool `name:"json" help:"Print JSON."`
}

type versionCmd struct{ jsonFlag }

func (c *versionCmd) Run(a *app) error {
	if c.JSON {
		return a.printJSON(map[string]string{"version": versionString()})
	}
	terminal.Println(a.out, "rdmcfs", versionString())
	return nil
}

// versionString is the release, or what the build knows of its commit.
func versionString() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	revision, modified := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = "+"
		}
	}
	if revision == "" {
		return info.Main.Version
	}
	return revision[:min(12, len(revision))] + modified
}

// wordAsItIs sets a text to a word of the command line. Kong's own way goes through JSON, which has no place for bytes
// that are not UTF-8: names of files may have such.
func wordAsItIs(ctx *kong.DecodeContext, target reflect.Value) error {
	word, err := ctx.Scan.PopValue("text")
	if err != nil {
		return err
	}
	text, ok := word.Value.(string)
	if !ok {
		return fmt.Errorf("want text, got %v", word.Value)
	}
	target.SetString(text)
	return nil
}

// helperWords turns the command line that mount(8) gives to /sbin/mount.fuse.rdmcfs into ours:
//
//	mount.fuse.rdmcfs SPEC DIR [-sfnv] [-N NS] [-t TYPE] [-o OPTIONS]
//
// SPEC is the data directory, or any word without a slash for the default one. It is also what mount shows as the
// source, so that mount -a finds what is mounted already. mount(8) leaves out words that are its defaults.
func helperWords(name string, args []string) ([]string, error) {
	if !strings.HasPrefix(name, "mount.") {
		return args, nil
	}
	var places []string
	words := []string{"mount", "--background", "--option=" + mountDefaults}
	for i := 0; i < len(args); i++ {
		switch arg := args[i]; {
		case (arg == "-o" || arg == "-N" || arg == "-t") && i+1 < len(args):
			if i++; arg == "-o" {
				words = append(words, "--option="+args[i])
			}
		case arg == "-f": // fake: everything except the mount
			words = append(words, "--dry-run")
		case strings.HasPrefix(arg, "-"):
		default:
			places = append(places, arg)
		}
	}
	if len(places) != 2 {
		return nil, fmt.Errorf("%s: want a data directory and a mount point, got %q", name, places)
	}
	words = append(words, "--source="+places[0])
	if strings.Contains(places[0], "/") {
		words = append(words, "--data="+places[0])
	}
	return append(words, "--", places[1]), nil
}

// mountDefaults are words that mount(8) does not hand over.
const mountDefaults = "rw,suid,dev,exec,async,atime,diratime,symfollow"

// mountWords are the -o options of a mount.
type mountWords struct {
	flags   []string // of mount(2), in their order
	change  fs.Flags // what they do together
	remount bool
	options map[string]string // of rdmcfs
}

// mountOptions reads the -o options of a mount. Words for mount(8) and fstab itself are dropped.
func mountOptions(lists []string) (mountWords, error) {
	w := mountWords{options: map[string]string{}}
	for _, list := range lists {
		for word := range strings.SplitSeq(list, ",") {
			word = strings.TrimSpace(word)
			key, value, _ := strings.Cut(word, "=")
			before, twice := w.options[key]
			switch {
			case key == "" || ignoredOption(key):
			case word == "remount":
				w.remount = true
			case w.change.Add(word):
				w.flags = append(w.flags, word)
			case twice && before != value:
				return w, withCode(exitcode.Usage, "mount option %q is given twice", key)
			default:
				w.options[key] = value
			}
			if word == "follow" { // rw before it is a default of mount(8)
				w.change.Add("ro")
				w.flags = append(w.flags, "ro")
			}
		}
	}
	return w, nil
}

// ignoredOption reports whether a mount option is not meant for us: it belongs to fstab, it names what holds anyway, or
// mount(8) found it in /proc/self/mountinfo and hands it over for a remount.
func ignoredOption(key string) bool {
	switch key {
	case "defaults", "auto", "noauto", "user", "nouser", "users", "owner", "group", "_netdev", "nofail", "silent", "loud",
		"allow_other", "default_permissions", "user_id", "group_id", "max_read", "rootmode":
		return true
	}
	return strings.HasPrefix(key, "x-") || strings.HasPrefix(key, "X-") || strings.HasPrefix(key, "comment")
}

// absDir is a directory as it must be given to the daemon, which has another working directory.
func absDir(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("%s: %w", dir, err)
	}
	return abs, nil
}

// sinceText is how long ago a time was, for people.
func sinceText(t, now time.Time) string {
	d := now.Sub(t)
	switch {
	case d < 2*time.Second:
		return "now"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds ago", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm ago", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh ago", int(d.Hours()))
	}
	return fmt.Sprintf("%dd ago", int(d.Hours()/24))
}

// countText is a count with its noun.
func countText(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}
