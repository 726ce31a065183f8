package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// mutant is one deliberate fault.
type mutant struct {
	name   string
	file   string // from the root of the tree
	old    string // occurs once in the file
	new    string // takes its place
	suites []string
}

// Suites are packages, the nearest to the fault first. Their tests run at small sizes.
const (
	metaTests      = "./meta"
	newNamesTests  = "./internal/newnames"
	contentTests   = "./internal/content"
	replicateTests = "./replicate"
	slowTests      = "./replicate/slow"
	sessionTests   = "./replicate/session"
	consensusTests = "./internal/consensus"
	coreTests      = "./internal/consensus/core"
	raftlogTests   = "./internal/consensus/raftlog"
	nodeTests      = "./internal/node"
	controlTests   = "./internal/control"
	fsTests        = "./fs"
	clusterlocks   = "./internal/clusterlock"
	rdmcCoreTests  = "./replicate/rdmc/core"
	shareTests     = "./replicate/rdmc/share"
	rdmcTests      = "./replicate/rdmc"
	scheduleTests  = "./replicate/schedule"
	backupTests    = "./internal/backup"
	simulator      = "./test/detsim" // asked last, for every mutant
)

// all is the whole table.
func all() []mutant {
	var out []mutant
	for _, part := range [][]mutant{ofMeta, ofReplicate, ofContent, ofConsensus, ofFs, ofNode, ofNewNames, ofRdmc} {
		out = append(out, part...)
	}
	for i := range out {
		out[i].suites = append(slices.Clone(out[i].suites), simulator)
	}
	return out
}

// apply gives the text of the mutant's file with the fault in it.
func (m *mutant) apply(root string) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(root, m.file))
	if err != nil {
		return nil, err
	}
	changed, err := m.change(string(text))
	return []byte(changed), err
}

// change gives a text of the mutant's file with the fault in it.
func (m *mutant) change(text string) (string, error) {
	if n := strings.Count(text, m.old); n != 1 {
		return "", fmt.Errorf("%s: the text to replace occurs %d times in %s, wanted once: bring the table up to date",
			m.name, n, m.file)
	}
	return strings.Replace(text, m.old, m.new, 1), nil
}
