# The suites of tests, and what make check, test, test-docs and test-all have of them. `make suite-NAME` runs one, `make suite-unit
# PACKAGES=./internal/ipam RUN=TestAssign` a test of it. hack/testsum runs lists of them: "+" runs a suite beside those that follow, by what
# these leave of the processors; without one with "!" the others cannot run.

CHECK_SUITES = format layers short
# The demo is the first of all: what it needs must come from itself, and not from an earlier suite; perf makes nothing that the demo uses.
# Virtual machines begin as soon as they can: the demo and labs mostly wait, and leave them processors. So units, which leave few, come last and
# have both. Beside units the cluster would have kubelets wait for the kernel: then a DEL takes longer than its twenty seconds.
TEST_SUITES = +perf demo lint tools programs! +tunnel image generated +switch +ipip lab unit-v3 cluster unit
DOCS_SUITES = documents vulns bench
# The second tier: all there is. make test-all sets TORTIE_TIER, by which internal/testkit/tier leaves nothing out of a suite.
ALL_SUITES = +perf demo lint tools programs! $(addprefix +,$(filter-out perf switch,$(COUNTED_SUITES)) tunnel-v3) image generated \
	lab cluster cluster-v3 upgrade faults faults-v3 moves unit unit-v3 release $(DOCS_SUITES)

LAB = $(CURDIR)/bin/lab

# $(call names,LIST) is the list without signs.
names = $(subst +,,$(subst !,,$(1)))
# $(call packages,MODULE,EXCEPT) lists the packages of a module without these directories.
packages = $(filter-out $(addprefix %/,$(2)),$(shell go -C $(1) list ./...))
# $(call linking,PACKAGE) lists the packages whose tests link this one. A package that was compiled for a test is listed as "path [binary]".
linking = $(shell go list -test -f '{{if eq .Name "main"}}{{.ImportPath}} {{join .Deps " "}}{{end}}' ./... | \
	awk '$$1 ~ /[.]test$$/ && / [^ ]*[/]$(subst /,[/],$(1))( |$$)/ {sub(/[.]test$$/, "", $$1); print $$1}')
# $(call machine,OPTIONS) runs tests in a virtual machine whose time is the number of its instructions.
machine = -timeout=55m -p=1 -exec='$(LAB) vmtest -timeout 50m -count $(1)'

# A failed test is run again, alone and whole, up to twice: parts of a test may need those before them. Not more than ten of a suite: those
# did not fail by chance. gotestsum does not do it where a package panicked, timed out or did not compile. STRICT=1 does without.
RERUN = $(if $(STRICT),,--rerun-fails=2 --rerun-fails-max-failures=10 --rerun-fails-run-root-test)

# A suite NAME that is no target of its own is one run of go test. NAME.packages and, if not empty: NAME.module, its directory; NAME.env;
# NAME.flags of go test; NAME.run and NAME.skip, patterns of tests; NAME.args, flags of the tests; NAME.cached, whether results of unchanged
# packages are taken from Go's cache. Suites lint and format vet all packages, with more checks than go test would.
suite-%: bin/gotestsum
	$(if $(value $*.packages),,$(error there is no suite $*: the suites are $(sort $(call names,$(CHECK_SUITES) $(TEST_SUITES) $(ALL_SUITES)))))
	@echo "== $($*.what)"
	@cd $(or $($*.module),.) && $($*.env) $(CURDIR)/bin/gotestsum $(RERUN) --packages '$(or $(PACKAGES),$($*.packages))' -- -vet=off \
	  $(if $($*.cached),,-count=1) $($*.flags) $(if $(RUN)$($*.run),-run='$(if $(RUN),^$(RUN)$$,$($*.run))') $(if $($*.skip),-skip='$($*.skip)') \
	  $(if $($*.args),-args $($*.args))

# What a suite consists of, for hack/testsum's test that none of the tests is left out.
.PHONY: list-suites
list-suites:
	@$(foreach s,$(call names,$(ALL_SUITES)),echo '$(s);$(or $($(s).module),.);$($(s).packages);$($(s).run);$($(s).skip)';)

