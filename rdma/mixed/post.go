package mixed

import (
	"fmt"
	"slices"

	"github.com/rdmcfs/rdmcfs/rdma"
)

// scratch is where requests are put together for the carrier, which copies them.
type scratch struct {
	sends []rdma.SendWR
	recvs []rdma.RecvWR
	list  []rdma.SGE
}

// begin makes room for the entries of all lists. It does not move after this: requests point into it.
func (s *scratch) begin(entries int) {
	s.sends, s.recvs, s.list = s.sends[:0], s.recvs[:0], slices.Grow(s.list[:0], entries)
}

// end drops what would keep regions alive.
func (s *scratch) end() {
	clear(s.sends)
	clear(s.recvs)
	clear(s.list)
}

// PostSend hands the requests to the carrier, or holds them while a key is looked up.
func (p *pair) PostSend(wrs ...rdma.SendWR) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state != stateReady {
		return fmt.Errorf("mixed: post send: %w", p.refusalLocked())
	}
	for i := range wrs {
		if err := p.checkSend(&wrs[i]); err != nil {
			return fmt.Errorf("mixed: post send %d: %w", wrs[i].ID, err)
		}
	}
	if len(p.keys.held) > 0 || p.keys.missing(wrs) >= 0 {
		return p.hold(wrs)
	}
	return p.postSends(wrs, 0)
}

// PostRecv hands the receives to the carrier, or keeps them until there is one.
func (p *pair) PostRecv(wrs ...rdma.RecvWR) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state == stateError {
		return fmt.Errorf("mixed: post receive: %w", p.refusalLocked())
	}
	for i := range wrs {
		if _, err := p.checkList(wrs[i].List); err != nil {
			return fmt.Errorf("mixed: post receive %d: %w", wrs[i].ID, err)
		}
	}
	if p.state < stateCarried {
		return p.keepRecvs(wrs)
	}
	return p.postRecvs(wrs)
}

// checkSend refuses what is beyond the limits of one of the devices, or what none takes.
func (p *pair) checkSend(wr *rdma.SendWR) error {
	n, err := p.checkList(wr.List)
	switch n += len(wr.Inline); {
	case err != nil:
		return err
	case wr.Op < rdma.OpSend || wr.Op > rdma.OpRead:
		return fmt.Errorf("operation %v: %w", wr.Op, rdma.ErrRequest)
	case len(wr.Inline) > p.limits.MaxInline:
		return fmt.Errorf("%d inline bytes, limit %d: %w", len(wr.Inline), p.limits.MaxInline, rdma.ErrRequest)
	case len(wr.Inline) > 0 && (len(wr.List) > 0 || wr.Op == rdma.OpRead):
		return fmt.Errorf("inline bytes beside a list or in a read: %w", rdma.ErrRequest)
	case wr.SealCRC:
		return fmt.Errorf("no device of several makes checksums: %w", rdma.ErrRequest)
	case n > p.limits.MaxMessage:
		return fmt.Errorf("message of %d bytes, limit %d: %w", n, p.limits.MaxMessage, rdma.ErrRequest)
	}
	return nil
}

// checkList adds up the lengths of a list's entries, unless one is wrong.
func (p *pair) checkList(list []rdma.SGE) (int, error) {
	if len(list) > p.limits.MaxSGE {
		return 0, fmt.Errorf("%d entries, limit %d: %w", len(list), p.limits.MaxSGE, rdma.ErrRequest)
	}
	total := 0
	for i := range list {
		r, ok := list[i].Region.(*region)
		if !ok || r.dev != p.dev {
			return 0, fmt.Errorf("region of another device: %w", rdma.ErrRequest)
		}
		if err := r.check(&list[i]); err != nil {
			return 0, err
		}
		total += list[i].Length
	}
	return total, nil
}

// localList is the list with the carrier's regions. The scratch has room for it.
func (p *pair) localList(list []rdma.SGE) ([]rdma.SGE, error) {
	s := &p.scratch
	from := len(s.list)
	for i := range list {
		local, err := list[i].Region.(*region).on(p.carrier)
		if err != nil {
			return nil, err
		}
		s.list = append(s.list, rdma.SGE{Region: local, Offset: list[i].Offset, Length: list[i].Length})
	}
	return s.list[from:len(s.list):len(s.list)], nil
}

// postSends posts requests, all of whose keys are known, and then a lookup of a key unless that is zero: all or none.
func (p *pair) postSends(wrs []rdma.SendWR, lookup rdma.RegionKey) error {
	entries := 0
	for i := range wrs {
		entries += len(wrs[i].List)
	}
	s := &p.scratch
	s.begin(entries)
	defer s.end()
	for i := range wrs {
		list, err := p.localList(wrs[i].List)
		if err != nil {
			return fmt.Errorf("mixed: post send %d: %w", wrs[i].ID, err)
		}
		wr := wrs[i]
		wr.List, wr.RemoteKey = list, p.keys.translate(wr.RemoteKey)
		s.sends = append(s.sends, wr)
	}
	if lookup != 0 {
		wr, err := p.lookup(lookup)
		if err != nil {
			return err
		}
		s.sends = append(s.sends, wr)
	}
	return p.qps[p.carrier].PostSend(s.sends...)
}

func (p *pair) postRecvs(wrs []rdma.RecvWR) error {
	entries := 0
	for i := range wrs {
		entries += len(wrs[i].List)
	}
	s := &p.scratch
	s.begin(entries)
	defer s.end()
	for i := range wrs {
		list, err := p.localList(wrs[i].List)
		if err != nil {
			return fmt.Errorf("mixed: post receive %d: %w", wrs[i].ID, err)
		}
		s.recvs = append(s.recvs, rdma.RecvWR{ID: wrs[i].ID, List: list})
	}
	return p.qps[p.carrier].PostRecv(s.recvs...)
}

// keepRecvs keeps copies of receives until there is a carrier.
func (p *pair) keepRecvs(wrs []rdma.RecvWR) error {
	if n := len(p.waiting); len(wrs) > p.recvMax-n {
		return fmt.Errorf("mixed: post %d receives behind %d of %d: %w", len(wrs), n, p.recvMax, rdma.ErrQueueFull)
	}
	before := len(p.waiting)
	for i := range wrs {
		if err := acquireList(wrs[i].List); err != nil {
			releaseRecvs(p.waiting[before:])
			p.waiting = p.waiting[:before]
			return fmt.Errorf("mixed: post receive %d: %w", wrs[i].ID, err)
		}
		p.waiting = append(p.waiting, rdma.RecvWR{ID: wrs[i].ID, List: slices.Clone(wrs[i].List)})
	}
	return nil
}

// acquireList makes a held request a user of its regions; on an error it is of none.
func acquireList(list []rdma.SGE) error {
	for i := range list {
		if !list[i].Region.(*region).acquire() {
			releaseList(list[:i])
			return fmt.Errorf("region is stale: %w", rdma.ErrState)
		}
	}
	return nil
}

func releaseList(list []rdma.SGE) {
	for i := range list {
		list[i].Region.(*region).release()
	}
}

func releaseRecvs(wrs []rdma.RecvWR) {
	for i := range wrs {
		releaseList(wrs[i].List)
	}
}
