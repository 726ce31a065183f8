package tidy

import (
	"go/ast"
	"go/token"
	"path"
	"strings"
	"testing"
)

// purePrefixes are the folders whose code takes clock, randomness and I/O as values. All packages of the tree that
// they import, directly or through others, are held to the same rules.
var purePrefixes = []string{"internal/blockset", "internal/coder", "internal/consensus/core",
	"internal/consensus/logstate", "internal/filelock", "meta/id", "meta/owed", "replicate/rdmc/core",
	"replicate/rdmc/share", "replicate/schedule",
	"replicate/session", "replicate/slow"}

// pureStandard are the packages of the standard library that only compute. Of time, pure code uses the types.
var pureStandard = map[string]bool{"bytes": true, "cmp": true, "encoding/binary": true, "encoding/hex": true,
	"errors": true, "fmt": true, "hash/crc32": true, "iter": true, "maps": true, "math": true, "math/bits": true,
	"slices": true, "sort": true, "strconv": true, "strings": true, "time": true, "unicode/utf8": true}

// machineTime are the names of package time that read the clock of the machine or wait for it.
var machineTime = map[string]bool{"After": true, "AfterFunc": true, "NewTicker": true, "NewTimer": true, "Now": true,
	"Since": true, "Sleep": true, "Tick": true, "Until": true}

// pureExcept are imports that pure code may have nevertheless, and why. What they import is not looked at.
var pureExcept = map[string]string{
	"github.com/minio/crc64nvme":       "the checksum of a block: bytes in, a number out",
	"go.etcd.io/raft/v3":               raftIsPure,
	"go.etcd.io/raft/v3/confchange":    raftIsPure,
	"go.etcd.io/raft/v3/raftpb":        raftIsPure,
	"go.etcd.io/raft/v3/tracker":       raftIsPure,
	"google.golang.org/protobuf/proto": "raft's entries and configurations are its messages: values to bytes and back",
}

const raftIsPure = "raft as a RawNode is driven by values; the one thing that it draws at random, how long an " +
	"election may take, has no effect: the core gives it fewer ticks"

// purity is what the rules of pure code hold: the folder, and the pure folder that needs it.
type purity map[string]string

// TestPureCoresOnlyCompute: pure code takes values and returns values. It starts no goroutine, waits for nothing and
// takes no lock; what it decides can be replayed. What it imports keeps the same rules.
func TestPureCoresOnlyCompute(t *testing.T) {
	fset, files := tree(t)
	byFolder := map[string][]source{}
	for _, s := range files {
		if !s.test() {
			byFolder[path.Dir(s.path)] = append(byFolder[path.Dir(s.path)], s)
		}
	}
	held, excepted := purity{}, map[string]bool{}
	for _, p := range purePrefixes {
		if len(byFolder[p]) == 0 {
			t.Errorf("no file in %s: the test looks for the wrong folder", p)
		}
		for folder := range byFolder {
			if folder == p || strings.HasPrefix(folder, p+"/") {
				held.add(t, fset, byFolder, excepted, folder, p)
			}
		}
	}
	for imp, why := range pureExcept {
		if !excepted[imp] {
			t.Errorf("%s (%s) is not needed any more in pureExcept", imp, why)
		}
	}
}

// add checks a folder and all folders of the tree that it imports, each once.
func (h purity) add(
	t *testing.T, fset *token.FileSet, byFolder map[string][]source, excepted map[string]bool, folder, by string,
) {
	t.Helper()
	if _, done := h[folder]; done {
		return
	}
	h[folder] = by
	for _, s := range byFolder[folder] {
		for _, imp := range s.file.Imports {
			name := strings.Trim(imp.Path.Value, `"`)
			to, ours := strings.CutPrefix(name, module)
			switch {
			case pureExcept[name] != "":
				excepted[name] = true
			case ours:
				h.add(t, fset, byFolder, excepted, to, by)
			case !pureStandard[name]:
				t.Errorf("%s: a pure core (%s) imports %s", fset.Position(imp.Pos()), by, name)
			}
		}
		onlyComputes(t, fset, s, by)
	}
}

// onlyComputes checks what a file of pure code does by itself.
func onlyComputes(t *testing.T, fset *token.FileSet, s source, by string) {
	t.Helper()
	ast.Inspect(s.file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt, *ast.ChanType, *ast.SelectStmt, *ast.SendStmt:
			t.Errorf("%s: a pure core (%s) waits for nobody and starts nothing", fset.Position(n.Pos()), by)
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && machineTime[n.Sel.Name] {
				t.Errorf("%s: a pure core (%s) takes time.%s as a value", fset.Position(n.Pos()), by, n.Sel.Name)
			}
		}
		return true
	})
}
