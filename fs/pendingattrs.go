package fs

import (
	"maps"
	"slices"

	"github.com/rdmcfs/rdmcfs/meta"
)

// pendingAttrs are the changes of attributes of a live file that are not in the log. They ride in the next publish.
// Protected by live.mu.
type pendingAttrs struct {
	waiting meta.AttrPatch // rides in the next publish
	riding  meta.AttrPatch // rides in the one under way
	crowded bool           // more wait than one entry of the log holds
}

// any reports whether attributes wait for a publish.
func (a *pendingAttrs) any() bool { return !isEmpty(a.waiting) }

// add adds a newer change to the waiting ones.
func (a *pendingAttrs) add(patch meta.AttrPatch) { a.waiting = mergePatch(a.waiting, patch) }

// board returns the attributes that ride in the publish that begins.
func (a *pendingAttrs) board() meta.AttrPatch {
	a.riding, a.waiting = a.waiting, meta.AttrPatch{}
	return a.riding
}

// arrived ends what board began: they are in the log, or wait again.
func (a *pendingAttrs) arrived(ok bool) {
	if !ok {
		a.waiting = mergePatch(a.riding, a.waiting)
	}
	a.riding = meta.AttrPatch{}
}

// shown is what was changed and is not in the log, as far as this node knows.
func (a *pendingAttrs) shown() meta.AttrPatch { return mergePatch(a.riding, a.waiting) }

// fit reports whether a patch may wait with the others, and notes if not.
func (a *pendingAttrs) fit(patch meta.AttrPatch) bool {
	fits := xattrBytes(a.shown())+xattrBytes(patch) <= attrBytesMax
	a.crowded = a.crowded || !fits
	return fits
}

// takeCrowded reports whether some did not fit since the last call.
func (a *pendingAttrs) takeCrowded() bool {
	crowded := a.crowded
	a.crowded = false
	return crowded
}

// pendingAttr reports whether attributes of a live file wait for a publish.
func (l *live) pendingAttr() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.attrs.any()
}

// attrBytesMax bounds what waits for one publish: an entry of the log has to hold it.
const attrBytesMax = 512 << 10

func xattrBytes(p meta.AttrPatch) (n int) {
	for name, value := range p.SetXattr {
		n += len(name) + len(value)
	}
	return n
}

func isEmpty(p meta.AttrPatch) bool {
	return p.Mask == 0 && len(p.SetXattr) == 0 && len(p.DelXattr) == 0
}

// mergePatch is older changed by newer.
func mergePatch(older, newer meta.AttrPatch) meta.AttrPatch {
	out := older
	if newer.Mask&meta.AttrKillPriv != 0 && older.Mask&meta.AttrMode != 0 {
		out.Mode = killPriv(older.Mode) // clears what was set before it
	}
	out.Mask |= newer.Mask
	if newer.Mask&meta.AttrMode != 0 {
		out.Mode = newer.Mode
	}
	if newer.Mask&meta.AttrUID != 0 {
		out.UID = newer.UID
	}
	if newer.Mask&meta.AttrGID != 0 {
		out.GID = newer.GID
	}
	if newer.Mask&meta.AttrAtime != 0 {
		out.Atime = newer.Atime
	}
	if newer.Mask&meta.AttrMtime != 0 {
		out.Mtime = newer.Mtime
	}
	out.Ctime = max(older.Ctime, newer.Ctime)
	return mergeXattrs(out, newer)
}

func mergeXattrs(out, newer meta.AttrPatch) meta.AttrPatch {
	if len(newer.SetXattr) == 0 && len(newer.DelXattr) == 0 {
		return out
	}
	out.SetXattr = maps.Clone(out.SetXattr)
	if out.SetXattr == nil {
		out.SetXattr = map[string][]byte{}
	}
	out.DelXattr = slices.Clone(out.DelXattr)
	for name, value := range newer.SetXattr {
		out.SetXattr[name] = value
		out.DelXattr = slices.DeleteFunc(out.DelXattr, func(s string) bool { return s == name })
	}
	for _, name := range newer.DelXattr {
		delete(out.SetXattr, name)
		if !slices.Contains(out.DelXattr, name) {
			out.DelXattr = append(out.DelXattr, name)
		}
	}
	return out
}
