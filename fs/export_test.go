package fs

import (
	"testing"
	"time"
)

// AwaitReleases makes opens wait for a RELEASE that is on its way as long as a late machine takes to handle it. It is
// to be called before mounts.
func AwaitReleases(t *testing.T) {
	usual := releaseLag
	releaseLag = time.Minute
	t.Cleanup(func() { releaseLag = usual })
}
