package fs

import (
	"log/slog"
	"os"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// A device has the number that another one had before. Who cuts off a mount that is gone does not cut off another one.
func TestAbortOfAMountThatIsGoneSparesTheNext(t *testing.T) {
	mount := func() *linuxKernel {
		o := Options{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)}
		k, err := mountLinux(o, attrOnly{fuse.NewDefaultRawFileSystem()})
		if err != nil {
			t.Fatal(err)
		}
		kernel := k.(*linuxKernel)
		go kernel.Serve()
		t.Cleanup(func() {
			_ = unix.Unmount(kernel.dir, unix.MNT_DETACH)
			<-kernel.done
			if err := kernel.Close(); err != nil {
				t.Error(err)
			}
		})
		return kernel
	}
	gone := mount()
	if err := unix.Unmount(gone.dir, 0); err != nil {
		t.Fatal(err)
	}
	for range 50 { // another process may mount too
		next := mount()
		if next.minor == gone.minor {
			if err := gone.Abort(); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(next.dir); err != nil {
				t.Errorf("the next mount: %v", err)
			}
			if err := next.Abort(); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(next.dir); err == nil {
				t.Error("a mount that was cut off answers")
			}
			return
		}
	}
	t.Fatalf("no mount has the device %s again", gone.minor)
}

// attrOnly is a file system with nothing but a root directory.
type attrOnly struct{ fuse.RawFileSystem }

func (attrOnly) GetAttr(_ <-chan struct{}, _ *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	out.Mode = fuse.S_IFDIR | 0o755
	return fuse.OK
}
