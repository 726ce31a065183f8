package meta

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/rdmcfs/rdmcfs/internal/filelock"
	"github.com/rdmcfs/rdmcfs/internal/format"
	"github.com/rdmcfs/rdmcfs/test/codertest"
)

// What was written before a program said what it knows, or which incarnation a boot asks for, is read, and written
// again as it was.
func TestBytesOfBeforeProgramsSaidTheirFormats(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("testdata", "unsaid.txt"))
	if err != nil {
		t.Fatal(err)
	}
	records := map[string]record{"record-*meta.head": new(head), "record-*meta.nodeRecord": new(nodeRecord),
		"record-not-drained": new(nodeRecord)}
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	if len(lines) != 8 {
		t.Fatalf("%d lines", len(lines))
	}
	for _, line := range lines {
		name, digits, _ := strings.Cut(line, " ")
		data, err := hex.DecodeString(digits)
		if err != nil {
			t.Fatal(err)
		}
		again := func(b []byte) ([]byte, error) { e, err := DecodeEntry(b); return EncodeEntry(e), err }
		if r := records[strings.TrimSuffix(name, "-zero")]; r != nil {
			again = func(b []byte) ([]byte, error) { err := decodeRecord(b, r); return encodeRecord(r), err }
		}
		if !codertest.Again(t, data, again) {
			t.Errorf("%s is not read", name)
		}
	}
}

// The log and the databases of running clusters have these bytes.
func TestGoldenBytes(t *testing.T) {
	messages := map[string][]byte{}
	for code, mk := range opMakers {
		e := Entry{Op: mk()}
		codertest.Fill(&e)
		codertest.Fill(e.Op)
		e.Format = max(format.First, opSince[code])
		messages[fmt.Sprintf("entry-%02d-%T", code, e.Op)] = EncodeEntry(e)
		messages[fmt.Sprintf("entry-%02d-zero", code)] = EncodeEntry(Entry{Format: e.Format, Op: mk()})
	}
	for _, r := range []record{
		new(Inode), new(contentRecord), new(owedRecord), new(bucketRecord), new(tokenRecord), new(Policy), new(nodeRecord),
		new(dirent), new(progress), new(Result), new(head), new(electorate), new(fileLocks),
		new(removedRecord), new(auditRecord), new(auditCount),
	} {
		messages[fmt.Sprintf("record-%T-zero", r)] = encodeRecord(r)
		codertest.Fill(r)
		messages[fmt.Sprintf("record-%T", r)] = encodeRecord(r)
	}
	node := &nodeRecord{}
	codertest.Fill(node)
	node.Program = Program{}
	messages["record-program-unsaid"] = encodeRecord(node)
	node.DrainIndex = 0
	messages["record-not-drained"] = encodeRecord(node)
	policy := &Policy{}
	codertest.Fill(policy)
	policy.KeepRemoved, policy.SendRate, policy.Priority = 0, 0, 0
	messages["record-policy-keeps-nothing"] = encodeRecord(policy)
	for name, key := range goldenKeys() {
		messages["key-"+name] = key
	}
	h := head{Index: 7, Sum: sum128{1, 2}}
	digest := h.digest()
	messages["digest"] = digest[:]
	messages["snapshot"] = goldenSnapshot(t)
	messages["marker"] = goldenMarker(t)
	codertest.Golden(t, messages)
}

func goldenKeys() map[string][]byte {
	id := ContentID{Node: 1, Incarnation: 2, Seq: 3}
	return map[string][]byte{
		"inode": inodeKey(0x0102030405060708), "node": key32(tableNode, 0x01020304), "content": keyContent(tableContent, id),
		"dirent": direntKey(5, "name"), "name": nameKey(5, 6, "name"), "version": versionKey(5, id),
		"bucket": bucketKey(3, 4),
		"kept":   keptKey(9, id), "owed": owedKey(3, 4), "reserved": reservedKey(Lease{1, 2}, 3), "result": resultKey(1, 2),
		"former": formerKey(1, [16]byte{2}), "token": tokenKey([32]byte{3}), "locks": key64(tableLocks, 5),
		"locked": lockedKey(Lease{1, 2}, 3), "waits": waitsKey(filelock.Owner{Node: 1, Incarnation: 2, Space: 3, ID: 4}, 5),
		"removed": removedKey(5), "kept-removed": keptKey(9, removedID(5)),
		"audit": auditKey(5),
	}
}

func goldenSnapshot(t *testing.T) []byte {
	db := OpenMemory()
	if _, _, err := db.Apply(1, 1, EncodeEntry(Entry{Generation: FirstGeneration,
		Op: &AddToken{Hash: [32]byte{1}}})); err != nil {
		t.Fatal(err)
	}
	s, _, err := db.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(s); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func goldenMarker(t *testing.T) []byte {
	name := filepath.Join(t.TempDir(), markerName)
	m, _, _, err := openMarker(name)
	if err != nil {
		t.Fatal(err)
	}
	defer m.close()
	if err := m.write(0x0102030405060708); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.TrimRight(b, "\x00")
}

// Each record that is accepted has one form only.
func TestAgain(t *testing.T) {
	for _, r := range []record{
		new(Inode), new(contentRecord), new(owedRecord), new(bucketRecord), new(tokenRecord), new(Policy), new(nodeRecord),
		new(dirent), new(progress), new(Result), new(head), new(electorate), new(fileLocks),
		new(removedRecord),
	} {
		codertest.Fill(r)
		b := encodeRecord(r)
		for i := range b {
			changed := bytes.Clone(b)
			changed[i] ^= 0x80
			codertest.Again(t, changed, func(b []byte) ([]byte, error) {
				r := reflect.New(reflect.TypeOf(r).Elem()).Interface().(record)
				err := decodeRecord(b, r)
				return encodeRecord(r), err
			})
		}
	}
}
