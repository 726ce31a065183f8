// Package fs is the FUSE side of rdmcfs: names and versions as a mounted file system, and the staging of writes.
//
// # Concepts
//
// The namespace is not kept here: every lookup reads the applied state of this node ([Cluster.Names]), every change is
// proposed to the log ([Cluster.Propose]). What this package keeps is what the kernel holds on to: a node (FUSE nodeid)
// for each inode it looked up, and the bytes that open files share.
//
// A node of a regular file is in one of three states:
//
//		          open(read)                      open(write)
//		reading <------------- idle ------------------------------> live
//		   |                    ^ ^                                   |
//		   |---- last close ----+ +--- last close, all published -----|
//		   +------------------------ open(write) -------------------->+
//
//	  - idle: nothing is open; attributes come from the log's state.
//	  - reading: all handles read one committed version, pinned until the last of them is closed.
//	  - live: somebody may write. All handles of this node, readers too, share one staged file and its page cache.
//	    FLUSH and FSYNC publish a snapshot of it.
//
// Programs of this node share a file: when a reading node becomes live, its handles read the staged file from then on
// (prepareTaken). A commit of another member never changes the bytes under an open handle. If one arrives while nobody
// may write, or if a reading node can't become live, the node is detached: its handles go on with what they have, and
// the next lookup makes a new node with the same inode number. An open by the old node gets ESTALE, so the kernel looks
// the name up again. An open of a descriptor (/proc/self/fd) has no name to look up: it returns at once, and reads what
// the descriptor reads.
//
// Nodeids are made of inode numbers, so that a file is found by its handle (name_to_handle_at) when its node has been
// forgotten (handleID).
//
// On a mount that follows (following), a file that is open is neither: it reads the newest version, and changes to the
// next one. It is never live and never detached.
//
// A publish takes the file as it was when the publish began. Writes since then may or may not be in it. Before bytes
// of a live file are cut off, the publishes that need them read them (stageReads).
//
// # Types
//
// A request comes to fileSystem, which has one method for each request and little else. Each type knows only the types
// below it. Two calls go up, and are fields: reservations.renew and publisher.done.
//
//	fileSystem                      requests of the kernel
//	  retries, attributes           opens that come again after ESTALE; what stat and getxattr show
//	    openFiles                   handles, and the versions and live files behind them
//	      following                 open files that change to each new version
//	      publisher                 from live files to the log
//	        reservations            names that have no version yet
//	          namespace             reads and changes of the log's names, which changes are our own, and the barrier
//	  applier                       from the log to nodes and caches
//	    kernelCache                 what the kernel may cache of names and attributes
//	      nodeTable                 what the kernel knows by its nodeids
//	  passthrough, lifetime         the kernel's own reads and writes; when the mount's work ends
//	  Siblings                      what the mounts of a node share: names without a version, and locks of files
//
// # Caches
//
// The kernel caches names and attributes without limit of time. [Mount.Apply] gets every applied entry before it
// counts as visible, and drops what the entry changes: all names at once by a new epoch (FUSE_NOTIFY_INC_EPOCH,
// which takes no lock), attributes by inode. Kernels without epochs get no name caching at all.
//
// # Lock order
//
// retries.mu or fileLocks.mu, then nodeTable.mu, then live.mu; stageReads.mu alone. None is held during Propose,
// Publish, disk calls or notifications to the kernel. Handlers notify the kernel only through kernelCache's queue.
package fs
