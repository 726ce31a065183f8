//go:build linux && (amd64 || arm64) && !nordma

package verbs

import (
	"testing"
	"unsafe"
)

// TestLayout compares the structures with the offsets that a C compiler finds in infiniband/verbs.h (rdma-core 44,
// 64 bits).
func TestLayout(t *testing.T) {
	var (
		wr   sendWR
		rr   recvWR
		wc   workCompletion
		init qpInitAttr
		qp   qpAttr
		ah   ahAttr
		dev  deviceAttr
		port portAttr
		ev   asyncEvent
	)
	for _, c := range []struct {
		name      string
		got, want uintptr
	}{
		{"send_wr.next", unsafe.Offsetof(wr.next), 8},
		{"send_wr.sg_list", unsafe.Offsetof(wr.list), 16},
		{"send_wr.num_sge", unsafe.Offsetof(wr.listLen), 24},
		{"send_wr.opcode", unsafe.Offsetof(wr.opcode), 28},
		{"send_wr.send_flags", unsafe.Offsetof(wr.flags), 32},
		{"send_wr.imm_data", unsafe.Offsetof(wr.imm), 36},
		{"send_wr.wr.rdma.remote_addr", unsafe.Offsetof(wr.addr), 40},
		{"send_wr.wr.rdma.rkey, wr.ud.remote_qpn", unsafe.Offsetof(wr.rkey), 48},
		{"send_wr.wr.ud.remote_qkey", unsafe.Offsetof(wr.qkey), 52},
		{"recv_wr.sg_list", unsafe.Offsetof(rr.list), 16},
		{"recv_wr.num_sge", unsafe.Offsetof(rr.listLen), 24},
		{"wc.status", unsafe.Offsetof(wc.status), 8},
		{"wc.opcode", unsafe.Offsetof(wc.opcode), 12},
		{"wc.byte_len", unsafe.Offsetof(wc.bytes), 20},
		{"wc.imm_data", unsafe.Offsetof(wc.imm), 24},
		{"wc.qp_num", unsafe.Offsetof(wc.qpNum), 28},
		{"wc.src_qp", unsafe.Offsetof(wc.srcQP), 32},
		{"wc.wc_flags", unsafe.Offsetof(wc.flags), 36},
		{"qp_init_attr.cap.max_inline_data", unsafe.Offsetof(init.cap) + unsafe.Offsetof(init.cap.inline), 48},
		{"qp_init_attr.qp_type", unsafe.Offsetof(init.qpType), 52},
		{"qp_init_attr.sq_sig_all", unsafe.Offsetof(init.signalAll), 56},
		{"qp_attr.qkey", unsafe.Offsetof(qp.qkey), 16},
		{"qp_attr.rq_psn", unsafe.Offsetof(qp.rqPSN), 20},
		{"qp_attr.sq_psn", unsafe.Offsetof(qp.sqPSN), 24},
		{"qp_attr.dest_qp_num", unsafe.Offsetof(qp.destQPN), 28},
		{"qp_attr.qp_access_flags", unsafe.Offsetof(qp.access), 32},
		{"qp_attr.ah_attr", unsafe.Offsetof(qp.ah), 56},
		{"qp_attr.pkey_index", unsafe.Offsetof(qp.pkeyIndex), 120},
		{"qp_attr.max_rd_atomic", unsafe.Offsetof(qp.readsOut), 126},
		{"qp_attr.max_dest_rd_atomic", unsafe.Offsetof(qp.readsIn), 127},
		{"qp_attr.min_rnr_timer", unsafe.Offsetof(qp.minRNRTimer), 128},
		{"qp_attr.port_num", unsafe.Offsetof(qp.port), 129},
		{"qp_attr.timeout", unsafe.Offsetof(qp.timeout), 130},
		{"qp_attr.retry_cnt", unsafe.Offsetof(qp.retryCount), 131},
		{"qp_attr.rnr_retry", unsafe.Offsetof(qp.rnrRetry), 132},
		{"ah_attr.grh.sgid_index", unsafe.Offsetof(ah.sgidIndex), 20},
		{"ah_attr.grh.hop_limit", unsafe.Offsetof(ah.hopLimit), 21},
		{"ah_attr.dlid", unsafe.Offsetof(ah.dlid), 24},
		{"ah_attr.sl", unsafe.Offsetof(ah.sl), 26},
		{"ah_attr.is_global", unsafe.Offsetof(ah.isGlobal), 29},
		{"ah_attr.port_num", unsafe.Offsetof(ah.port), 30},
		{"device_attr.max_mr_size", unsafe.Offsetof(dev.regionMax), 80},
		{"device_attr.vendor_id", unsafe.Offsetof(dev.vendor), 96},
		{"device_attr.max_qp", unsafe.Offsetof(dev.qpMax), 108},
		{"device_attr.max_qp_wr", unsafe.Offsetof(dev.qpWRMax), 112},
		{"device_attr.max_sge", unsafe.Offsetof(dev.sgeMax), 120},
		{"device_attr.max_sge_rd", unsafe.Offsetof(dev.readSGEMax), 124},
		{"device_attr.max_cq", unsafe.Offsetof(dev.cqMax), 128},
		{"device_attr.max_cqe", unsafe.Offsetof(dev.cqeMax), 132},
		{"device_attr.max_mr", unsafe.Offsetof(dev.mrMax), 136},
		{"device_attr.max_qp_rd_atom", unsafe.Offsetof(dev.readsIn), 144},
		{"device_attr.max_qp_init_rd_atom", unsafe.Offsetof(dev.readsOut), 156},
		{"device_attr.local_ca_ack_delay", unsafe.Offsetof(dev.ackDelay), 226},
		{"device_attr.phys_port_cnt", unsafe.Offsetof(dev.ports), 227},
		{"port_attr.active_mtu", unsafe.Offsetof(port.mtu), 8},
		{"port_attr.gid_tbl_len", unsafe.Offsetof(port.gidTable), 12},
		{"port_attr.max_msg_sz", unsafe.Offsetof(port.messageMax), 20},
		{"port_attr.lid", unsafe.Offsetof(port.lid), 34},
		{"port_attr.link_layer", unsafe.Offsetof(port.linkLayer), 46},
		{"async_event.event_type", unsafe.Offsetof(ev.kind), 8},
	} {
		if c.got != c.want {
			t.Errorf("%s at %d, want %d", c.name, c.got, c.want)
		}
	}
}
