package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/rdmcfs/rdmcfs/internal/control/admin"
	"github.com/rdmcfs/rdmcfs/internal/exitcode"
	"github.com/rdmcfs/rdmcfs/internal/terminal"
	"github.com/rdmcfs/rdmcfs/internal/units"
)

// printJSON prints one value, indented, as every --json does.
func (a *app) printJSON(v any) error {
	raw, err := admin.Marshal(v)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := json.Indent(&b, append(raw, '\n'), "", "  "); err != nil {
		return err
	}
	_, err = b.WriteTo(a.out)
	return err
}

// printJSONLine prints one of several values.
func (a *app) printJSONLine(v any) error {
	raw, err := admin.Marshal(v)
	if err == nil {
		_, err = a.out.Write(append(raw, '\n'))
	}
	return err
}

// table prints rows in columns.
func (a *app) table(rows [][]string) {
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			format := "\t%s"
			if i == 0 {
				format = "%s"
			}
			terminal.Printf(w, format, cell)
		}
		terminal.Println(w)
	}
	w.Flush()
}

// ask runs one request within askTimeout.
func ask[Req, Resp any](a *app, f func(context.Context, Req) (Resp, error), req Req) (Resp, error) {
	ctx, cancel := context.WithTimeout(a.ctx, askTimeout)
	defer cancel()
	return f(ctx, req)
}

type whereCmd struct {
	File string `arg:"" help:"A file below a mount."`
	jsonFlag
}

// Run shows who holds a file.
func (c *whereCmd) Run(a *app) error {
	inside, err := a.inside(c.File)
	if err != nil {
		return err
	}
	w, err := ask(a, a.client.Where, admin.WhereRequest{Path: inside})
	if err != nil {
		return asTyped(c.File, inside, err)
	}
	if c.JSON {
		return a.printJSON(w)
	}
	printWhere(a, c.File, w)
	return nil
}

func printWhere(a *app, file string, w admin.Where) {
	terminal.Printf(a.out, "%s: version %d, %s, policy %s\n", file, w.Version, units.Bytes(w.SizeBytes),
		policyText(w.Policy))
	rows := [][]string{{"NODE", "NAME", "HOLDS"}}
	for _, h := range w.Holders {
		holds := "yes"
		if !h.Holds {
			holds = "no: " + h.Reason
		}
		rows = append(rows, []string{strconv.Itoa(int(h.Node)), h.Name, holds})
	}
	a.table(rows)
}

type versionsCmd struct {
	File    string `arg:"" optional:"" help:"A file below a mount, or a directory: then what was removed below it. Without it: losers of conflicts, versions that were written after their file was removed, and what was never published on this node."`
	Removed bool   `help:"List files that were removed at this path or below it, and are kept by the policy."`
	jsonFlag
}

// Run lists versions.
func (c *versionsCmd) Run(a *app) error {
	inside := ""
	var st admin.Status
	var err error
	if c.File != "" || c.Removed {
		if st, err = a.status(); err != nil {
			return err
		}
	}
	if c.File != "" {
		if inside, err = insidePath(st.Mounts, c.File); err != nil {
			return err
		}
		if inside == "" {
			inside = "/" // the mount itself is a directory; no path at all asks for other things
		}
	}
	list, err := ask(a, a.client.Versions, admin.VersionsRequest{Path: inside, Removed: c.Removed})
	if err != nil {
		return asTyped(c.File, inside, err)
	}
	removed := c.Removed || len(list) > 0 && !list[0].Removed.IsZero()
	if (removed || c.File == "") && len(list) >= admin.VersionsMost {
		terminal.Printf(a.err, "the list is cut at %d: there may be more\n", admin.VersionsMost)
	}
	if c.JSON {
		return a.printJSON(list)
	}
	if removed {
		printRemoved(a, list)
		if len(list) > 0 && st.RemovedMost > 0 {
			terminal.Printf(a.out, "They may go earlier: %d of at most %d removed files are kept in the cluster; if there are "+
				"more, those that expire first go.\n", st.RemovedKept, st.RemovedMost)
		}
		return nil
	}
	printVersions(a, c.File, list)
	return nil
}

// printRemoved lists removed files that are kept.
func printRemoved(a *app, list []admin.Version) {
	if len(list) == 0 {
		terminal.Println(a.out, "No removed files are kept. 'rdmcfs policy DIR --keep-removed DURATION' keeps them.")
		return
	}
	rows := [][]string{{"FILE", "VERSION", "SIZE", "REMOVED", "BY", "KEPT UNTIL", "CONTENT"}}
	for _, v := range list {
		by := v.RemoverName
		if by == "" {
			by = strconv.FormatUint(uint64(v.Remover), 10)
		}
		rows = append(rows, []string{v.Path, strconv.FormatUint(v.Version, 10), units.Bytes(v.SizeBytes),
			v.Removed.Local().Format(time.DateTime), by, v.Expires.Local().Format(time.DateTime), v.Content})
	}
	a.table(rows)
}

