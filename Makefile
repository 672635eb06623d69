# `make help` lists the targets. Each does its own set-up, which is skipped when nothing has changed.
# What needs more than a line of shell is a script in tools/.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.NOTPARALLEL:  # checks print in order, and the lab comes last; pytest itself uses all cores
.DELETE_ON_ERROR:

# Where a machine forbids it, each process that a test starts would compile all its modules anew.
unexport PYTHONDONTWRITEBYTECODE

PYTHON := .venv/bin/python
PYTEST := $(PYTHON) -m pytest --dist=worksteal
# More than cores: half of what the tests of real processes take is waiting for those.
WORKERS := $(shell echo $$(($$(nproc) * 3 / 2)))
MAY_MOUNT := $(shell unshare --mount true 2>/dev/null && echo yes)
CODEC_SOURCES := setup.py $(wildcard kdist/records/_compiled*.py kdist/records/*.pxd)

# A virtual environment contains its own path, so one in a copied tree is remade; and the codec is
# rebuilt if its compiled file is missing, whatever the stamp says.
VENV_MOVED := $(if $(filter $(CURDIR),$(shell cat .venv/.ready 2>/dev/null)),,FORCE)
CODEC_GONE := $(if $(wildcard kdist/records/_compiled_produced.*.so),,FORCE)

help:  ## Print every target with its sentence
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Where a line begins with `-`, a failure to get a package is only reported; tests that need it fail.
setup: .venv/.codec  ## Make .venv, build the codec, bring Kafka's jars, other peers and the clients' suites
	@tools/setup_packages.sh peer
	-@tools/setup_packages.sh suites
	-@tools/setup_packages.sh lab
	@tools/setup_peers.sh

check: .venv/.codec lint  ## Format, types, imports, conventions, unit tests: under two minutes
	@$(PYTEST) --hypothesis-profile=quick -m "not slow and not peer and not mount" --numprocesses=auto tests/unit

test: setup lint  ## The checks, every test but those of `make stress`, and a deployment to the lab, if it can run
ifdef MAY_MOUNT
	@$(PYTEST) -m "not stress and not lab" --numprocesses=$(WORKERS) tests
else
	@echo "This user may not mount filesystems, so the tests marked 'mount' are left out."
	@$(PYTEST) -m "not mount and not stress and not lab" --numprocesses=$(WORKERS) tests
endif
	@$(PYTHON) -m tests.deploy.lab_test --if-able --quick

demo: .venv/.codec  ## Two datacenters here, a mirror, a load of real input: KEEP=1 leaves them running
	@tools/setup_packages.sh demo
	@$(PYTHON) -m lab.demo $(if $(KEEP),--keep)

stress: setup  ## The clients' own suites whole, kills, faults, floods, the broker's benchmark: takes long
	@$(PYTHON) -m pytest -m stress tests

lint: .venv/.codec .cache/.ansible-lint
	@$(PYTHON) -m ruff format --check --quiet .
	@$(PYTHON) -m ruff check --quiet .
	@$(PYTHON) -m mypy --no-error-summary
	@.venv/bin/lint-imports --no-logo
	@.venv/bin/yamllint --strict .

lab-up: .venv/.ready  ## Start the lab's hosts as containers on this machine, as root
	@tools/setup_packages.sh lab
	@$(PYTHON) -m lab up

lab-down:  ## Remove the lab's hosts and all that they left on this machine
	@$(PYTHON) -m lab down

lab-ssh:  ## Log in to a host of the lab, k1 or another: make lab-ssh HOST=k2
	@$(PYTHON) -m lab ssh $(or $(HOST),k1)

lab-test: .venv/.codec  ## Deploy to hosts made for it, test, break and remove them, as root: KEEP=1 keeps them
	@tools/setup_packages.sh lab
	@$(PYTHON) -m tests.deploy.lab_test

vagrant-box: .venv/.ready  ## Make the box for Vagrant's LXC provider, from the lab's base image, as root
	@tools/setup_packages.sh lab
	@tools/setup_packages.sh vagrant
	@lab/vagrant/make_box.sh

vagrant-up: .venv/.ready  ## Start the Vagrantfile's machines and deploy kdist to them: PROVIDER=lxc or another
	@lab/vagrant/up.sh $(PROVIDER)

bench-log: .venv/.codec  ## Measure the log and the record codec, as ratios in one run
	$(PYTHON) benchmarks/bench_log.py

bench-network: .venv/.codec  ## Measure the connections against a C program, as ratios in one run
	$(PYTHON) benchmarks/bench_network.py

bench-broker: .venv/.codec  ## Measure the broker against a C program, as ratios in one run
	$(PYTHON) benchmarks/bench_broker.py

bench-instructions: .venv/.codec  ## Count a request's instructions by valgrind: BESIDE=DIR counts another checkout's too
	$(PYTHON) benchmarks/bench_instructions.py $(if $(BESIDE),--beside $(BESIDE))

trace: .venv/.codec  ## Count files, functions and calls of a produce and an ISR change: BESIDE=DIR counts another checkout's too
	@$(PYTHON) -m tools.trace_request $(if $(BESIDE),--beside $(BESIDE))

bench-hostile: .venv/.codec  ## Measure a healthy client beside hostile and old ones, as root: BESIDE=DIR for another checkout too
	$(PYTHON) benchmarks/bench_hostile.py $(if $(BESIDE),--beside $(BESIDE))

bench-clients: setup  ## Measure the Python clients beside confluent-kafka, kafka-python and aiokafka
	$(PYTHON) benchmarks/bench_clients.py

bench-peer: setup  ## Measure the broker beside Apache Kafka, with confluent-kafka for a client
	$(PYTHON) benchmarks/bench_peer.py

bench-cluster: setup  ## Measure three brokers beside three of Apache Kafka, replicated, with acks=all
	$(PYTHON) benchmarks/bench_cluster.py

bench-mirror: .venv/.codec  ## Measure the mirror against decoding and encoding each record, as ratios in one run
	$(PYTHON) benchmarks/bench_mirror.py

bench-spark: setup  ## Measure reading topics into Spark beside a row-by-row source and Spark's own connector
	$(PYTHON) benchmarks/bench_spark.py

bench-cleaner: setup  ## Measure the log cleaner beside Apache Kafka's, on copies of one log
	$(PYTHON) benchmarks/bench_cleaner.py

bench-reassign: .venv/.codec  ## Plan moves on sites of 480 disks, and carry plans out on three brokers
	$(PYTHON) benchmarks/bench_reassign.py --real

bench-compression: .venv/.codec  ## Measure the compression and checksum libraries that were weighed
	$(PYTHON) benchmarks/bench_compression.py
	$(PYTHON) benchmarks/bench_checksums.py

simulate: .venv/.codec  ## Random histories of a whole cluster: SEEDS=n, FIRST_SEED=n, PLANTED=1 hunts known bugs
	@$(PYTHON) -m tests.simulator --seeds $(or $(SEEDS),20) --first-seed $(or $(FIRST_SEED),0) $(if $(PLANTED),--planted)

chaos: setup  ## Break three brokers every 10 s under foreign clients, as root: MINUTES=n, SEED=n, GROW=1 to five and back
	@$(PYTHON) -m tests.chaos --minutes $(or $(MINUTES),20) --seed $(or $(SEED),0) $(if $(GROW),--grow)

soak: setup  ## Every loop of the clients' guides, while brokers freeze and die and members come and go: MINUTES=n, SEED=n
	@$(PYTHON) -m tests.soak --minutes $(or $(MINUTES),20) --seed $(or $(SEED),0)

mutate: .venv/.codec  ## Break the code a little, see whether its tests notice: SAMPLE=n, SEED=n, FILES='kdist/storage/*'
	@$(PYTHON) -m tests.mutation --sample $(or $(SAMPLE),300) --seed $(or $(SEED),0) --files '$(or $(FILES),*)' \
		--simulate $(or $(SIMULATE),0)

fuzz: .venv/.codec  ## Throw random bytes at every decoder for ten minutes
	$(PYTHON) tests/fuzz/fuzz_protocol.py --seconds 600

generate: .venv/.codec  ## Write the pages and samples that are derived from the code
	$(PYTHON) -m tools.generate
	$(PYTHON) -m tools.dashboards
	$(PYTHON) -m tools.roles

format: .venv/.codec  ## Put the code into its one format
	$(PYTHON) -m ruff format .
	$(PYTHON) -m ruff check --fix .

clean:  ## Remove everything that make made, the virtual environment included
	rm -rf .venv .cache build dist kdist.egg-info kdist/records/_compiled*.c kdist/records/_compiled*.so
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ansible-lint takes 40 s, so it runs only when something that it checks has changed.
.cache/.ansible-lint: .venv/.ready .ansible-lint .yamllint $(shell find roles playbooks inventory monitoring -type f)
	@.venv/bin/ansible-lint -q
	@mkdir -p .cache && touch $@

# The lock keeps two makes in one tree from building at the same time.
.venv/.ready: pyproject.toml setup.py tools/setup_venv.sh $(VENV_MOVED)
	@tools/setup_packages.sh build
	@flock tools tools/setup_venv.sh

.venv/.codec: .venv/.ready $(CODEC_SOURCES) $(CODEC_GONE)
	@flock tools tools/setup_codec.sh

FORCE:

.PHONY: help setup check test demo stress lint lab-up lab-down lab-ssh lab-test vagrant-box vagrant-up bench-log bench-network bench-broker bench-instructions trace bench-hostile bench-clients bench-peer bench-cluster bench-mirror bench-spark bench-cleaner bench-reassign bench-compression simulate chaos soak mutate fuzz generate format clean FORCE
