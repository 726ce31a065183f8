// Package fstest is a cluster in one process for tests of the file system: the real namespace and real content
// stores, without a log, a network or replication.
//
//	c := fstest.New(t, 2)              // two nodes
//	mnt := c.Node(1).Mount(t, nil)     // a real kernel mount, unmounted at the end of the test
//
// All nodes share one namespace. An operation is applied to it and then shown to every mount before it is answered,
// as the barrier of a real cluster does it. A published content lies in its writer's store only; the others read it
// from there.
package fstest