func printVersions(a *app, file string, list []admin.Version) {
	switch {
	case len(list) == 0 && file == "": // older versions of files that are there are listed by file only
		terminal.Println(a.out, "No conflict, no version that was written after its file was removed, and nothing "+
			"unpublished is kept. 'rdmcfs versions FILE' lists older versions; removed files: 'rdmcfs versions --removed'.")
		return
	case len(list) == 0:
		terminal.Println(a.out, "No versions are kept.")
		return
	}
	rows := [][]string{{"FILE", "VERSION", "STATE", "SIZE", "MODIFIED", "CONTENT", "WHY"}}
	for _, v := range list {
		rows = append(rows, []string{v.Path, strconv.FormatUint(v.Version, 10), v.State, units.Bytes(v.SizeBytes),
			v.Modified.Local().Format(time.DateTime), v.Content, v.Reason})
	}
	a.table(rows)
}

type restoreCmd struct {
	File    string `arg:"" optional:"" help:"A file below a mount."`
	Version uint64 `help:"Number of the version, as 'rdmcfs versions' lists it." xor:"which" placeholder:"N"`
	Content string `help:"Id of the content instead, also of what was never published." xor:"which" placeholder:"ID"`
	As      string `help:"Bring it back under this path below a mount." placeholder:"PATH"`
	Removed bool   `help:"Bring back a file that was removed, with its owner, mode, times and attributes: the last one of that path, or of that --version."`
	Drop    bool   `help:"Delete what was never published, or a removed file, instead. Needs --content or --removed."`
	jsonFlag
}

// misused says what is missing on the command line.
func (c *restoreCmd) misused() error {
	switch {
	case c.Removed && c.File == "" && c.Content == "":
		return withCode(exitcode.Usage, "restore: --removed needs a path or --content: see 'rdmcfs versions --removed'")
	case c.Removed:
		return nil
	case c.Version == 0 && c.Content == "":
		return withCode(exitcode.Usage, "restore: give --version or --content; 'rdmcfs versions' lists them")
	case c.File == "" && c.Content == "" || c.Drop && c.Content == "":
		return withCode(exitcode.Usage, "restore: without a file, and for --drop, --content is needed")
	}
	return nil
}

// Run restores or drops.
func (c *restoreCmd) Run(a *app) error {
	req := admin.RestoreRequest{Version: c.Version, Content: c.Content, Drop: c.Drop, Removed: c.Removed}
	if err := c.misused(); err != nil {
		return err
	}
	for _, p := range []struct {
		from string
		to   *string
	}{{c.File, &req.Path}, {c.As, &req.As}} {
		if p.from == "" {
			continue
		}
		inside, err := a.inside(p.from)
		if err != nil {
			return err
		}
		*p.to = inside
	}
	line := newCounter(a.err, "restore")
	v, err := a.client.Restore(a.ctx, req, line.show)
	line.end()
	if err != nil {
		return asTyped(c.File, req.Path, err)
	}
	if c.Drop {
		return nil
	}
	if c.JSON {
		return a.printJSON(v)
	}
	terminal.Printf(a.out, "%s is version %d now, %s.\n", v.Path, v.Version, units.Bytes(v.SizeBytes))
	if v.Displaced != 0 {
		terminal.Printf(a.out, "Version %d, which was current before, is kept: see 'rdmcfs versions'.\n", v.Displaced)
	}
	return nil
}

type policyCmd struct {
	Dir         string            `arg:"" help:"A directory below a mount."`
	All         bool              `help:"Every node holds each file." xor:"placement"`
	Copies      *uint32           `help:"So many nodes hold each file, in distinct racks first." xor:"placement" placeholder:"K"`
	Label       map[string]string `help:"The nodes with these labels hold each file." xor:"placement" placeholder:"KEY=VALUE" mapsep:","`
	Inherit     bool              `help:"Drop the directory's own policy." xor:"placement"`
	MinCopies   *uint32           `help:"close fails with fewer copies than this." placeholder:"N"`
	Ack         *string           `help:"What close waits for: members or local." enum:"members,local" placeholder:"members|local"`
	Retain      *uint32           `help:"Older versions kept of each file." placeholder:"N"`
	KeepRemoved *time.Duration    `help:"How long files that are removed from the directory are kept, such as 720h; 0: not at all." placeholder:"DURATION"`
	SendRate    *string           `help:"Most that each node sends for the directory's files, such as 50MiB a second; 0: no cap." placeholder:"BYTES"`
	Priority    *string           `help:"Which files go first on a shared link: low, normal or high." enum:"low,normal,high" placeholder:"low|normal|high"`
	Recursive   bool              `short:"r" help:"Also for the directories below. Files that are there keep theirs."`
	jsonFlag
}

