package rdmc

// Source gives the blocks of a message at the root.
type Source interface {
	// ReadBlock fills buf, which is as long as the block, with block i. It is called by worker
	// goroutines, several at a time, and again for a block that has to be sent again and is no longer cached:
	// it must then give the same bytes. buf must not be kept. An error fails the group.
	ReadBlock(i uint64, buf []byte) error
}

// Sink takes the blocks of a message at a member.
type Sink interface {
	// WriteBlock stores block i, whose check was good. It is called by worker goroutines, several at a time, in any
	// order, once for each block that Receiver.Have does not hold. buf is valid until it returns and must
	// not be changed. An error fails the group.
	WriteBlock(i uint64, buf []byte) error
	// ReadBlock reads back a block that WriteBlock stored or Receiver.Have holds, to relay it; buf is as long as
	// the block. It is rare with the pipelines and the rule with BinomialTree.
	ReadBlock(i uint64, buf []byte) error
}

// Outgoing is a message at the root.
type Outgoing struct {
	// Size is the message's length in bytes.
	Size uint64
	// Partial says that only Blocks move, which may be none; else all blocks do. They are at most MaxRanges runs.
	Partial bool
	Blocks  Ranges
	// Source gives the blocks.
	Source Source
}

// Receiver is a message at a member.
type Receiver struct {
	// Sink takes the blocks; nil will do if none move.
	Sink Sink
	// Have holds the blocks that the member has already; they are relayed when they come and
	// not given to WriteBlock. Nil for none. It is copied.
	Have *Bitmap
}
