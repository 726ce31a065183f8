package node

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
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
func scrub(ctx context.Context, store *content.Store, log *slog.Logger) {
	for wait := scrubFirst; pause(ctx, wait); wait = scrubEvery {
		report, err := store.Scrub(ctx, scrubBytesPerSec)
		if err != nil && !errors.Is(err, context.Canceled) {
			log.Warn("scrub", "err", err)
			continue
		}
		log.Info("scrub ended", "contents", report.Contents, "bytes", report.Bytes, "damaged", len(report.Damaged))
	}
}

// keepSpace keeps space for the state until ctx ends, in case other programs fill the disk while nothing is applied.
func keepSpace(ctx context.Context, db *meta.DB) {
	for pause(ctx, db.KeepSpace()) {
	}
}

// foldEvery is how often the store looks for deltas that can become plain contents.
const foldEvery = time.Minute

// foldIdle folds what nobody has open, until ctx ends.
func foldIdle(ctx context.Context, store *content.Store, log *slog.Logger) {
	for range ticks(ctx, foldEvery) {
		folded, err := store.FoldIdle(ctx)
		if err != nil && ctx.Err() == nil {
			log.Warn("deltas not folded", "err", err)
		}
		if folded > 0 {
			log.Debug("deltas folded", "count", folded)
		}
	}
}