// Run shows the policy, or changes what the flags say and keeps the rest.
func (c *policyCmd) Run(a *app) error {
	req, changes, err := c.request()
	if err != nil {
		return withCode(exitcode.Usage, "--send-rate: %v", err)
	}
	if c.Recursive && !changes {
		return withCode(exitcode.Usage, "-r goes with a change: say which, such as --copies 2 or --inherit")
	}
	if c.Inherit && c.settings() {
		return withCode(exitcode.Usage, "--inherit drops all of the directory's own policy: it goes alone, or with -r")
	}
	if req.Path, err = a.inside(c.Dir); err != nil {
		return err
	}
	var now admin.Policy
	if changes {
		now, err = a.client.Policy(a.ctx, req)
	} else {
		now, err = ask(a, a.client.Policy, req)
	}
	if err != nil {
		return asTyped(c.Dir, req.Path, err)
	}
	if c.JSON {
		return a.printJSON(now)
	}
	terminal.Printf(a.out, "%s: %s\n", c.Dir, policyText(now))
	return nil
}

// request is what the flags ask for, without the path, and whether that is a change. It has only what was given: each
// directory keeps its other settings.
func (c *policyCmd) request() (req admin.PolicyRequest, changes bool, err error) {
	if c.Inherit {
		return admin.PolicyRequest{Inherit: true, Recursive: c.Recursive}, true, nil
	}
	set := admin.PolicyChange{MinCopies: c.MinCopies, Retain: c.Retain, KeepRemoved: c.KeepRemoved, Priority: c.Priority}
	if c.SendRate != nil {
		rate, err := units.ParseBytes(*c.SendRate)
		if err != nil {
			return req, false, err
		}
		set.SendRate = &rate
	}
	switch {
	case c.All:
		set.Placement = "all"
	case c.Copies != nil: // 0 is refused there
		set.Placement, set.Copies = "copies", *c.Copies
	case len(c.Label) > 0:
		set.Placement, set.Labels = "labels", c.Label
	}
	if c.Ack != nil {
		local := *c.Ack == "local"
		set.AckLocal = &local
	}
	if reflect.ValueOf(set).IsZero() {
		return admin.PolicyRequest{}, false, nil
	}
	return admin.PolicyRequest{Change: &set, Recursive: c.Recursive}, true, nil
}

// settings reports whether a setting is given that --inherit would drop.
func (c *policyCmd) settings() bool {
	return c.MinCopies != nil || c.Ack != nil || c.Retain != nil || c.KeepRemoved != nil || c.SendRate != nil ||
		c.Priority != nil
}

// policyText is a policy in words.
func policyText(p admin.Policy) string {
	words := []string{"all nodes"}
	switch p.Placement {
	case "copies":
		words = []string{countText(int(p.Copies), "copy")}
		if p.Copies != 1 {
			words = []string{fmt.Sprintf("%d copies", p.Copies)}
		}
	case "labels":
		var labels []string
		for _, key := range slices.Sorted(maps.Keys(p.Labels)) {
			labels = append(labels, key+"="+p.Labels[key])
		}
		words = []string{"nodes with " + strings.Join(labels, ",")}
	}
	if p.MinCopies > 0 {
		words = append(words, fmt.Sprintf("at least %d", p.MinCopies))
	}
	if p.AckLocal {
		words = append(words, "close waits for this node only")
	}
	if p.Retain > 0 {
		words = append(words, countText(int(p.Retain), "older version")+" kept")
	}
	if p.KeepRemoved > 0 {
		words = append(words, "removed files kept for "+hoursText(p.KeepRemoved))
	}
	if p.SendRate > 0 {
		words = append(words, "each node sends at most "+units.Exact(p.SendRate)+"/s")
	}
	if p.Priority != "" {
		words = append(words, p.Priority+" priority")
	}
	text := strings.Join(words, ", ")
	if p.Unmet != "" {
		text += " (can't be met now: " + p.Unmet + ")"
	}
	return text
}

