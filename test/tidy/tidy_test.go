// Package tidy holds the tree to its own rules: the direction of imports, documented names, no sleeping
// tests. An exception carries its reason on the line, as a comment that starts with "tidy:".
package tidy

import (
	"bytes"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

const module = "github.com/rdmcfs/rdmcfs/"

// mayImport lists, for each layer, the layers of this module below it. A package belongs to the longest
// prefix that matches.
var mayImport = map[string][]string{
	"cmd":                         {"internal", "fs", "replicate", "rdma", "meta"},
	"internal/node":               {"internal", "fs", "replicate", "rdma", "meta"},
	"internal/tools/demo":         {"internal"},
	"test/detsim":                 {"internal", "fs", "replicate", "rdma", "meta"},
	"internal/backup":             {"meta", "internal/content", "internal/durable"},
	"internal/tools/bench":        {"internal", "replicate", "rdma"},
	"internal/cmdline":            {},
	"internal/coder":              {},
	"test/codertest":              {},
	"internal/blockset":           {"internal/coder"},
	"internal/content":            {"internal/durable", "internal/coder", "internal/blockset"},
	"internal/consensus":          {"internal/consensus", "internal/durable", "internal/coder"},
	"internal/consensus/core":     {"internal/coder", "internal/consensus/logstate"},
	"internal/consensus/logstate": {},
	"internal/credentials":        {"internal/durable", "internal/coder"},
	"internal/control":            {"internal/credentials", "internal/exitcode", "internal/coder", "internal/format"},
	"internal/control/rings":      {"rdma", "internal/coder"},
	"internal/tools/doctor":       {},
	"internal/httpapi":            {"internal/durable"},
	"internal/durable":            {},
	"internal/exitcode":           {},
	"internal/terminal":           {},
	"internal/pages":              {"rdma"},
	"internal/units":              {},
	"test/tidy":                   {},
	"internal/filelock":           {},
	"internal/format":             {},
	"internal/clusterlock":        {"meta", "internal/filelock"},
	"internal/newnames":           {"meta"},
	"fs": {"replicate", "meta", "internal/blockset", "internal/content", "internal/clusterlock",
		"internal/filelock"},
	"replicate": {"rdma", "meta", "internal/blockset", "internal/coder", "internal/content", "internal/units",
		"replicate/rdmc", "replicate/schedule", "replicate/session", "replicate/slow"},
	"replicate/rdmc": {"rdma", "internal/blockset", "internal/coder", "replicate/schedule", "replicate/rdmc/core",
		"replicate/rdmc/share"},
	"replicate/rdmc/core":  {"internal/blockset", "internal/coder", "replicate/schedule", "replicate/rdmc/share"},
	"replicate/rdmc/share": {"internal/units", "replicate/schedule"},
	"replicate/schedule":   {},
	"replicate/session":    {"meta/id", "meta/owed", "internal/blockset", "replicate/slow"},
	"replicate/slow":       {"meta/id", "internal/units"},
	"rdma":                 {"rdma", "internal/coder", "internal/pages"},
	"meta":                 {"meta", "internal/coder", "internal/durable", "internal/filelock", "internal/format"},
	"meta/id":              {"internal/coder"},
	"meta/owed":            {},
	"test":                 {"internal", "fs", "replicate", "rdma", "meta", "test"},
	"examples":             {"rdma", "replicate"},
	"lab":                  {"internal", "rdma", "replicate"},
	"packaging":            {"internal"},
}

type source struct {
	path string // relative to the root, with slashes
	file *ast.File
	text []byte
}

func tree(t *testing.T) (*token.FileSet, []source) {
	t.Helper()
	root := filepath.Join("..", "..")
	fset := token.NewFileSet()
	var out []source
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || (strings.HasPrefix(d.Name(), ".") && len(d.Name()) > 2)) {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(fset, path, text, parser.ParseComments)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		out = append(out, source{filepath.ToSlash(rel), f, text})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out) < 10 {
		t.Fatalf("only %d Go files found: the walk is wrong", len(out))
	}
	return fset, out
}

func (s source) generated() bool { return ast.IsGenerated(s.file) }
func (s source) test() bool      { return strings.HasSuffix(s.path, "_test.go") }

