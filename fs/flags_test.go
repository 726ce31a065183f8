package fs

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestFlags(t *testing.T) {
	for words, want := range map[string]uintptr{
		"":                                unix.MS_NOSUID | unix.MS_NODEV,
		"suid,dev":                        0,
		"suid,dev,rw,nosuid":              unix.MS_NOSUID,
		"ro,rw":                           unix.MS_NOSUID | unix.MS_NODEV,
		"suid,dev,rw,ro,sync,exec,noexec": unix.MS_RDONLY | unix.MS_SYNCHRONOUS | unix.MS_NOEXEC,
		"suid,dev,noatime,relatime":       unix.MS_RELATIME,
		"suid,dev,strictatime,noatime":    unix.MS_NOATIME,
		"suid,dev,noatime,atime":          0,
		"suid,dev,nodiratime,dirsync":     unix.MS_NODIRATIME | unix.MS_DIRSYNC,
		"suid,dev,nosymfollow,norelatime": unix.MS_NOSYMFOLLOW,
	} {
		var f Flags
		for word := range strings.SplitSeq(words, ",") {
			if known := f.Add(word); known != (word != "") {
				t.Errorf("%q is known: %v", word, known)
			}
		}
		if got := f.on(defaultFlags); got != want {
			t.Errorf("%q: %#x, want %#x", words, got, want)
		}
	}
}

func TestParseMountOptions(t *testing.T) {
	for line, want := range map[string]string{
		"71 29 0:51 / /mnt/a ro,nosuid,noatime shared:1 - fuse.rdmcfs rdmcfs rw,sync": "ro,nosuid,noatime,sync",
		"71 29 0:51 / /mnt/a rw,noexec - fuse.rdmcfs rdmcfs rw":                       "rw,noexec",
		"71 29 0:51 / /mnt/a ro - fuse.rdmcfs rdmcfs ro,user_id=0":                    "ro",
	} {
		if m, ok := parseMount(line); !ok || m.options != want {
			t.Errorf("%s: %q", line, m.options)
		}
	}
}
