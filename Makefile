# `make` without a target prints the targets.

SHELL := /bin/bash
.DEFAULT_GOAL := help

VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
REVISION ?= $(shell git rev-parse HEAD 2>/dev/null)
CREATED  ?= $(or $(shell TZ=UTC git log -1 --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd 2>/dev/null),1970-01-01T00:00:00Z)
ARCH     ?= $(shell go env GOHOSTARCH)
IMAGE    ?= docker.io/tortie-net/tortie:dev
# Where the programs and the image of this machine's architecture go.
BIN      ?= bin
OUT      ?= dist/tortie.tar
# Of the demo: keep the cluster, under another name, write the transcript to a file; auto, ipip or vxlan; in a virtual machine whose time is the number of
# its instructions, for tests on a busy machine.
KEEP     ?=
NAME     ?=
RECORD   ?=
ENCAP    ?=
COUNT    ?=
ONLY     ?=
# Of check and test: STRICT=1 runs no failed test again. Of a suite: the packages, and the pattern of a test of them.
STRICT   ?=
PACKAGES ?=
RUN      ?=
QUICK    ?=
# Of perf: write down what was counted.
WRITE    ?=
# Of vulncheck: where the database is.
VULNDB   ?= $(TORTIE_VULNDB)

# No version control: Git may not trust the directory (a checkout of another user); the version comes from the flags above. No paths: what
# one clone has compiled, every other one takes from Go's cache.
export GOFLAGS := $(GOFLAGS) -buildvcs=false -trimpath
# Nothing here has C. Programs, tests and linters are all compiled without it, so that what they share is compiled once.
export CGO_ENABLED := 0

# One binary has all that talks to Kubernetes by its client, and is called by these names; another one is both plugins.
NAMES        := node install kube-controllers
OWN_PROGRAMS := tortie calico
CNI_PLUGINS  := \
	github.com/containernetworking/plugins/plugins/main/loopback \
	github.com/containernetworking/plugins/plugins/meta/bandwidth \
	github.com/containernetworking/plugins/plugins/meta/portmap
# Functions begin at multiples of 16 bytes, as on arm64: on amd64 that is 0.4 MB less than 32.
LDFLAGS := -s -w -funcalign=16 -X github.com/tortie-net/tortie/internal/app/version.Version=$(VERSION)
# Nothing of this machine goes into a program, so that two builds of a commit by one release of Go give the same bytes.
GO_BUILD := GOOS=linux GOAMD64=v1 GOARM64=v8.0 GOEXPERIMENT= go build -trimpath
MAKE_IMAGE = go -C hack run -trimpath ./image -ref '$(IMAGE)' -version '$(VERSION)' -revision '$(REVISION)' -created '$(CREATED)'
ARCHES   := amd64 arm64

# $(call programs,DIRECTORY,ARCHITECTURE) builds what an image has.
define programs
	@mkdir -p $(1)
	@echo "building Tortie's programs for $(2) (a minute or two the first time)"
	GOARCH=$(2) $(GO_BUILD) -ldflags '$(LDFLAGS)' -o $(1)/ $(addprefix ./cmd/,$(OWN_PROGRAMS))
	GOARCH=$(2) $(GO_BUILD) -ldflags '-s -w' -o $(1)/ $(CNI_PLUGINS)
endef

include hack/suites.mk

.PHONY: help
help: ## print the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: demo-root demo-deps image ## a cluster of three nodes, Tortie by Helm, step by step (KEEP=1 leaves it running, ENCAP=ipip shows tunl0 on every kernel)
	bin/lab demo $(if $(ENCAP),-encap $(ENCAP)) $(if $(COUNT),-count) $(if $(KEEP),-keep) $(if $(NAME),-name $(NAME)) $(if $(RECORD),-record $(RECORD))

.PHONY: check
check: bin/testsum ## first feedback, with nothing but Go, git and make: format, vet, units, namespaces
	bin/testsum -only '$(ONLY)' $(CHECK_SUITES)

