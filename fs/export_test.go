package fs

import (
	"testing"
	"time"
)

// AwaitReleases has opens wait for a RELEASE that is on its way as long as a late machine takes to handle it; to be
// called before mounts.
func AwaitReleases(t *testing.T) {
	usual := releaseLag
	releaseLag = time.Minute
	t.Cleanup(func() { releaseLag = usual })
}
