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

// manyMethods are the types that have more, with the most that each may have. The list only gets shorter, and its
// figures only fall: nothing may be added.
var manyMethods = map[string]int{
	"rdma/tcp.queuePair": 71,
}

// notProduct are folders whose code no daemon and no library runs.
var notProduct = []string{"test/", "lab/", "examples/", "internal/detsim/"}

func TestTypesHaveFewMethods(t *testing.T) {
	_, files := tree(t)
	for name, n := range methods(files) {
		switch most, listed := manyMethods[name]; {
		case listed && n > most:
			t.Errorf("%s has %d methods, and may have %d: it may not grow", name, n, most)
		case listed && n <= methodsMax:
			t.Errorf("%s has %d methods: take it from the list", name, n)
		case listed && n < most:
			t.Logf("%s has %d methods and may have %d: write the lower figure into the list", name, n, most)
		case !listed && n > methodsMax:
			t.Errorf("%s has %d methods, at most %d: which of its concepts is a type of its own?", name, n, methodsMax)
		}
	}
}

// TestListedTypesExist: an entry of a type that is gone would allow another one of that name.
func TestListedTypesExist(t *testing.T) {
	_, files := tree(t)
	found := methods(files)
	for name := range manyMethods {
		if found[name] == 0 {
			t.Errorf("%s has no methods: take it from the list", name)
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