// layer is the longest key of mayImport that path lies in.
func layer(path string) string {
	best := ""
	for key := range mayImport {
		if (path == key || strings.HasPrefix(path, key+"/")) && len(key) > len(best) {
			best = key
		}
	}
	return best
}

func allowed(from, to string) bool {
	if to == from || strings.HasPrefix(to, from+"/") && layer(to) == layer(from) {
		return true
	}
	for _, ok := range mayImport[layer(from)] {
		if to == ok || strings.HasPrefix(to, ok+"/") {
			return true
		}
	}
	return layer(from) == layer(to)
}

func TestImportsRunOneWay(t *testing.T) {
	fset, files := tree(t)
	for _, s := range files {
		dir := filepath.ToSlash(filepath.Dir(s.path))
		if layer(dir) == "" {
			t.Errorf("%s: no layer in mayImport holds this folder", s.path)
			continue
		}
		if s.test() {
			continue
		}
		for _, imp := range s.file.Imports {
			to, ours := strings.CutPrefix(strings.Trim(imp.Path.Value, `"`), module)
			if ours && !allowed(dir, to) {
				t.Errorf("%s: %s may not import %s", fset.Position(imp.Pos()), layer(dir), to)
			}
		}
	}
}

// TestLabIsOnlyLab: lab/ has what no daemon runs, so nothing outside it imports it, not even tests: neither the
// command, nor what the command is made of.
func TestLabIsOnlyLab(t *testing.T) {
	fset, files := tree(t)
	inLab := 0
	for _, s := range files {
		if strings.HasPrefix(s.path, "lab/") {
			inLab++
			continue
		}
		for _, imp := range s.file.Imports {
			if to, ours := strings.CutPrefix(strings.Trim(imp.Path.Value, `"`), module); ours &&
				(to == "lab" || strings.HasPrefix(to, "lab/")) {
				t.Errorf("%s: imports %s", fset.Position(imp.Pos()), to)
			}
		}
	}
	if inLab == 0 {
		t.Error("no file in lab/: the test looks for the wrong folder")
	}
}

func TestExportedNamesAreDocumented(t *testing.T) {
	fset, files := tree(t)
	packages := map[string]bool{}
	for _, s := range files {
		if s.test() || s.generated() {
			continue
		}
		dir := filepath.Dir(s.path)
		packages[dir] = packages[dir] || s.file.Doc != nil
		if s.file.Name.Name == "main" {
			continue
		}
		for _, decl := range s.file.Decls {
			checkDoc(t, fset, decl)
		}
	}
	for dir, documented := range packages {
		if !documented {
			t.Errorf("%s: no package comment", dir)
		}
	}
}

func checkDoc(t *testing.T, fset *token.FileSet, decl ast.Decl) {
	t.Helper()
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if d.Name.IsExported() && d.Doc == nil && exportedReceiver(d) && !wellKnown[d.Name.Name] {
			t.Errorf("%s: %s has no comment", fset.Position(d.Pos()), d.Name.Name)
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch sp := spec.(type) {
			case *ast.TypeSpec:
				if sp.Name.IsExported() && d.Doc == nil && sp.Doc == nil {
					t.Errorf("%s: %s has no comment", fset.Position(sp.Pos()), sp.Name.Name)
				}
			case *ast.ValueSpec:
				if sp.Names[0].IsExported() && d.Doc == nil && sp.Doc == nil && sp.Comment == nil {
					t.Errorf("%s: %s has no comment", fset.Position(sp.Pos()), sp.Names[0].Name)
				}
			}
		}
	}
}

// wellKnown methods mean what they mean everywhere.
var wellKnown = map[string]bool{"Error": true, "String": true, "Unwrap": true, "Len": true, "Less": true, "Swap": true,
	"Read": true, "Write": true, "Close": true}

func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil || len(d.Recv.List) == 0 {
		return true
	}
	typ := d.Recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	if idx, ok := typ.(*ast.IndexExpr); ok {
		typ = idx.X
	}
	id, ok := typ.(*ast.Ident)
	return ok && id.IsExported()
}