// hoursText is a time as --keep-removed takes it, without minutes and seconds that are 0.
func hoursText(d time.Duration) string {
	text := d.String()
	if d%time.Minute == 0 {
		text = strings.TrimSuffix(text, "0s")
	}
	if d%time.Hour == 0 {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

type tokenCmd struct {
	TTL     time.Duration `name:"ttl" help:"How long it is good." default:"24h"`
	Replace string        `help:"Let the joiner take the place of the lost node of this name." placeholder:"NODE"`
	jsonFlag
}

// Run makes a token.
func (c *tokenCmd) Run(a *app) error {
	if err := checkTTL(c.TTL); err != nil {
		return err
	}
	t, err := ask(a, a.client.Token, admin.TokenRequest{TTL: c.TTL, Replace: c.Replace})
	if err != nil {
		return err
	}
	if c.JSON {
		return a.printJSON(t)
	}
	if c.Replace != "" {
		terminal.Printf(a.out, "  rdmcfs join %s --token %s --replace --name %s --listen HOST:PORT\n", t.Listen, t.Token,
			c.Replace)
		return nil
	}
	a.printJoinLine(t)
	return nil
}

type evictCmd struct {
	Node   string `arg:"" help:"Number or name of the node."`
	Reason string `help:"For the others to read." default:"by command"`
	Lose   bool   `help:"Go on although the node has the last copy of files, or unpublished ones, and lose them."`
}

// Run removes a node.
func (c *evictCmd) Run(a *app) error {
	st, err := a.status()
	if err != nil {
		return err
	}
	id, err := findNode(st.Nodes, c.Node)
	if err != nil {
		return err
	}
	// its waits are bounded by the daemon
	res, err := a.client.Evict(a.ctx, admin.EvictRequest{Node: id, Reason: c.Reason, Lose: c.Lose})
	if err == nil && res.Notice != "" {
		terminal.Println(a.err, res.Notice)
	}
	return err
}

// findNode finds a node by number or name.
func findNode(nodes []admin.Node, word string) (uint32, error) {
	for _, n := range nodes {
		if n.Name == word || strconv.FormatUint(uint64(n.ID), 10) == word {
			return n.ID, nil
		}
	}
	return 0, withCode(exitcode.NotFound, "no node %q: 'rdmcfs status' lists them", word)
}

type waitCmd struct {
	Path    string        `arg:"" optional:"" help:"Wait for this file only, below a mount."`
	Node    []string      `help:"Wait for this node only, by number or name; can be repeated." placeholder:"NODE"`
	Timeout time.Duration `help:"Give up after this time; 0 waits for ever." default:"0"`
	jsonFlag
}

// Run waits until nothing is owed.
func (c *waitCmd) Run(a *app) error {
	if c.Timeout < 0 {
		return withCode(exitcode.Usage, "wait: --timeout=%v: want 0 (for ever) or more", c.Timeout)
	}
	st, err := a.status()
	if err != nil {
		return err
	}
	req := admin.WaitRequest{Timeout: c.Timeout}
	if c.Path != "" {
		if req.Path, err = insidePath(st.Mounts, c.Path); err != nil {
			return err
		}
	}
	for _, word := range c.Node {
		id, err := findNode(st.Nodes, word)
		if err != nil {
			return err
		}
		req.Nodes = append(req.Nodes, id)
	}
	res, err := a.client.Wait(a.ctx, req)
	if err != nil {
		return asTyped(c.Path, req.Path, err)
	}
	if c.JSON {
		err = a.printJSON(res)
	}
	if res.Lost > 0 {
		terminal.Printf(a.err, "no node has the bytes of %s any more; these are not waited for: see 'rdmcfs status'\n",
			countText(res.Lost, "content"))
	}
	if res.Done || err != nil {
		return err
	}
	for _, n := range res.Nodes {
		terminal.Printf(a.err, "%s is owed %s (%s): %s\n", n.Name, countText(n.OwedCount, "content"),
			units.Bytes(n.OwedBytes), n.OwedReason)
	}
	return withCode(exitcode.Timeout, "not delivered within %v", c.Timeout)
}

type auditCmd struct{ jsonFlag }

// Run prints the audit trail.
func (c *auditCmd) Run(a *app) error {
	rows, err := ask(a, func(ctx context.Context, _ struct{}) ([]admin.AuditRow, error) { return a.client.Audit(ctx) },
		struct{}{})
	if err != nil {
		return err
	}
	if c.JSON {
		return a.printJSON(rows)
	}
	table := [][]string{{"TIME", "NODE", "USER", "COMMAND", "OUTCOME"}}
	for _, r := range rows {
		table = append(table, []string{r.Time.Local().Format(time.DateTime), r.NodeName, userText(r.UID, r.Login), r.Command,
			auditOutcome(r)})
	}
	a.table(table)
	return nil
}

// userText is whose command it was: a login, and as whom it ran.
func userText(uid, login *uint32) string {
	switch {
	case uid == nil:
		return "-"
	case login == nil || *login == *uid:
		return fmt.Sprint(*uid)
	}
	return fmt.Sprintf("%d as %d", *login, *uid)
}

func auditOutcome(r admin.AuditRow) string {
	switch {
	case !r.Ended:
		return "not ended"
	case r.Error == "":
		return "done"
	}
	return r.Error
}
