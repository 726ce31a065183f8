package fs_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/rdmcfs/rdmcfs/fs"
	"github.com/rdmcfs/rdmcfs/fs/fstest"
	"github.com/rdmcfs/rdmcfs/internal/content"
)

// One program has a new file open by one mount of a node, and another one by another mount. The one that is killed
// gives nothing back: the other one's file keeps its name.
func TestNewFileThatAnotherMountHasOpenKeepsItsName(t *testing.T) {
	for name, change := range modes {
		for killed := range 2 {
			t.Run(fmt.Sprint(name, killed), func(t *testing.T) {
				testKilledBeside(t, change, killed)
			})
		}
	}
}

func testKilledBeside(t *testing.T, change func(*fs.Options), killed int) {
	n := fstest.New(t, 1).Node(1)
	mounts := [2]string{n.Mount(t, change), n.MountMore(t, change)}
	kill := func() {}
	begin := func(i int) *os.File {
		path := filepath.Join(mounts[i], "f")
		if i != killed {
			f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
			must(t, err)
			return f
		}
		cmd := exec.Command("sh", "-c", "exec 3>>f; echo; read x")
		cmd.Dir = mounts[i]
		in, err := cmd.StdinPipe()
		must(t, err)
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		kill = func() {
			must(t, cmd.Process.Kill())
			_ = cmd.Wait()
			_ = in.Close()
		}
		_, err = out.Read(make([]byte, 1))
		must(t, err)
		return nil
	}
	files := [2]*os.File{begin(0), begin(1)}
	f := files[1-killed]
	before, err := f.Stat()
	must(t, err)
	kill()
	eventually(t, func() error {
		list, err := n.Store().Stagings()
		open := slices.DeleteFunc(list, func(u content.Unpublished) bool { return !u.Open })
		if err != nil || len(open) != 1 {
			return fmt.Errorf("the file of the program that was killed is still staged: %+v, %v", list, err)
		}
		return nil
	})
	_, err = f.WriteString("bytes")
	must(t, err)
	must(t, f.Close())
	for _, mnt := range mounts {
		wantBytes(t, filepath.Join(mnt, "f"), []byte("bytes"))
		after, err := os.Stat(filepath.Join(mnt, "f"))
		must(t, err)
		was, is := before.Sys().(*syscall.Stat_t).Ino, after.Sys().(*syscall.Stat_t).Ino
		if was != is {
			t.Errorf("inode %d became %d: the name was given back", was, is)
		}
	}
}
