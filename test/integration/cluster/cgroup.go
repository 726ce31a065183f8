package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// useCgroup makes the command start in a new memory cgroup. Both cgroup layouts are served.
func useCgroup(t testing.TB, cmd *exec.Cmd, name string, limit int64) {
	t.Helper()
	dir, file := cgroupDir(name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatalf("memory cgroup: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, file), fmt.Appendf(nil, "%d", limit), 0o644); err != nil {
		t.Fatalf("memory cgroup: %v", err)
	}
	// a shell moves itself in before it becomes the program: the same on both layouts
	script := `echo $$ > "$0"; exec "$@"`
	cmd.Args = append([]string{"sh", "-c", script, filepath.Join(dir, "cgroup.procs"), cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
	t.Cleanup(func() { os.Remove(dir) })
}

// CgroupKills counts the OOM kills in a node's cgroup.
func CgroupKills(t testing.TB, n *Node) string {
	t.Helper()
	dir, _ := cgroupDir(fmt.Sprintf("rdmcfs-%d-%d", os.Getpid(), n.Index))
	for _, name := range []string{"memory.events", "memory.oom_control"} {
		if raw, err := os.ReadFile(filepath.Join(dir, name)); err == nil {
			return string(raw)
		}
	}
	t.Fatal("no OOM counter in the cgroup")
	return ""
}

func cgroupDir(name string) (dir, file string) {
	if _, err := os.Stat("/sys/fs/cgroup/memory"); err == nil {
		return filepath.Join("/sys/fs/cgroup/memory", name), "memory.limit_in_bytes"
	}
	os.WriteFile("/sys/fs/cgroup/cgroup.subtree_control", []byte("+memory"), 0o644)
	return filepath.Join("/sys/fs/cgroup", name), "memory.max"
}
