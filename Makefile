# rigbook: aliases. `make help` lists them; pyinfra itself is the command line.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo docs docs-picture test test-full test-tower test-moving test-vm test-cluster test-adopt test-containerd test-nodes \
	test-alive test-incidents test-measure test-page test-rehearse molecule chaos test-lease lint bench \
	rehearse incident incident-check lab-up lab-down lab-status lab-ssh setup tools

VENV := .venv
PY := $(VENV)/bin/python
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.10; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && echo $$p && break; done)
HOST ?= lab1

help: ## what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

demo: setup tools ## the main job: two rehearsal hosts serve a model with the real vLLM
	@$(PY) -m lab.demo

test: setup tools ## lint and the fast tiers: unit, node, plans, lab hosts without the engine
	@$(PY) -m tests.tiers lint fast lab

test-full: setup tools ## the slow tiers: faults at every step; the real vLLM on two hosts
	@$(PY) -m tests.tiers faults engine

test-tower: setup tools ## the venv runtime, upgrade and rollback, with the real vLLM on one host (not in CI)
	@$(PY) -m tests.tiers tower

test-moving: setup tools ## transfers that break in their middle, on two hosts (not in CI)
	@$(PY) -m tests.tiers moving

test-vm: setup ## kernel pin, candidate, power cuts: QEMU with real GRUB, emulated (an hour; not in CI)
	@lab/install-tools vm
	@$(PY) -m tests.tiers vm

test-cluster: setup tools ## the Kubernetes deploys on a real API (the first run builds it: 20 minutes)
	@$(PY) -m tests.tiers k8s

test-rehearse: setup tools ## twins of two Spark, a tower, four Spark; incidents dealt and mended in a row (90 minutes; not in CI)
	@$(PY) -m tests.tiers rehearse

test-adopt: setup tools ## rigs that serve by other means, taken over and given back (25 minutes; not in CI)
	@$(PY) -m tests.tiers adopt

test-containerd: setup tools ## image between docker's own store and the containerd store (5 minutes; not in CI)
	@$(PY) -m tests.tiers containerd

test-nodes: setup tools ## four hosts on one switch with the real vLLM (16 GB of memory; not in CI)
	@$(PY) -m tests.tiers nodes

test-alive: setup tools ## an engine that is killed or silent, memory that runs out, with the real vLLM (40 minutes; not in CI)
	@$(PY) -m tests.tiers alive

test-incidents: setup tools ## incidents on the real vLLM, a former setup beside it, a recipe's secrets (15 minutes; not in CI)
	@$(PY) -m tests.tiers incidents

test-measure: setup tools ## bench and soak with the real vLLM (half an hour; not in CI)
	@$(PY) -m tests.tiers measure

test-page: setup ## a report's pages and the site in Debian's chromium, with playwright and axe-core (5 minutes; not in CI)
	@lab/install-tools page
	@lab/quiet $(PY) -m pip install --quiet --require-hashes -r requirements/browser.txt -r requirements/docs.txt
	@$(PY) -m tests.tiers page

molecule: setup tools ## the life of a rig as a molecule scenario, with the real vLLM (10 minutes; not in CI)
	@lab/quiet $(PY) -m pip install --quiet --require-hashes -r requirements/molecule.txt
	@$(PY) -m tests.tiers molecule

chaos: setup tools ## N interrupts at random moments, each with one more run of the same command (hours; N=, SEED=, ONLY=unit,weights:3)
	@lab/install-tools vm
	@RIGBOOK_CHAOS_N=$(N) RIGBOOK_CHAOS_SEED=$(SEED) RIGBOOK_CHAOS=$(ONLY) $(PY) -m tests.tiers chaos

test-lease: setup tools ## 72 changes under a lease, each with a loss in its middle (a day; not in CI)
	@lab/install-tools vm
	@$(PY) -m tests.tiers lease

docs: setup ## the pages as a site in build/site; a dead link fails it (Python 3.11 or newer)
	@lab/quiet $(PY) -m pip install --quiet --require-hashes -r requirements/docs.txt
	@$(PY) -m docs.site

docs-picture: setup ## docs/architecture.svg, drawn from the imports
	@lab/install-tools docs
	@$(PY) -m tests.unit.house.picture

lint: setup ## ruff and mypy
	@$(PY) -m tests.tiers lint

bench: setup tools ## speed and memory on the lab, into docs/benchmarks.md (PART=rig, growth, backup, streams, moving, weights or rollback)
	@lab/quiet $(PY) -m pip install --quiet --require-hashes -r requirements/report.txt
	@$(PY) -m tests.bench $(PART)

lab-up: setup tools ## make or complete the rehearsal hosts (N=2), with the engine's image
	@$(PY) -m lab up $(if $(N),--hosts $(N))

rehearse: setup tools ## a twin of a rig on this machine (INVENTORY=inventory/spark.py; SNAPSHOT=FILE)
	@$(PY) -m lab rehearse $(INVENTORY) $(if $(SNAPSHOT),--snapshot $(SNAPSHOT))

incident: ## break the twin as docs/incidents.md tells, say the symptom, start the clock (ID=C13)
	@$(PY) -m lab incident $(ID)

incident-check: ## whether the twin is mended, and in how many seconds (ID=C13)
	@$(PY) -m lab incident-check $(ID)

lab-down: ## leave nothing of the lab: hosts, mounts, bridges (also after a crash, also of tests)
	@$(if $(PYTHON),$(PYTHON),python3) -m lab down --all

lab-status: ## what of the lab is there
	@$(if $(PYTHON),$(PYTHON),python3) -m lab status

lab-ssh: ## a shell on a rehearsal host (HOST=lab1)
	@$(if $(PYTHON),$(PYTHON),python3) -m lab ssh $(HOST)

setup: $(VENV)/.installed

$(VENV)/.installed: requirements/test.txt
	@lab/install-tools python
	@test -n "$(PYTHON)" || { echo "rigbook needs Python 3.10 or newer; none was found" >&2; exit 1; }
	@echo "setup: a virtual environment in $(VENV) with the pinned packages of requirements/test.txt"
	@lab/quiet $(PYTHON) -m venv $(VENV)
	@lab/quiet $(PY) -m pip install --quiet --require-hashes -r requirements/test.txt
	@# Started in another folder, pyinfra then says so instead of failing to import rigbook.
	@$(PY) -c "import pathlib, site; pathlib.Path(site.getsitepackages()[0], 'rigbook.pth').write_text('$(CURDIR)\n')"
	@# Also where PYTHONDONTWRITEBYTECODE is set: compiled anew in each run, ours cost 0.1 s.
	@$(PY) -m compileall -q deploys facts gates node operations schema lab
	@touch $@

tools:
	@lab/install-tools lab