.PHONY: test
test: lab-deps bin/testsum ## what every change must pass: the demo, lint, units, namespaces, real API server, tunnels, one lab (ONLY=lint,unit for some)
	bin/testsum -only '$(ONLY)' $(TEST_SUITES)

.PHONY: test-all
test-all: export TORTIE_TIER := all
test-all: lab-deps bin/testsum ## all tests there are, documents and faults too: what a release must pass (ONLY=unit for some)
	bin/testsum -only '$(ONLY)' $(ALL_SUITES)

.PHONY: test-docs
test-docs: deps build bin/testsum ## documents and tools: links, messages, the benchmarks' own tests, known vulnerabilities
	bin/testsum -only '$(ONLY)' $(DOCS_SUITES)

.PHONY: build
build: bin/lab ## the programs, into bin/
	$(call programs,$(BIN),$(shell go env GOHOSTARCH))
	@for name in $(NAMES); do ln -sfn tortie $(BIN)/$$name; done
	@ln -f $(BIN)/calico $(BIN)/calico-ipam

.PHONY: bin/lab
bin/lab:
	@mkdir -p bin
	@echo "building the lab"
	@go -C lab build -trimpath -o ../bin/lab ./cmd/lab || { echo "The lab could not be built. If modules cannot be downloaded: run this once with network, set GOPROXY, or bring another machine's GOMODCACHE." >&2; false; }

.PHONY: bin/testsum
bin/testsum: bin/gotestsum
	@go -C hack build -o ../bin/testsum ./testsum

bin/gotestsum: hack/go.mod hack/go.sum
	go -C hack build -o ../bin/gotestsum gotest.tools/gotestsum

bin/golangci-lint: hack/golangci/go.mod hack/golangci/go.sum
	go -C hack/golangci build -o ../../bin/golangci-lint tool

.PHONY: image
image: build ## the container image as an OCI archive, dist/tortie.tar, without Docker
	@$(MAKE_IMAGE) -bin '$(abspath $(BIN))' -o '$(abspath $(OUT))'

.PHONY: image-all
image-all: $(addprefix programs-,$(ARCHES)) ## the same for amd64 and arm64, as one image: dist/tortie-all.tar
	@$(MAKE_IMAGE) $(foreach arch,$(ARCHES),-bin $(arch)=../dist/$(arch)) -o ../dist/tortie-all.tar

.PHONY: release
release: bin/lab ## the files of a release from its tag, checked out (VERSION=v0.1.0): image, chart, manifests, list of modules, checksums in dist/release
	@echo "building the program that lists modules"
	@go -C hack/cyclonedx build -trimpath -o ../../bin/cyclonedx-gomod tool
	@helm="$$(bin/lab build helm)" && go -C hack run ./release -root .. -version '$(VERSION)' -helm "$$helm" -cyclonedx '$(CURDIR)/bin/cyclonedx-gomod'

programs-%:
	$(call programs,dist/$*,$*)

# What the Dockerfile makes the image of.
.PHONY: tree
tree: programs-$(ARCH)
	@$(MAKE_IMAGE) -bin $(ARCH)=../dist/$(ARCH) -tree ../dist/tree

.PHONY: lint
lint: bin/testsum ## golangci-lint (format, vet, staticcheck and more), import layers, generated files
	bin/testsum lint tools
	@$(MAKE) --no-print-directory generate-check

.PHONY: soak
soak: deps ## ten minutes of nodes that die, programs that are killed and clocks that step, then an audit; writes docs/soak.md (SOAK=30m); two million packets judged, and ten agents under load
	go test ./internal/tests/policy -run 'Test(Decide|Calico)$$' -count=1 -v -timeout 2h -cases 1000000 -calico-cases 1000000
	go test ./internal/tests/mesh -run 'TestPolicyUnderLoad$$' -count=1 -v -timeout 30m -load-agents 10
	go test ./internal/tests/chaos -run 'TestCluster$$' -count=1 -v -timeout 2h -soak $(or $(SOAK),10m) -soak-report '$(CURDIR)/docs/soak.md'