### make check

GOFMT = bad=$$(git ls-files -co --exclude-standard '*.go' | xargs gofmt -l); [ -z "$$bad" ] || { echo "gofmt would change:"; echo "$$bad"; exit 1; }

.PHONY: suite-format
suite-format:
	@echo "== gofmt and go vet"
	@$(GOFMT)
	@go vet ./...

layers.what     = imports between the packages
layers.module   = hack
layers.packages = ./layers

# An ordinary user's tests run as root of a user namespace. With -exec Go keeps no results, so root's run without.
ROOTLESS = $(if $(filter-out 0,$(shell id -u)),-exec='$(CURDIR)/hack/rootless.sh')

# Most of these tests wait, so that more packages than processors may run. What links the agents of whole nodes needs the lab.
short.what     = units and network namespaces, model checks in short; results of unchanged packages are kept
short.packages = $(filter-out $(call linking,internal/testkit/meshtest),$(call packages,.))
short.flags    = -short -p=4 -timeout=5m $(ROOTLESS)
short.cached   = yes

### make test

demo.what     = make demo, as a new user: from a fresh clone with an empty cache, interrupted four times and run through
demo.module   = lab
demo.packages = ./e2e
demo.run      = ^TestDemo$$
demo.flags    = -timeout=45m

# Wrappers of Kubernetes in lab/ have no tests, and to vet them means to compile all of Kubernetes once more.
WRAPPERS = cmd/hyperkube internal/etcd

# $(call directories,MODULE,EXCEPT) has the same packages as $(call packages,...), from the module's directory.
directories = $(patsubst $(shell go -C $(1) list -m)%,.%,$(call packages,$(1),$(2)))

.PHONY: suite-lint
suite-lint: bin/golangci-lint
	@echo "== golangci-lint: format, vet, staticcheck and what else .golangci.yml has"
	$(foreach module,. hack lab,@cd $(module) && $(CURDIR)/bin/golangci-lint run $(call directories,$(module),$(WRAPPERS))$(newline))
define newline


endef

tools.what     = the layers of imports, what programs are linked from, and what makes the image
tools.module   = hack
tools.packages = ./layers ./modules ./image
tools.flags    = -timeout=10m

.PHONY: suite-programs
suite-programs:
	@echo "== Tortie's image; Kubernetes and helm from Go modules (about 10 minutes, once)"
	@$(MAKE) --no-print-directory deps
	@$(MAKE) --no-print-directory image
	@$(MAKE) --no-print-directory image-all
	$(LAB) build

image.what     = what the image weighs, that its programs start, and that another directory gives the same
image.module   = hack
image.packages = ./image/built
image.flags    = -timeout=15m

# The values that enable what is off by default.
EVERYTHING := migrateFromHostLocal=true monitoring.metrics.enabled=true monitoring.metrics.perPeer=true monitoring.metrics.annotations=true \
	monitoring.dashboard.enabled=true monitoring.alerts.enabled=true monitoring.podMonitor.enabled=true \
	wireguard.enabled=true wireguard.required=true wireguard.threaded=true wireguard.rotate=720h

.PHONY: suite-generated
suite-generated:
	@echo "== files made from other files are up to date"
	@$(MAKE) --no-print-directory generate-check
	"$$($(LAB) build helm)" lint --strict charts/tortie
	"$$($(LAB) build helm)" lint --strict charts/tortie $(addprefix --set ,$(EVERYTHING))

# These packages have labs of their own, with nodes that kubelets and containerd run on: one lab at a time is enough for a machine.
cluster.what     = one life of a cluster from installation to uninstallation, on real nodes; then attacks, migration, others' suites for policy
cluster.dirs     = internal/tests/cluster internal/tests/migrate internal/tests/conformance
cluster.packages = $(addprefix ./,$(cluster.dirs))
cluster.env      = TORTIE_LAB=$(LAB)
cluster.flags    = -timeout=60m -p=1

