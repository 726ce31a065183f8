# The two commands: make demo, make test. The rest is in docs/TESTING.md.
GO ?= go
RDMCFS = bin/rdmcfs
UNIT = $(shell $(GO) list ./... | grep -v -e /test/ -e /internal/detsim$$) ./test/bench/peers ./test/bench/multicast

.PHONY: release mutants build demo test test-unit test-models test-schedule test-detsim test-integration test-rdma test-long bench bench-peers bench-multicast bench-faults lint clean

build:
	CGO_ENABLED=0 $(GO) build -trimpath -o $(RDMCFS) ./cmd/rdmcfs

# Four nodes on this machine, a file copied in on one, read back on all. FILE=path, ONCE=1, NODES=n.
demo: build
	$(RDMCFS) demo $(if $(FILE),--file "$(FILE)") $(if $(NODES),--nodes $(NODES)) $(if $(ONCE),--once)

test: lint test-unit test-models test-integration test-rdma

lint:
	$(GO) vet ./...
	$(GO) test ./internal/tidy ./test/mutants

# Packages whose tests have larger sizes than those that run under the race detector; schedules have no concurrency.
WHOLE = ./fs ./meta ./internal/consensus ./internal/content ./replicate ./replicate/rdmc ./replicate/schedule

test-unit:
	test/setup.sh test
	$(GO) test -race -short -p 2 -timeout 20m $(filter-out %/replicate/schedule,$(UNIT))
	$(GO) test -p 2 -timeout 20m $(WHOLE)

test-models: test-schedule test-detsim

# Exhaustive: too slow under the race detector, and without concurrency.
test-schedule:
	$(GO) test -timeout 5m -run Exhaustive ./replicate/schedule -exhaustive

# Whole daemons in virtual time, a process for each seed; the first time the standard library is built for it. SEEDS=n, FROM=s.
test-detsim:
	$(GO) test -timeout 60m ./internal/detsim -args -sim.seeds $(or $(SEEDS),200) $(if $(FROM),-sim.from $(FROM))

# What is run again as in a container, where the kernel may not pass reads and writes through.
WITHOUT = TestCopyOf|TestReceiverDies|TestWriter|TestGit|TestTar|TestGoBuild|TestEditors|TestSqlite|TestShells|TestScript

test-integration: build
	test/setup.sh test
	$(GO) test -count=1 -timeout 40m -p 1 ./test/integration/...
	$(GO) test -count=1 -timeout 15m -p 1 ./test/integration -no-passthrough -run '$(WITHOUT)'

# On a software RDMA device in VMs, one part after the other: the fabric, the rings and the multicast over libibverbs on both kernels
# (KERNELS=6.1 6.12), a cluster with real mounts, and two machines on a wire that is recorded.
KERNELS = 6.1 6.12
OF_GROUPS = CloseMeansDelivered|TestConnect|MemberAborts|EachAlgorithm|QueuedMessages|SinkError|SourceError|StoppedMember
test-rdma: build
	for p in rdma/verbs rdma/mixed rdma/ring lab/pin replicate/rdmc test/vm; do CGO_ENABLED=0 $(GO) test -c -o bin/$${p##*/}.test ./$$p || exit 1; done
	for k in $(KERNELS); do \
		test/vm/run.sh -k $$k -t 1200 bin/verbs.test : bin/mixed.test -test.run TestVerbs : bin/ring.test -test.run ./verbs : bin/pin.test -test.run ./verbs : \
			bin/rdmc.test -test.run '$(OF_GROUPS)' || exit 1; \
	done
	RDMCFS_TEST_DIR=/scratch test/vm/run.sh -k 6.12 -t 2400 -m 3072 -e RDMCFS_TEST_DIR bin/vm.test -test.v -test.run 'TestBench|TestCluster'
	bin/vm.test -test.v -test.run 'TestWire$$|TestFlow|TestPackets' -wire

# The full sizes of docs/TESTING.md.
test-long: build
	test/setup.sh test
	$(GO) test -count=1 -timeout 120m -p 1 ./test/integration/... -long
	$(GO) test -count=1 -timeout 120m -p 1 ./test/integration -long -no-passthrough -run '$(WITHOUT)'

# Deliberate faults, one at a time, against the suites that should notice; what killed each goes to docs/TESTING.md.
# RUN=expression picks some by name.
mutants:
	$(GO) run ./test/mutants -table $(if $(RUN),-run "$(RUN)")

bench: build
	test/setup.sh bench
	$(GO) test -count=1 -timeout 60m -p 1 ./test/bench -v -links

# The multicast beside Open MPI, uftp, udpcast, rsync and aria2: about an hour. PEERS=flags, see docs/TESTING.md.
bench-peers: build
	test/setup.sh bench
	$(GO) test -count=1 -timeout 150m ./test/bench/peers -v -args -peers $(PEERS)

# The multicast alone against its goals: about an hour. MULTICAST=flags, see test/bench/multicast/README.md.
bench-multicast:
	test/setup.sh bench
	$(GO) test -count=1 -timeout 150m ./test/bench/multicast -v -args -multicast $(MULTICAST)

# What a member costs that is killed, stopped or cut off: about 15 minutes. FAULTS=flags, see test/bench/faults/README.md.
bench-faults:
	test/setup.sh bench
	$(GO) test -count=1 -timeout 60m ./test/bench/faults -v -args -faults $(FAULTS)

# Tarballs, deb, rpm, a bill of materials and checksums in dist/. VERSION=0.1.0
release:
	packaging/release.sh "$(VERSION)"

clean:
	rm -rf bin .cache dist
