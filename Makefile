# To begin with: make demo, make check, make test. The rest is in docs/TESTING.md.
GO ?= go
RDMCFS = bin/rdmcfs
# All packages except those with a target of their own, the slowest first: they take as long as many others.
UNIT = ./fs ./replicate ./meta ./internal/node ./replicate/rdmc ./rdma/mixed $(shell $(GO) list ./... | grep -v -e /test/ -e /test/detsim$$ -e /test/tidy$$) ./test/bench/peers ./test/bench/multicast ./test/bench/links ./test/bench/faults/...

.PHONY: release mutants build demo check check-unit setup test test-models test-unit test-whole test-schedule test-detsim test-integration test-rdma rdma-binaries test-rdma-devices test-packages test-long bench bench-peers bench-multicast bench-faults bench-idle lint clean

build:
	CGO_ENABLED=0 $(GO) build -trimpath -o $(RDMCFS) ./cmd/rdmcfs

# Four nodes on this machine, a file copied in on one, read back on all. FILE=path, ONCE=1, NODES=n.
demo: build
	$(RDMCFS) demo $(if $(FILE),--file "$(FILE)") $(if $(NODES),--nodes $(NODES)) $(if $(ONCE),--once)

# While you work: everything that is quick, and one cluster with real mounts.
check: build
	$(MAKE) --no-print-directory -j2 --output-sync=target lint check-unit
	$(GO) test -vet=off -count=1 -timeout 5m ./test/integration -run 'TestCopyIsEverywhereWhenCpReturns$$'

check-unit: setup
	$(GO) test -vet=off -short -p 5 -timeout 10m $(UNIT)

# Everything that guards a guarantee. docs/TESTING.md says how long each part takes, and why. Real nodes judge each other by time: nothing
# runs beside them but what only computes, and that takes the time that they leave.
TOGETHER = $(MAKE) --no-print-directory --output-sync=target -j3
test: build lint
	$(TOGETHER) test-unit test-whole
	$(TOGETHER) test-integration test-detsim rdma-binaries
	$(TOGETHER) test-rdma test-schedule

# The Debian packages that tests use.
setup:
	test/setup.sh test

test-models: test-schedule test-detsim

IDLE = $(if $(shell command -v chrt),chrt --idle 0)

lint:
	$(GO) vet ./...
	$(GO) test ./test/tidy ./test/mutants

# Tests of one goroutine: cores and models by themselves. The race detector would find nothing in them and make them ten times slower.
ALONE = ^Test(Sim|ModelCheck)

# With the race detector, at small sizes. Schedules have no concurrency. Many tests wait for connections and timers: hence two packages at a
# time, beside two of test-whole.
# go vet is lint's. The detector would make each process wait for a second when it ends: one for each child of a test. Tests leave no
# goroutines behind that it would wait for.
test-unit: export GORACE = atexit_sleep_ms=10
test-unit: setup
	$(GO) test -vet=off -race -short -p 2 -timeout 20m -skip '$(ALONE)' $(filter-out %/replicate/schedule,$(UNIT))

# What has a larger size, or is left out above, and allocations, which the race detector adds to. No test of one size is run twice.
test-whole: setup
	GO="$(GO)" test/whole.sh '$(ALONE)' -vet=off -p 2 -timeout 20m
	$(GO) test -run 'TestNoAllocationPerMessage|TestConformance.*//Cost' ./rdma/mem ./rdma/tcp ./rdma/mixed ./rdma/ring

# All tests of schedules, with all sizes that they promise: no race detector, since they have no concurrency.
test-schedule:
	$(IDLE) $(GO) test -vet=off -timeout 3h ./replicate/schedule -exhaustive

# Whole daemons in virtual time, a process for each seed; the first time the standard library is built for it. SEEDS=n, FROM=s.
test-detsim:
	$(IDLE) $(GO) test -vet=off -timeout 3h ./test/detsim -args -sim.seeds $(or $(SEEDS),500) $(if $(FROM),-sim.from $(FROM))

# What is run again as in a container, where the kernel may not pass reads and writes through.
WITHOUT = TestCopyOf|TestReceiverDies|TestWriter|TestGit|TestTar|TestGoBuild|TestEditors|TestSqlite|TestShells|TestScript|TestDatabases

