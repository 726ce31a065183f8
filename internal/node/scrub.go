package node

import (
	"context"
	"errors"
	"time"
)

const (
	// scrubEvery is the pause between two looks at all stored bytes.
	scrubEvery = 24 * time.Hour
	// scrubBytesPerSec bounds what a scrub reads, so that it disturbs nobody.
	scrubBytesPerSec = 64 << 20
	// scrubFirst is when the first one begins after the start.
	scrubFirst = 10 * time.Minute
)

// scrub reads all stored bytes now and then and compares them with their checksums: nothing else checks the bytes that
// the kernel reads past the daemon. Damaged contents are reported to the log and mended from other holders.
func (n *node) scrub(ctx context.Context) {
	for wait := scrubFirst; pause(ctx, wait); wait = scrubEvery {
		report, err := n.store.Scrub(ctx, scrubBytesPerSec)
		if err != nil && !errors.Is(err, context.Canceled) {
			n.log.Warn("scrub", "err", err)
			continue
		}
		n.log.Info("scrub ended", "contents", report.Contents, "bytes", report.Bytes, "damaged", len(report.Damaged))
	}
}
