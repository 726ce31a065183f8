package tidy

import (
	"go/ast"
	"path/filepath"
	"strings"
	"testing"
)

// methodsMax is the most methods that a type may have. A type with more does several things: see
// docs/decisions/040-types-by-concept.md.
const methodsMax = 60

// notProduct are folders whose code no daemon and no library runs.
var notProduct = []string{"test/", "lab/", "examples/", "test/detsim/"}

func TestTypesHaveFewMethods(t *testing.T) {
	_, files := tree(t)
	for name, n := range methods(files) {
		if n > methodsMax {
			t.Errorf("%s has %d methods, at most %d: which of its concepts is a type of its own?", name, n, methodsMax)
		}
	}
}

// methods counts the methods of each type of the product, as folder.Type.
func methods(files []source) map[string]int {
	out := map[string]int{}
	for _, s := range files {
		if s.test() || s.generated() || isNotProduct(s.path) {
			continue
		}
		for _, d := range s.file.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv != nil {
				out[filepath.ToSlash(filepath.Dir(s.path))+"."+receiver(fn)]++
			}
		}
	}
	return out
}

func isNotProduct(path string) bool {
	for _, p := range notProduct {
		if strings.HasPrefix(path, p) {
			return true
		}
	}
	return false
}

// receiver is the name of the type that a method belongs to.
func receiver(fn *ast.FuncDecl) string {
	typ := fn.Recv.List[0].Type
	for {
		switch x := typ.(type) {
		case *ast.StarExpr:
			typ = x.X
		case *ast.IndexExpr:
			typ = x.X
		case *ast.IndexListExpr:
			typ = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}
