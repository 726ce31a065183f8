package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/rdmcfs/rdmcfs/fs"
	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/meta"
)

// mountOptionWords are the -o options of a mount that are passed to it.
var mountOptionWords = map[string]func(*fs.Options){
	"nopassthrough": func(o *fs.Options) { o.NoPassthrough = true },
	"acl":           func(o *fs.Options) { o.ACL = true },
	"follow":        func(o *fs.Options) { o.Follow = true },
	"nonempty":      func(o *fs.Options) { o.NonEmpty = true },
	"debug":         func(o *fs.Options) { o.Debug = true },
}

// lockWords are the values of the option locks.
var lockWords = map[string]bool{"node": false, "cluster": true}

// mounts are the mount points of this node.
type mounts struct {
	life     *lifetime
	common   fs.Options // what all of them have
	log      *slog.Logger
	siblings fs.Siblings // what they know of each other

	mu    sync.Mutex
	byDir map[string]*mountPoint
	// fsLock orders Apply with the coming of new mounts: a mount sees every entry after the state it began with.
	fsLock   sync.RWMutex
	applying sync.Mutex // one batch of effects at a time
}

// mountPoint is one mount; m is nil while it is being made.
type mountPoint struct {
	dir   string
	m     atomic.Pointer[fs.Mount]
	ended chan struct{} // closed when the mount has ended
	ends  atomic.Bool   // by this node
}

// newMounts makes mounts with the options that are common to them.
func newMounts(life *lifetime, common fs.Options) *mounts {
	return &mounts{life: life, common: common, log: common.Log, byDir: map[string]*mountPoint{}}
}

// mount makes a mount and returns when it answers.
func (s *mounts) mount(ctx context.Context, req admin.MountRequest) (admin.Mount, error) {
	opts, err := s.options(req)
	if err != nil {
		return admin.Mount{}, err
	}
	p := &mountPoint{dir: filepath.Clean(req.Dir), ended: make(chan struct{})}
	if err := s.reserve(p); err != nil {
		return admin.Mount{}, err
	}
	if err = fs.CheckMountPoint(opts); err == nil { // it may hang, on what others have mounted there: not under the lock
		s.fsLock.Lock() // no entry is applied between the first look at the state and the first Apply
		var m *fs.Mount
		if m, err = fs.NewMount(s.life.ctx, opts); err == nil {
			p.m.Store(m)
		}
		s.fsLock.Unlock()
	}
	if err != nil {
		s.remove(p)
		return admin.Mount{}, mountError(err)
	}
	s.life.tasks.Go(func() { s.follow(p) })
	return p.status(), nil
}

func (s *mounts) options(req admin.MountRequest) (fs.Options, error) {
	o := s.common
	o.Dir, o.Siblings, o.Source = req.Dir, &s.siblings, req.Source
	if !filepath.IsAbs(req.Dir) {
		return o, admin.Errorf(admin.CodeInvalid, "mount point %q: want an absolute path", req.Dir)
	}
	for word, value := range req.Options {
		if shared, known := lockWords[value]; word == "locks" && known {
			o.ClusterLocks = shared
			continue
		}
		set, known := mountOptionWords[word]
		if !known || value != "" {
			return o, admin.Errorf(admin.CodeInvalid,
				"mount option %q is not known: there are locks=node, locks=cluster, nopassthrough, acl, follow, nonempty, debug",
				word)
		}
		set(&o)
	}
	for _, word := range req.Flags {
		if !o.Flags.Add(word) {
			return o, admin.Errorf(admin.CodeInvalid, "mount flag %q is not known", word)
		}
	}
	if o.Follow && o.Flags.Writable() {
		return o, admin.Errorf(admin.CodeInvalid,
			"a mount with follow is read-only: leave out rw, and write by a mount without follow")
	}
	return o, nil
}

// mountError gives errors about the mount point the code of wrong usage.
func mountError(err error) error {
	if errors.Is(err, fs.ErrMountPointInUse) {
		return admin.Errorf(admin.CodeExists, "%v", err)
	}
	for _, usage := range []error{fs.ErrMountPointMissing, fs.ErrMountPointNotDir, fs.ErrMountPointNotEmpty,
		fs.ErrDataOnMount, fs.ErrOtherLocks} {
		if errors.Is(err, usage) {
			return admin.Errorf(admin.CodeInvalid, "%v", err)
		}
	}
	return err
}

func (s *mounts) reserve(p *mountPoint) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byDir[p.dir] != nil {
		return admin.Errorf(admin.CodeExists, "%s is mounted already", p.dir)
	}
	s.byDir[p.dir] = p
	return nil
}

func (s *mounts) remove(p *mountPoint) {
	s.mu.Lock()
	delete(s.byDir, p.dir)
	s.mu.Unlock()
	close(p.ended)
}

