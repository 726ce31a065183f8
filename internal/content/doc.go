// Package content is a node's local store of version files.
//
// A content is an immutable string of Size bytes named by an opaque 16-byte [ID]. It is hashed in
// blocks of [BlockBytes] (1 MiB, the last may be short): the leaf of a block is BLAKE3 of its bytes,
// the root is a Merkle tree over the leaves with the size bound in ([Root]). Equal bytes have equal
// roots whatever their form on disk.
//
// # Shape and stream
//
// The [Shape] of a content says how it is stored and sent. A plain content lists the blocks that are holes;
// a delta names a base content and the byte ranges (extents) that differ from it. The bytes that travel, and that
// are in the data file, are the shape's stream: the bytes of its data extents, one after the other, cut
// into blocks of 1 MiB. Holes, zeroed ranges and unchanged bytes are not part of the stream.
// [Layout] does the arithmetic between offsets of the content and of the stream.
//
//	content   |data 0..3 MiB|  hole 3..6 MiB   |data 6..6.5|      Shape{Size: 6.5 MiB, Holes: {3,3}}
//	stream    |  0  |  1  |  2  |  3   |                          3.5 MiB, 4 blocks
//
//	base      |.............................................|
//	delta     |......|4K|......|zero 1M|......|8K|..........|      Shape{Base: b, Extents: ...}
//	stream    |4K|8K|                                             12 KiB, 1 block
//
// # Life of a content
//
//	Begin ──> Receiving ──Finish──> undecided ──Commit──> committed ──Delete──> gone
//	            │  ^                    │
//	          crash, Close:           Abort
//	          List(Partial)
//
// [Store.Begin] checks and takes the space first. [Receiving.WriteBlock] may be called for any block in
// any order from any goroutine. [Receiving.Finish] checks the root, makes everything durable and leaves the
// content undecided: it survives crashes until [Store.Commit] or [Store.Abort] is called by the log's
// decision. Commit is not synced: after a crash a content may be undecided again, and the log decides again.
// The writer of a content fills a Receiving in the same way as every other member, from its [Staging].
//
// # On disk
//
//	DIR/LOCK  DIR/FORMAT
//	DIR/held/xx/<id>.data            bytes of a plain content, at their own offsets, sparse
//	DIR/held/xx/<id>+<base>.delta    stream of a delta
//	DIR/held/xx/<id>[+<base>].part   sidecar of a Receiving: header, shape, one checked row per block
//	DIR/held/xx/<id>[+<base>].new    sidecar of an undecided content
//	DIR/held/xx/<id>[+<base>].meta   sidecar of a committed content
//	DIR/held/xx/<id>[+<base>].fold   sidecar of another form of the content that is being made
//	DIR/staging/<token>.{stage,file} staged bytes of open files and what they belong to
//
// A stream of at most [InlineBytesMax] is in the sidecar itself, so a small content costs one file and
// one fsync. docs/FORMAT.md has the byte tables and the crash argument.
//
// # Types
//
// A [Store] consists of these, and each knows those below it:
//
//	forms, stagings   other forms of contents (fold, merge, mend); files that bytes are staged in
//	opener            opens a content and what it is a delta over
//	index             what is stored, and who needs it
//	storeFiles        names of files, and the steps that a power loss may undo
//	spaceBook         what is promised to Receivings
//	recovery          at Open: from files to the index
//
// # Example
//
//	store, err := content.Open(dir, content.Options{Log: log, ReserveBytes: 1 << 30})
//	r, err := store.Begin(id, content.Shape{Size: size})
//	for i := range r.Layout().Blocks() {
//		err = r.WriteBlock(i, block(i), nil)
//	}
//	err = r.Finish(ctx, root) // durable, undecided
//	err = store.Commit(id)
//	reader, err := store.Open(id)
//	n, err := reader.ReadAt(p, off) // CRC checked
//	err = reader.Close()
package content
