package node

import (
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/rdmcfs/rdmcfs/internal/content"
	"github.com/rdmcfs/rdmcfs/meta"
	"github.com/rdmcfs/rdmcfs/replicate"
	"github.com/rdmcfs/rdmcfs/replicate/rdmc"
)

// gauges are the parts of a node that are measured.
type gauges struct {
	db      *meta.DB
	store   *content.Store
	staging *staging
	raft    *lateRaft
	repl    *replicate.Replicator
	memory  *rdmc.Memory
	devices *devices
	nodes   *nodeReport
	removed removedLook
}

// metric is one counter or gauge without labels, read on each scrape.
type metric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	read func(*gauges) float64
}

func counter(name, help string, read func(*gauges) float64) metric {
	return metric{prometheus.NewDesc("rdmcfs_"+name+"_total", help, nil, nil), prometheus.CounterValue, read}
}

func gauge(name, help string, read func(*gauges) float64) metric {
	return metric{prometheus.NewDesc("rdmcfs_"+name, help, nil, nil), prometheus.GaugeValue, read}
}

var metrics = []metric{
	counter("pushes", "Files that were pushed from here.", func(g *gauges) float64 {
		return float64(g.repl.Counters().Pushes)
	}),
	counter("published", "Pushes that became a version.", func(g *gauges) float64 {
		return float64(g.repl.Counters().Published)
	}),
	counter("push_failures", "Pushes that did not.", func(g *gauges) float64 {
		return float64(g.repl.Counters().Failures)
	}),
	counter("published_bytes", "Bytes of the versions published from here.", func(g *gauges) float64 {
		return float64(g.repl.Counters().PublishedBytes)
	}),
	counter("epochs", "Sessions that went on without a failed member.", func(g *gauges) float64 {
		return float64(g.repl.Counters().Epochs)
	}),
	counter("ejected", "Members that left a session before their vote.", func(g *gauges) float64 {
		return float64(g.repl.Counters().Ejected)
	}),
	counter("caught_up", "Contents that were pushed from here to nodes they were owed to.", func(g *gauges) float64 {
		return float64(g.repl.Counters().CaughtUp)
	}),
	counter("caught_up_bytes", "Bytes of these.", func(g *gauges) float64 {
		return float64(g.repl.Counters().CaughtUpBytes)
	}),
	counter("remote_reads", "Blocks fetched from other nodes for readers here.", func(g *gauges) float64 {
		return float64(g.repl.Counters().RemoteReads)
	}),
	counter("damaged", "Contents found damaged here.", func(g *gauges) float64 {
		return float64(g.repl.Counters().Damaged)
	}),
	counter("mended", "Damaged contents that were made good.", func(g *gauges) float64 {
		return float64(g.repl.Counters().Mended)
	}),
	gauge("damaged_contents", "Contents that failed a check here and are not mended yet.", func(g *gauges) float64 {
		return float64(len(g.store.Damaged()))
	}),
	gauge("applied_index", "Last log entry applied here.", func(g *gauges) float64 { return float64(g.db.Index()) }),
	gauge("commit_index", "Last log entry known to be committed.", func(g *gauges) float64 {
		return float64(g.raft.status().Commit)
	}),
	gauge("quorum", "1 while a quorum of voters answers.", func(g *gauges) float64 {
		return truth(!g.raft.status().NoQuorum)
	}),
	gauge("leader", "1 on the leader.", func(g *gauges) float64 { return truth(g.raft.isLeader()) }),
	gauge("registered_bytes", "Registered memory that transfers reserve now.", func(g *gauges) float64 {
		return float64(g.memory.Used())
	}),
	gauge("registered_peak_bytes", "The most of it at a time.", func(g *gauges) float64 {
		return float64(g.memory.Peak())
	}),
	gauge("control_rings", "Connections of control that go over RDMA.", func(g *gauges) float64 {
		return float64(g.devices.overRings())
	}),
	gauge("transfers", "Pushes that run now.", func(g *gauges) float64 { return float64(len(g.repl.Transfers())) }),
	gauge("unpublished", "Staged files that nobody published.", func(g *gauges) float64 {
		return float64(len(g.staging.unused()))
	}),
	gauge("files", "Files in the name space.", func(g *gauges) float64 {
		files, _ := g.db.StatFS()
		return float64(files)
	}),
	gauge("removed_files", "Removed files that are kept in the cluster.", func(g *gauges) float64 {
		return float64(meta.Removals{DB: g.db}.Count())
	}),
	gauge("removed_bytes", "Bytes of these.", func(g *gauges) float64 { return g.removed.of(g.db) }),
	gauge("disk_free_bytes", "Free bytes under the data directory.", func(g *gauges) float64 {
		return float64(spaceOf(g.store, g.db).FreeBytes)
	}),
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// collector reads the counters of the parts when it is asked, so that counting costs an atomic add.
type collector struct {
	*gauges
	took *prometheus.Desc
	owed *prometheus.Desc
	up   *prometheus.Desc
}

func newCollector(g *gauges) *collector {
	return &collector{
		gauges: g,
		took: prometheus.NewDesc("rdmcfs_push_seconds_total", "Time that pushes from here took, by phase.", []string{"phase"},
			nil),
		owed: prometheus.NewDesc("rdmcfs_owed_contents", "Contents owed to a node.", []string{"node", "name"}, nil),
		up:   prometheus.NewDesc("rdmcfs_node_up", "1 for nodes that the log holds up.", []string{"node", "name"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, m := range metrics {
		out <- m.desc
	}
	out <- c.took
	out <- c.owed
	out <- c.up
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	for _, m := range metrics {
		out <- prometheus.MustNewConstMetric(m.desc, m.kind, m.read(c.gauges))
	}
	for phase, took := range c.repl.PhaseTimes() {
		out <- prometheus.MustNewConstMetric(c.took, prometheus.CounterValue, took.Seconds(), string(phase))
	}
	nodes, err := c.nodes.list(c.raft.status())
	if err != nil {
		out <- prometheus.NewInvalidMetric(c.owed, err)
		return
	}
	for _, line := range nodes {
		id := strconv.FormatUint(uint64(line.ID), 10)
		out <- prometheus.MustNewConstMetric(c.owed, prometheus.GaugeValue, float64(line.OwedCount), id, line.Name)
		out <- prometheus.MustNewConstMetric(c.up, prometheus.GaugeValue, truth(line.State == "up"), id, line.Name)
	}
}

// metricsHandler answers scrapes in Prometheus' text format.
func metricsHandler(g *gauges) http.Handler {
	reg := prometheus.NewRegistry()
	reg.MustRegister(newCollector(g), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(reg, promhttp.HandlerOpts{})
}