// follow cleans up after a mount that ended, whatever ended it.
func (s *mounts) follow(p *mountPoint) {
	m := p.m.Load()
	<-m.Done()
	if !p.ends.Load() {
		s.log.Warn("unmounted by another program", "dir", p.dir)
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := m.Unmount(ctx); err != nil {
		s.log.Warn("end of mount", "dir", p.dir, "err", err)
	}
	s.remove(p)
}

func (p *mountPoint) status() admin.Mount {
	st := admin.Mount{Dir: p.dir, State: "mounting"}
	if m := p.m.Load(); m != nil {
		st.State = "mounted"
		if p.ends.Load() {
			st.State = "unmounting"
		}
		st.Passthrough, _ = m.Passthrough()
		st.ReadOnly = m.ReadOnly()
	}
	return st
}

// list is what status shows.
func (s *mounts) list() []admin.Mount {
	var out []admin.Mount
	for _, p := range s.all() {
		out = append(out, p.status())
	}
	return out
}

// all copies the mount points, by directory.
func (s *mounts) all() []*mountPoint {
	s.fsLock.RLock()
	defer s.fsLock.RUnlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*mountPoint, 0, len(s.byDir))
	for _, p := range s.byDir {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *mountPoint) int { return strings.Compare(a.dir, b.dir) })
	return out
}

// apply shows the effects of applied entries, and of changes of pending files, in all mounts.
func (s *mounts) apply(events []meta.Event) {
	s.applying.Lock()
	defer s.applying.Unlock()
	for _, p := range s.all() {
		if m := p.m.Load(); m != nil {
			m.Apply(events)
		}
	}
	s.siblings.Apply(events)
}

// dropCaches is for a state that was replaced as a whole.
func (s *mounts) dropCaches() {
	for _, p := range s.all() {
		if m := p.m.Load(); m != nil {
			m.DropCaches()
		}
	}
	s.siblings.Restored()
}

// unmount ends one mount, or all when dir is empty. A mount in use stays, unless lazy.
func (s *mounts) unmount(ctx context.Context, req admin.UnmountRequest) error {
	var errs error
	found := false
	for _, p := range s.all() {
		if p.m.Load() == nil || req.Dir != "" && p.dir != filepath.Clean(req.Dir) {
			continue
		}
		found = true
		errs = errors.Join(errs, s.end(ctx, p, req.Lazy))
	}
	if !found && req.Dir != "" {
		return admin.Errorf(admin.CodeNotFound, "%s is not mounted by this node", req.Dir)
	}
	return errs
}

func (s *mounts) end(ctx context.Context, p *mountPoint, lazy bool) error {
	end := p.m.Load().Unmount
	if lazy {
		end = p.m.Load().Detach
	}
	var busy *fs.BusyError
	p.ends.Store(true)
	if err := end(ctx); errors.As(err, &busy) {
		p.ends.Store(false)
		return admin.Errorf(admin.CodeBusy, "%v", err)
	} else if err != nil {
		return err
	}
	return p.awaitEnd(ctx)
}

// awaitEnd waits for the end of a mount. It is no error if the mount has ended, even if its daemon ends with it and
// the call fails because of that.
func (p *mountPoint) awaitEnd(ctx context.Context) error {
	select {
	case <-p.ended:
		return nil
	case <-ctx.Done():
	}
	select {
	case <-p.ended:
		return nil
	default:
		return fmt.Errorf("node: unmount %s: %w", p.dir, ctx.Err())
	}
}

// wait returns when a mount has ended.
func (s *mounts) wait(ctx context.Context, dir string) error {
	for _, p := range s.all() {
		if p.dir != filepath.Clean(dir) {
			continue
		}
		select {
		case <-p.ended:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return admin.Errorf(admin.CodeNotFound, "%s is not mounted by this node", dir)
}

// closeAll ends all mounts at the end of the node: those in use are detached.
func (s *mounts) closeAll(ctx context.Context) error {
	defer s.siblings.Close()
	var errs error
	for _, p := range s.all() {
		if p.m.Load() == nil {
			continue
		}
		if err := s.end(ctx, p, false); err != nil {
			s.log.Warn("unmount", "dir", p.dir, "err", err)
			errs = errors.Join(errs, s.end(ctx, p, true))
		}
	}
	return errs
}

// passthrough is what status says about it.
func (s *mounts) passthrough() admin.Feature {
	f := admin.Feature{Why: "nothing is mounted"}
	for _, p := range s.all() {
		m := p.m.Load()
		if m == nil {
			continue
		}
		if f.On, f.Why = m.Passthrough(); !f.On {
			f.Cost = "every read and write goes through the daemon: about a third of the speed for large ones, a tenth for " +
				"small ones"
			return f
		}
	}
	return f
}