# Four at a time of the tests that bound no time: they wait for processes, links and timers.
test-integration: build setup
	$(GO) test -vet=off -count=1 -timeout 40m -p 1 -parallel 4 ./test/integration/...
	$(GO) test -vet=off -count=1 -timeout 15m -p 1 -parallel 4 ./test/integration -no-passthrough -run '$(WITHOUT)'

# On a software RDMA device in VMs, one part after the other: the fabric, the rings and the multicast over libibverbs, a cluster with
# real mounts, and two machines of both kernels on a wire that is recorded. test-long has the first part on the other kernel.
# Golden bytes are files of the tree, which the VM does not have; test-unit compares them.
KERNELS = 6.12
OF_GROUPS = CloseMeansDelivered|TestConnect|MemberAborts|EachAlgorithm|QueuedMessages|SinkError|SourceError|StoppedMember
test-rdma: build test-rdma-devices
	RDMCFS_TEST_DIR=/scratch test/vm/run.sh -k 6.12 -t 2400 -m 3072 -e RDMCFS_TEST_DIR bin/vm.test -test.v -test.run 'TestBench|TestCluster'
	bin/vm.test -test.v -test.run 'TestWire$$|TestFlow|TestPackets' -wire

rdma-binaries:
	for p in rdma/verbs rdma/mixed rdma/ring lab/pin replicate/rdmc test/vm; do \
		CGO_ENABLED=0 $(IDLE) $(GO) test -c -o bin/$${p##*/}.test ./$$p || exit 1; \
	done

test-rdma-devices: rdma-binaries
	for k in $(KERNELS); do \
		test/vm/run.sh -k $$k -t 1200 bin/verbs.test -test.skip Golden : bin/mixed.test -test.run TestVerbs : bin/ring.test -test.run ./verbs -test.skip Golden : bin/pin.test -test.run ./verbs : \
			bin/rdmc.test -test.run '$(OF_GROUPS)' || exit 1; \
	done

# The packages: lintian and the other tools that know, and use as by a user. About a minute.
test-packages:
	test/setup.sh packages
	packaging/check.sh

# The full sizes of docs/TESTING.md.
test-long: build setup
	$(MAKE) --no-print-directory test-rdma-devices KERNELS=6.1
	$(GO) test -count=1 -timeout 120m -p 1 -parallel 1 ./test/integration/... -long
	$(GO) test -count=1 -timeout 120m -p 1 -parallel 1 ./test/integration -long -no-passthrough -run '$(WITHOUT)'

# Deliberate faults, one at a time, against the suites that should notice; what killed each goes to docs/MUTANTS.md.
# RUN=expression picks some by name.
mutants:
	$(GO) run ./test/mutants -table $(if $(RUN),-run "$(RUN)")

bench: build
	test/setup.sh bench
	$(GO) test -count=1 -timeout 60m -p 1 ./test/bench -v -links

# The multicast beside Open MPI, uftp, udpcast, rsync and aria2: about two hours, since each comparison runs with cubic for
# all programs and with bbr as the nodes' default. PEERS=flags, see docs/TESTING.md.
bench-peers: build
	test/setup.sh bench
	$(GO) test -count=1 -timeout 300m ./test/bench/peers -v -args -peers $(PEERS)

# The multicast alone against its goals: about an hour. MULTICAST=flags, see test/bench/multicast/README.md.
bench-multicast:
	test/setup.sh bench
	$(GO) test -count=1 -timeout 150m ./test/bench/multicast -v -args -multicast $(MULTICAST)

# What nodes cost that nobody uses: processor time, wake-ups, memory and disk. Four minutes.
bench-idle: build
	test/setup.sh bench
	$(GO) test -count=1 -timeout 10m -p 1 ./test/bench -run TestIdle -v -links

# What a node costs that is killed, stopped or cut off: about 15 minutes. FAULTS=flags, see test/bench/faults/README.md.
bench-faults:
	test/setup.sh bench
	$(GO) test -count=1 -timeout 60m ./test/bench/faults -v -args -faults $(FAULTS)

# Tarballs, deb, rpm, a bill of materials and checksums in dist/. VERSION=0.1.0
release:
	packaging/release.sh "$(VERSION)"

clean:
	rm -rf bin .cache dist