.PHONY: attack
attack: deps ## somebody takes over a node of a real cluster of three, while pods of the others talk; writes docs/attack.md and .csv (about three minutes)
	go test ./internal/tests/cluster -run 'TestAttack$$' -count=1 -v -timeout 15m -attack-report '$(CURDIR)/docs/attack.md'

.PHONY: faults
faults: deps image ## a real cluster of three nodes is broken in thirty ways, one after the other: what is told of each, and where; writes docs/faults.csv (about twelve minutes)
	TORTIE_LAB='$(CURDIR)/bin/lab' go test ./internal/tests/faults -run 'TestFaults$$' -count=1 -v -timeout 90m -faults-report '$(CURDIR)/docs/faults.csv'

# What sends SCTP, which few hosts have, runs first and in a virtual machine, whose kernel has it; the report takes its results.
SCTP := $(CURDIR)/dist/sctp
.PHONY: e2e
e2e: deps image ## the whole suites of Kubernetes for NetworkPolicy and of network-policy-api, on a lab, in both API groups; writes docs/conformance.md (three hours)
	@mkdir -p $(SCTP)
	go test -c -o $(SCTP)/conformance.test ./internal/tests/conformance
	cd internal/tests/conformance && TORTIE_LAB='$(CURDIR)/bin/lab' '$(CURDIR)/bin/lab' vm -mem 8192 -timeout 3h -out $(SCTP) \
	  -programs hyperkube,kubectl,helm,pause,agnhost,networkpolicy,clusternetworkpolicy -- $(SCTP)/conformance.test \
	  -test.run '^TestConformance$$' -test.v -test.parallel 1 -test.timeout 170m -only-sctp -conformance-report $(SCTP)/results.md
	APIGROUP=v3 TORTIE_LAB='$(CURDIR)/bin/lab' go test ./internal/tests/conformance -run '^TestConformance$$' -count=1 -v -timeout 60m -all \
	  -conformance-report $(SCTP)/v3.md
	TORTIE_LAB='$(CURDIR)/bin/lab' go test ./internal/tests/conformance -run '^TestConformance$$' -count=1 -v -timeout 60m -all \
	  -sctp-results $(SCTP)/results.csv -v3-results $(SCTP)/v3.csv -conformance-report '$(CURDIR)/docs/conformance.md'

.PHONY: vulncheck
vulncheck: ## known vulnerabilities in what is called, from https://vuln.go.dev or a copy (VULNDB=directory or URL)
	go -C hack/govulncheck build -o ../../bin/govulncheck tool
	go -C hack run ./vulns -require -db '$(if $(findstring ://,$(VULNDB)),$(VULNDB),$(abspath $(VULNDB)))'

# A part of a run is for reading, not for docs/.
.PHONY: bench
bench: deps build image ## what a pod costs: times and memory, beside floors; writes docs/benchmarks*.csv and plots (ONLY=add,burst or QUICK=1: only shows)
	TORTIE_LAB='$(CURDIR)/bin/lab' go -C hack run ./bench -root .. $(if $(QUICK),-quick) $(if $(ONLY),-only '$(ONLY)') $(if $(QUICK)$(ONLY),,-o ../docs)
	$(if $(QUICK)$(ONLY),,$(MAKE) --no-print-directory generate)

# A whole run of one processor after another takes an hour, as a benchmark of addresses takes minutes.
.PHONY: bench-go
bench-go: ## Go's benchmarks of packages, shown by benchstat (PKG=./internal/ipam, COUNT=6, OLD=FILE compares with an earlier dist/bench-go.txt)
	@mkdir -p dist
	set -o pipefail; go test -run '^$$' -bench . -benchmem -benchtime 0.5s -p 1 -timeout 60m -count $(or $(COUNT),6) \
	  $(or $(PKG),./internal/...) | tee dist/bench-go.txt
	go -C hack tool benchstat $(if $(OLD),'$(abspath $(OLD))') '$(CURDIR)/dist/bench-go.txt'

