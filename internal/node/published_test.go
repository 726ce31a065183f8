package node

import (
	"maps"
	"slices"
	"testing"

	"github.com/rdmcfs/rdmcfs/fs"
	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
)

// logOf is what a log knows of files and versions.
type logOf struct {
	inodes   map[meta.Ino]meta.Inode
	contents map[meta.ContentID]meta.Content
	nowhere  map[meta.ContentID]bool // nobody has them
}

func (l logOf) Holders(id meta.ContentID) ([]meta.NodeID, error) {
	if l.nowhere[id] {
		return []meta.NodeID{1}, nil // this node is believed to have it, and does not
	}
	return []meta.NodeID{1, 2}, nil
}

func (l logOf) Inode(ino meta.Ino) (meta.Inode, error) {
	if i, ok := l.inodes[ino]; ok {
		return i, nil
	}
	return meta.Inode{}, meta.ErrNotFound
}

func (l logOf) Content(id meta.ContentID) (meta.Content, error) {
	if c, ok := l.contents[id]; ok {
		return c, nil
	}
	return meta.Content{}, meta.ErrNotFound
}

func (l logOf) publish(ino meta.Ino, seq uint64, text string) meta.ContentID {
	id := meta.ContentID{Node: 1, Incarnation: 1, Seq: seq}
	leaf := content.Leaf([]byte(text))
	l.contents[id] = meta.Content{ID: id, Ino: ino, Size: int64(len(text)),
		Root: content.Root(int64(len(text)), []content.Hash{leaf})}
	l.inodes[ino] = meta.Inode{Ino: ino, Content: id, Size: int64(len(text)), Version: seq}
	return id
}

// What a crash left of a file is dropped if the log has it as the current version of that file, or as the one that it
// was written over and that is kept. Nothing else is dropped: no bytes of a file that is gone or was never published,
// none that are a version of another file only, and none that no node has otherwise.
func TestPublishedBytesOfACrashAreDropped(t *testing.T) {
	log := logOf{map[meta.Ino]meta.Inode{}, map[meta.ContentID]meta.Content{}, map[meta.ContentID]bool{}}
	log.publish(1, 1, "current")
	over := log.publish(2, 2, "kept")
	log.publish(2, 3, "newer")
	log.publish(3, 4, "another")
	log.inodes[4] = meta.Inode{Ino: 4} // reserved
	other := log.publish(7, 6, "elsewhere")
	last := log.publish(8, 8, "the last")
	log.nowhere[last] = true
	texts := map[meta.Ino]string{1: "current", 2: "kept", 3: "Another", 4: "new", 5: "gone", 6: "elsewhere", 8: "the last"}
	bases := map[meta.Ino]meta.ContentID{2: over, 6: other}

	dir := t.TempDir()
	_, files := openStaging(t, dir)
	for _, ino := range slices.Sorted(maps.Keys(texts)) {
		st, err := files.Create(fs.StageInfo{Ino: ino, Parent: 1, Path: "/f", Base: bases[ino]})
		if err == nil {
			_, err = st.WriteAt([]byte(texts[ino]), 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := st.Drop(); err != nil {
				t.Error(err)
			}
		}()
	}
	s, _ := openStaging(t, afterCrash(t, dir))
	s.self, s.versions = 1, log
	left := func() (inos []uint64) {
		for _, u := range s.unused() {
			inos = append(inos, u.Origin.Ino)
		}
		return inos
	}
	s.dropPublished(t.Context())
	if got := left(); !slices.Equal(got, []uint64{3, 4, 5, 6, 8}) {
		t.Errorf("left: %v", got)
	}
	log.publish(3, 7, "Another") // what was not known yet
	delete(log.nowhere, last)    // another node has it again
	s.dropPublished(t.Context())
	if got := left(); !slices.Equal(got, []uint64{4, 5, 6}) {
		t.Errorf("left when more is known: %v", got)
	}
}
