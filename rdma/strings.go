package rdma

import "fmt"

// String names the status as it is written in logs and errors.
func (s Status) String() string {
	names := [...]string{"ok", "flushed", "length", "remote access", "receiver not ready", "disconnected", "local"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("status %d", uint8(s))
}

// String names the operation as it is written in logs and errors.
func (o Opcode) String() string {
	names := [...]string{"none", "send", "write", "write-imm", "read", "recv", "recv-write-imm"}
	if int(o) < len(names) {
		return names[o]
	}
	return fmt.Sprintf("opcode %d", uint8(o))
}

// String names the rights, "rw" for both and "-" for none.
func (a Access) String() string {
	switch a & (RemoteRead | RemoteWrite) {
	case RemoteRead:
		return "r"
	case RemoteWrite:
		return "w"
	case RemoteRead | RemoteWrite:
		return "rw"
	}
	return "-"
}

// IsReceive reports whether completions of this operation belong to the receive queue.
func (o Opcode) IsReceive() bool { return o == OpRecv || o == OpRecvWriteImm }