# These packages need a kernel with IPIP, WireGuard, TCP-AO or flowtables, or count instructions. A machine that counts keeps their bounds in
# seconds, whatever else the computer does.
MACHINE_PACKAGES = $(foreach p,ipip perf flowtable tcpao wireguard,$($(p).dirs))
# What takes minutes begins: if one of them came last, a processor would have nothing else to do. Those that mostly wait have one that works
# beside.
LONGEST = internal/tests/chaos internal/tests/mesh internal/program/controllers internal/tests/rights internal/agent internal/plugin \
	internal/tests/policy internal/agent/policies manifests internal/cluster internal/tests/topology internal/datastore/kubernetes \
	internal/testkit/labtest internal/program/node internal/program/hook

# Most of these tests wait, so that more packages than processors may run.
unit.what     = units, network namespaces, real etcd and kube-apiserver
unit.packages = $(addprefix ./,$(LONGEST)) $(call packages,.,$(LONGEST) $(MACHINE_PACKAGES) $(cluster.dirs) $(upgrade.dirs) $(faults.dirs))
unit.env      = TORTIE_LAB=$(LAB)
unit.flags    = -timeout=20m -p=4
unit.skip     = ^($(tunnel.tests))$$

lab.what     = the lab itself: nodes come, work, and leave nothing
lab.module   = lab
lab.packages = $(call packages,lab,e2e $(WRAPPERS))
lab.env      = TORTIE_LAB=$(LAB)
lab.flags    = -timeout=30m -p=1

# The last release is built from its tag, or from the commit that stands for it, with the same lab.
upgrade.what     = a cluster of the last release is upgraded under traffic, and rolled back
upgrade.dirs     = internal/tests/upgrade
upgrade.packages = $(addprefix ./,$(upgrade.dirs))
upgrade.env      = TORTIE_LAB=$(LAB)
upgrade.flags    = -timeout=40m

moves.what     = a hundred moves between the API groups in two clusters, under load and with kills; suite unit has a few
moves.packages = ./internal/tests/chaos
moves.env      = TORTIE_LAB=$(LAB)
moves.flags    = -timeout=120m
moves.run      = ^TestMoveUnderLoad$$
moves.args     = -moves=50 -clusters=2

# A fault is told of after seconds or minutes, and there are thirty.
faults.what     = two real clusters broken in thirty ways, one after the other: what is told of each, and where
faults.dirs     = internal/tests/faults
faults.packages = $(addprefix ./,$(faults.dirs))
faults.env      = TORTIE_LAB=$(LAB)
faults.flags    = -timeout=90m

release.what     = a release from a tag: its files, the same ones from another directory
release.module   = hack
release.packages = ./release
release.flags    = -timeout=30m

### In projectcalico.org/v3

# Suites whose API servers and labs have Calico's other group, once more: labtest makes them by APIGROUP.
V3_SUITES = unit tunnel cluster faults
define in-v3
$(1)-v3.what     = in projectcalico.org/v3: $$($(1).what)
$(1)-v3.packages = $$($(1).packages)
$(1)-v3.run      = $$($(1).run)
$(1)-v3.skip     = $$($(1).skip)
$(1)-v3.env      = $$($(1).env) APIGROUP=v3
$(1)-v3.flags    = $$($(1).flags)
endef
$(foreach s,$(V3_SUITES),$(eval $(call in-v3,$(s))))

# What writes and reads Calico's objects in the form of the group, and what decides by it. The second tier has all units, at the first tier's
# sizes. Of the first, TestMoveUnderLoad has plugins, agents and controllers in both groups.
V3_FIRST = internal/program/node internal/controllers internal/controllers/ipamtool internal/datastore/kubernetes
unit-v3.env      = $(unit.env) APIGROUP=v3 TORTIE_TIER=
unit-v3.packages = $(if $(filter all,$(TORTIE_TIER)),$(unit.packages),$(addprefix ./,$(V3_FIRST)))

### In virtual machines that count instructions

COUNTED_SUITES = demo-ipip tunnel perf perf-newest flowtable flowtable-newest bird3 tcpao wireguard switch ipip