func TestBannedCalls(t *testing.T) {
	fset, files := tree(t)
	for _, s := range files {
		if s.generated() {
			continue
		}
		lines := strings.Split(string(s.text), "\n")
		ast.Inspect(s.file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			pos := fset.Position(call.Pos())
			if why := banned(s, callName(call)); why != "" && !strings.Contains(lines[pos.Line-1], "// tidy:") {
				t.Errorf("%s: %s: %s", pos, callName(call), why)
			}
			return true
		})
	}
}

func callName(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		if x, ok := f.X.(*ast.Ident); ok {
			return x.Name + "." + f.Sel.Name
		}
	}
	return ""
}

func banned(s source, name string) string {
	inCmd := strings.HasPrefix(s.path, "cmd/") || strings.HasPrefix(s.path, "examples/")
	switch {
	case name == "time.Sleep":
		return "await a condition instead"
	case strings.HasPrefix(name, "fmt.Print") && !inCmd && !s.test():
		return "only cmd prints"
	case (strings.HasPrefix(name, "fmt.Fprint") || strings.HasPrefix(name, "fmt.Print")) &&
		strings.HasPrefix(s.path, "cmd/") && !s.test():
		return "names may hold escape sequences: print with internal/terminal"
	case name == "panic" && !s.test():
		return "panics are for broken invariants; say which on the line"
	}
	return ""
}

// ownBytes are the files and folders that lay out bytes themselves, and why. All others list their fields with
// internal/coder (decision 039).
var ownBytes = map[string]string{
	"internal/coder/":                 "it is the one way",
	"fs/acl.go":                       "the kernel's form of an access list",
	"fs/kernelcache.go":               "the kernel's form of a notification",
	"internal/control/lines_linux.go": "the kernel's form of news of network interfaces",
	"lab/":                            "no daemon runs it",
	"rdma/": "words that devices write, and the header of each message: fixed layouts take a third " +
		"of the time",
	"replicate/rdmc/core/trailer.go": "of each block and small message: a fixed layout takes a third of the time",
}

func TestBytesAreLaidOutInOnePlace(t *testing.T) {
	fset, files := tree(t)
	used := map[string]bool{}
	for _, s := range files {
		if s.test() || strings.HasPrefix(s.path, "test/") || strings.HasSuffix(filepath.Dir(s.path), "test") {
			continue
		}
		for _, imp := range s.file.Imports {
			if imp.Path.Value != `"encoding/binary"` {
				continue
			}
			why := ""
			for place := range ownBytes {
				if s.path == place || strings.HasSuffix(place, "/") && strings.HasPrefix(s.path, place) {
					why = place
				}
			}
			if used[why] = true; why == "" {
				t.Errorf("%s: list the fields with internal/coder, which has bounds and both directions", fset.Position(imp.Pos()))
			}
		}
	}
	for place, why := range ownBytes {
		if !used[place] {
			t.Errorf("%s (%s) is not needed any more in ownBytes", place, why)
		}
	}
}

// lineWidth bounds the lines of code and of comments: longer ones are read by nobody.
const lineWidth = 120

func TestLinesAreNotTooWide(t *testing.T) {
	fset, files := tree(t)
	for _, s := range files {
		raw := rawStrings(fset, s.file)
		for i, line := range strings.Split(string(s.text), "\n") {
			if n := utf8.RuneCountInString(line); n > lineWidth && !raw[i+1] && !s.generated() {
				t.Errorf("%s:%d: a line of %d characters, at most %d", s.path, i+1, n, lineWidth)
			}
		}
	}
}

// rawStrings are the lines in which a string in backquotes lies, such as the tags of a field: they can't be wrapped.
func rawStrings(fset *token.FileSet, file *ast.File) map[int]bool {
	lines := make(map[int]bool)
	ast.Inspect(file, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING && lit.Value[0] == '`' {
			for i := fset.Position(lit.Pos()).Line; i <= fset.Position(lit.End()).Line; i++ {
				lines[i] = true
			}
		}
		return true
	})
	return lines
}

func TestGofmt(t *testing.T) {
	_, files := tree(t)
	for _, s := range files {
		want, err := format.Source(s.text)
		if err != nil {
			t.Errorf("%s: %v", s.path, err)
			continue
		}
		if !bytes.Equal(want, s.text) {
			t.Errorf("%s: not formatted by gofmt", s.path)
		}
	}
}