# Instructions do not depend on what else the machine does. Both kernels of internal/tests/perf/testdata/ratios.csv are Debian's.
define count
	@mkdir -p dist
	set -o pipefail; go test -exec '$(CURDIR)/bin/lab vmtest -count -timeout 30m $(2)' -count=1 -v -timeout 60m \
	  -run TestInstructions ./internal/tests/perf $(if $(WRITE),,-kernel $(1)) | tee dist/perf-$(1).txt
	set -o pipefail; TORTIE_LAB='$(CURDIR)/bin/lab' go test -exec '$(CURDIR)/bin/lab vm -count -timeout 30m -programs hyperkube $(2) --' \
	  -count=1 -v -timeout 60m -run TestPrograms ./internal/tests/perf -programs '$(CURDIR)/dist/perf' $(if $(WRITE),,-kernel $(1)) | tee -a dist/perf-$(1).txt
endef
.PHONY: perf
perf: deps build ## instructions of packets and of our own work, on Debian's kernel and its newest, none more than was written down (twenty minutes; WRITE=1 writes them down, and the plot of docs/benchmarks.md, WRITE=worse what is worse than before, too)
	@mkdir -p dist/perf
	cp -fL bin/node bin/calico dist/perf/
	go -C hack build -trimpath -ldflags '-s -w' -o ../dist/perf/get ./bench/floor/get.go
	$(call count,stable)
	$(call count,newest,-newest)
	go test -exec '$(CURDIR)/bin/lab vmtest -count -newest -nft' -count=1 -timeout 60m ./internal/tests/flowtable
	$(if $(WRITE),go -C hack run ./instructions/record -root .. $(if $(filter worse,$(WRITE)),-worse) stable=../dist/perf-stable.txt newest=../dist/perf-newest.txt)
	$(if $(WRITE),@$(MAKE) --no-print-directory generate)

FUZZTIME ?= 20s
.PHONY: fuzz
fuzz: ## every fuzz target for a while, with what each shows (FUZZTIME=20s, ONLY=Session; FUZZTIME=0 only lists them)
	go -C hack run ./fuzz -root .. -time $(FUZZTIME) -only '$(ONLY)'

.PHONY: mutate
mutate: ## each decision on what is not known yet is taken away in turn, and a test has to see it (ONLY=text of hack/mutate/mutations.txt, as of one file)
	go -C hack run ./mutate -root .. -only '$(ONLY)'

.PHONY: fence-versions
fence-versions: deps ## node fencing on the oldest API server that can, and that the one before cannot (each is built once, about 10 minutes)
	TORTIE_TIER=all go test ./internal/tests/rights -count=1 -timeout 60m -kubernetes 1.31
	go test ./internal/tests/rights -count=1 -timeout 60m -run TestPoliciesOfRelease -kubernetes 1.30

.PHONY: generate
generate: bin/lab ## definitions, manifest and lists of docs/, from their sources
	go -C hack run ./generate -root .. -helm "$$(bin/lab build helm)"

.PHONY: generate-check
generate-check: bin/lab ## fail if a generated file is not up to date
	go -C hack run ./generate -root .. -helm "$$(bin/lab build helm)" -check

INSTALL_DEPS = bin/lab deps $(if $(filter 0,$(shell id -u)),-install)

.PHONY: deps
deps: bin/lab ## the Debian packages that labs and tests need: installed when root, else named
	$(INSTALL_DEPS) -tests

# Before minutes of building.
.PHONY: demo-root
demo-root:
	@[ "$$(id -u)" = 0 ] || { echo "The demo makes namespaces and mounts, so it must be run as root: sudo make demo" >&2; false; }

# Without IPIP in the kernel, a virtual machine's too where the demo shall show it.
.PHONY: demo-deps
demo-deps: bin/lab
	$(INSTALL_DEPS) -encap $(or $(ENCAP),auto)

.PHONY: lab-deps
lab-deps: bin/lab
	$(INSTALL_DEPS)

.PHONY: clean
clean: ## remove what was built here; the lab's cache outside the clone stays
	rm -rf bin dist