demo-ipip.what     = the demo with IPIP run through, from a fresh clone, in a virtual machine that counts instructions
demo-ipip.module   = lab
demo-ipip.packages = ./e2e
demo-ipip.run      = ^TestDemoIPIP$$
demo-ipip.flags    = -timeout=55m

# These tests make the virtual machine by themselves. No other package may have tests of these names: the suite unit skips them. The first
# tier has the first of them, shorter.
tunnel.what     = agents that restart, pools that change, WireGuard turned on and off, over tunl0; TCP-AO from a Secret: in such machines
tunnel.packages = ./internal/tests/mesh
tunnel.tests    = TestMeshOverIPIP|TestTCPAOFromSecret
tunnel.run      = ^($(if $(filter all,$(TORTIE_TIER)),$(tunnel.tests),TestMeshOverIPIP))$$
tunnel.env      = TORTIE_LAB=$(LAB)
tunnel.flags    = -timeout=55m

perf.what     = instructions of packets and of our own work, in a virtual machine that counts them: none more than testdata/ratios.csv says
perf.dirs     = internal/tests/perf
perf.run      = ^TestInstructions$$
perf.args     = -kernel=stable -quick

perf-newest.what     = the same on Debian's newest kernel, which takes IPIP by a device for each peer
perf-newest.dirs     = $(perf.dirs)
perf-newest.options  = -newest
perf-newest.run      = $(perf.run)
perf-newest.args     = -kernel=newest -quick

# Devices for single nodes are a gain only since Linux 6.19. ipip names the tests that differ there.
peers = PeersUnderTraffic|PeersSource|PeersRouteChange

flowtable.what     = what passes the kernel's flowtable, in such a machine: policies, NAT, routes, devices, time-outs, restarts
flowtable.dirs     = internal/tests/flowtable
flowtable.options  = -nft
flowtable.skip     = ^Test($(peers))$$

flowtable-newest.what     = IPIP in the flowtable of Debian's newest kernel, by a device for each peer
flowtable-newest.dirs     = $(flowtable.dirs)
flowtable-newest.options  = -newest -nft
flowtable-newest.run      = ^Test($(peers)|Passes|Service|Denied)$$/IPIP

# In a virtual machine without FRR, nft and ss.
bird3.what     = a mesh and BFD with BIRD 3 of Debian's unstable release, in such a machine
bird3.dirs     = internal/bgp/interop
bird3.options  = -newest -bird
bird3.run      = ^Test(Mesh|NodeRestarts|NodeRestartsUnderBFD|SilentRouter|BFDAuthentication|LinkLocal)$$

tcpao.what     = BGP sessions with TCP-AO, in such a machine with Debian's newest kernel, beside its newest BIRD
tcpao.dirs     = internal/tests/tcpao
tcpao.options  = -newest -bird

wireguard.what     = WireGuard's devices, and its switch under traffic, in such a machine
wireguard.dirs     = internal/kernel/wireguard internal/tests/wireguard

switch.what     = WireGuard switched on and off under traffic, in such a machine
switch.dirs     = internal/tests/wireguard
switch.run      = ^TestSwitch$$

ipip.what     = tunl0, and devices for single nodes, in such a machine
ipip.dirs     = internal/kernel/ipip

define counted
$(1).packages = $(addprefix ./,$($(1).dirs))
$(1).flags    = $$(call machine,$($(1).options))
endef
$(foreach s,$(filter-out demo-ipip tunnel,$(COUNTED_SUITES)),$(eval $(call counted,$(s))))

### make test-docs

documents.what     = links, what programs say, vulnerabilities, and the tools that look after them
documents.module   = hack
documents.packages = ./generate ./instructions ./messages ./mutate ./plots ./testsum ./vulns
documents.flags    = -timeout=10m

.PHONY: suite-vulns
suite-vulns:
	@echo "== known vulnerabilities"
	go -C hack/govulncheck build -o $(CURDIR)/bin/govulncheck tool
	@go -C hack run ./vulns -govulncheck $(CURDIR)/bin/govulncheck

bench.what     = the benchmarks, as few runs as can be, on a real API server
bench.module   = hack
bench.packages = ./bench
bench.flags    = -timeout=10m
