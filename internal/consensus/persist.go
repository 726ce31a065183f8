package consensus

import (
	"sync"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/rdmcfs/rdmcfs/internal/consensus/raftlog"
)

const (
	persistBatchBytes = 8 << 20
	persistRetry      = time.Second
)

// persistJob is a batch to write; done runs in the loop when it is on stable storage.
type persistJob struct {
	batch *raftlog.Batch
	done  func()
}

func (j *persistJob) bytes() (n int) {
	for _, e := range j.batch.Entries {
		n += len(e.GetData()) + 32
	}
	return n
}

// persistQueue feeds the goroutine that owns the log on disk.
type persistQueue struct {
	mu     sync.Mutex // protects jobs, queued
	jobs   []persistJob
	queued int
	wake   chan struct{} // buffered 1
	disk   *raftlog.Log  // the goroutine's, then Close's
	// commit is a hard state that moves the commit index alone and is not written yet; the goroutine's.
	commit *raftpb.HardState
	marks  []raftlog.Mark // the same, of the members
}

func (q *persistQueue) add(j persistJob) {
	q.mu.Lock()
	q.jobs = append(q.jobs, j)
	q.queued += j.bytes()
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *persistQueue) bytes() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.queued
}

// peek returns the jobs that make up the next write. Only those of plain entries and hard states are joined.
func (q *persistQueue) peek() ([]persistJob, *raftlog.Batch) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.jobs) == 0 {
		return nil, nil
	}
	joined := &raftlog.Batch{}
	count, size := 0, 0
	for i := range q.jobs {
		b := q.jobs[i].batch
		if b.Base != nil || b.Intent != nil || b.Reset {
			if i == 0 {
				return q.jobs[:1], b
			}
			break
		}
		if size += q.jobs[i].bytes(); i > 0 && size > persistBatchBytes {
			break
		}
		joined.Entries = append(joined.Entries, b.Entries...)
		if b.Hard != nil {
			joined.Hard = b.Hard
		}
		if b.Marks != nil {
			joined.Marks = b.Marks
		}
		count++
	}
	return q.jobs[:count:count], joined
}

func (q *persistQueue) drop(jobs []persistJob) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range jobs {
		q.queued -= jobs[i].bytes()
	}
	q.jobs = q.jobs[len(jobs):]
}

func (q *persistQueue) close() error { return q.disk.Close() }

// runPersist writes appends in order, many with one sync. When the disk is full or broken it tries again every
// second: nothing is acknowledged meanwhile, and the node is read-only.
func (n *Node) runPersist() {
	q := &n.persist
	retry := time.NewTimer(persistRetry)
	defer retry.Stop()
	armed := true
	for {
		if !armed && (q.disk.Full() != nil || n.readOnlyErr() != nil) {
			armed = true
			retry.Reset(persistRetry)
		}
		select {
		case <-n.ctx.Done():
			return
		case <-q.wake:
		case <-retry.C:
			armed = false
			if q.disk.Full() != nil {
				_ = q.disk.Prepare()
			} else if n.readOnlyErr() == nil {
				continue
			}
		}
		for n.ctx.Err() == nil {
			jobs, batch := q.peek()
			if jobs == nil {
				n.setReadOnly(q.disk.Full())
				break
			}
			if err := q.write(batch); err != nil {
				n.setReadOnly(err)
				break
			}
			q.drop(jobs)
			n.box.event(func() {
				for _, j := range jobs {
					j.done()
				}
			})
			n.setReadOnly(q.disk.Full())
		}
	}
}

// write writes a batch. A batch that only moves the commit index costs no write of its own but goes with the next: see
// [Core.Unpersisted].
func (q *persistQueue) write(b *raftlog.Batch) error {
	if b.Base == nil && b.Intent == nil && len(b.Entries) == 0 && b.Hard != nil && q.onlyCommit(b.Hard) {
		q.commit = b.Hard
		if b.Marks != nil {
			q.marks = b.Marks
		}
		return nil
	}
	if b.Marks == nil {
		b.Marks = q.marks
	}
	if b.Hard == nil && !b.Reset {
		b.Hard = q.commit
	}
	if err := q.disk.Append(b); err != nil {
		return err
	}
	q.commit, q.marks = nil, nil
	return nil
}

// onlyCommit reports whether a hard state differs from the written one by its commit index alone.
func (q *persistQueue) onlyCommit(h *raftpb.HardState) bool {
	w := q.disk.Hard()
	return w.GetTerm() == h.GetTerm() && w.GetVote() == h.GetVote()
}

func (n *Node) readOnlyErr() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.state.readOnly
}

func (n *Node) setReadOnly(err error) {
	n.mu.Lock()
	before := n.state.readOnly
	n.state.readOnly = err
	n.mu.Unlock()
	switch {
	case before == nil && err != nil:
		n.log.Error("raft log is read-only", "error", err)
		n.reporter.reportSelf(true)
	case before != nil && err == nil:
		n.log.Info("raft log can be written again")
		n.reporter.reportSelf(true)
	}
}
