package main

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/exitcode"
	"github.com/rdmcfs/rdmcfs/internal/format"
	"github.com/rdmcfs/rdmcfs/internal/node"
	"github.com/rdmcfs/rdmcfs/internal/tools/demo"
	"github.com/rdmcfs/rdmcfs/meta"
)

// This file is the only place where commands meet internal/node. The functions are variables so that tests of the
// command line need no node.

// initParams is what init asks for.
type initParams struct {
	Data      string
	Listen    string
	Advertise string
	Name      string
	Labels    map[string]string
	TokenTTL  time.Duration
	HTTP      string // to be bound, "" for nothing
	Fabric    node.Fabric
}

// joinParams is what join asks for.
type joinParams struct {
	Data      string
	Addr      string // of a member
	Token     string
	Listen    string
	Advertise string
	Name      string
	Labels    map[string]string
	Replace   bool
	HTTP      string // as in initParams
	Fabric    node.Fabric
}

// runParams is what the daemon runs with.
type runParams struct {
	Data   string
	Mounts []admin.MountRequest // made before the node is ready
	Fabric node.Fabric
	HTTP   node.HTTP
	Log    *slog.Logger
}

// nodeInit makes the data directory of a new cluster's first node and its first join token. It starts nothing.
var nodeInit = func(_ context.Context, p initParams) (admin.Token, error) {
	return node.Init(node.InitConfig{DataDir: p.Data, Listen: p.Listen, Advertise: p.Advertise, Name: p.Name,
		Labels: p.Labels, TokenTTL: p.TokenTTL, HTTP: p.HTTP, Fabric: p.Fabric})
}

// nodeJoin asks a member to take this machine in and makes the data directory. It starts nothing. It returns
// the node's name.
var nodeJoin = func(ctx context.Context, p joinParams) (string, error) {
	return node.Join(ctx, node.JoinConfig{DataDir: p.Data, Version: versionString(), Seed: p.Addr, Token: p.Token,
		Listen: p.Listen, Advertise: p.Advertise, Name: p.Name, Labels: p.Labels, Replace: p.Replace, HTTP: p.HTTP,
		Fabric: p.Fabric})
}

// nodeRun runs the node until the context ends, then unmounts and returns nil.
var nodeRun = func(ctx context.Context, p runParams) error {
	return node.Run(ctx, node.Config{DataDir: p.Data, Version: versionString(), Mounts: p.Mounts, Fabric: p.Fabric,
		HTTP: p.HTTP, Log: p.Log, CrashAt: os.Getenv(crashEnv)})
}

// crashEnv names the labelled point at which a daemon kills itself, for tests (docs/TESTING.md).
const crashEnv = "RDMCFS_CRASH_AT"

// policyWords is a policy as a request has it.
var policyWords = node.PolicyWords

// nodeErrors gives the exit codes of the errors of internal/node and internal/tools/demo.
var nodeErrors = []errorCode{
	{node.ErrNotMember, exitcode.NotFound},
	{node.ErrMember, exitcode.Exists},
	{node.ErrForeignFiles, exitcode.Exists},
	{node.ErrInUse, exitcode.Exists},
	{node.ErrPortInUse, exitcode.Exists},
	{node.ErrOnMount, exitcode.Usage},
	{admin.ErrLongPath, exitcode.Usage},
	{node.ErrStoreReplaced, exitcode.Denied},
	{node.ErrEvicted, exitcode.Denied},
	{node.ErrCloned, exitcode.Denied},
	{format.ErrUnknown, exitcode.Denied},
	{format.ErrPeer, exitcode.Unavailable},
	{node.ErrFabric, exitcode.Problem},
	{meta.ErrNoSpace, exitcode.Full},
	{demo.ErrDiffers, exitcode.Differs},
	{demo.ErrUsage, exitcode.Usage},
}
