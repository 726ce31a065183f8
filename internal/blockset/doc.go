// Package blockset has sets of blocks. A [Bitmap] is for sets that grow block by block, such as what a member of a
// transfer has. [Ranges] is for sets that are sent or listed: it takes little if blocks lie side by side. An [Index]
// numbers the blocks of a set.
package blockset
