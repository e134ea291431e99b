# rigbook: aliases. `make help` lists them; pyinfra itself is the command line.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo test lint molecule chaos bench docs lab-up rehearse incident incident-check \
	lab-down lab-status lab-ssh setup tools

VENV := .venv
PY := $(VENV)/bin/python
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.10; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && echo $$p && break; done)
# The venv's where it is there; the lab is looked at and ended by any other too.
ANY := $(or $(wildcard $(PY)),$(PYTHON),python3)
SETS := test bench docs browser molecule
TIER ?= lint fast lab
HOST ?= lab1

help: ## what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16
	@echo "make test TIER=NAME, or several in quotes; about how long:"
	@$(ANY) -m tests.tiers

demo: setup tools ## the main job: two rehearsal hosts serve a model with the real vLLM
	@$(PY) -m lab.demo

test: setup ## lint and the fast tiers: unit, node, plans, lab hosts without the engine (TIER=: another)
	@goals=$$($(PY) -m tests.tiers --goals $(TIER)) && $(MAKE) --no-print-directory $$goals
	@RIGBOOK_CHAOS_N=$(N) RIGBOOK_CHAOS_SEED=$(SEED) RIGBOOK_CHAOS=$(ONLY) $(PY) -m tests.tiers $(TIER)

# The former names, such as test-vm; full is faults and engine, cluster is k8s.
test-%:
	@$(MAKE) --no-print-directory test TIER=$*

lint: ## ruff and mypy
	@$(MAKE) --no-print-directory test TIER=lint

molecule chaos:
	@$(MAKE) --no-print-directory test TIER=$@

bench: setup $(VENV)/.bench tools ## speed and memory on the lab, into docs/benchmarks.md (PART=rig, growth, backup, streams, moving, weights or rollback)
	@$(PY) -m tests.bench $(PART)

docs: $(VENV)/.docs ## the pages as a site in build/site; a dead link fails it (Python 3.11 or newer)
	@lab/install-tools docs
	@$(PY) -m docs.site

lab-up: setup tools ## make or complete the rehearsal hosts (N=2), with the engine's image
	@$(PY) -m lab up $(if $(N),--hosts $(N))

rehearse: setup tools ## a twin of a rig on this machine (INVENTORY=inventory/spark.py)
	@$(PY) -m lab rehearse $(INVENTORY)

incident: ## break the twin as docs/incidents.md tells, say the symptom, start the clock (ID=C13)
	@$(PY) -m lab incident $(ID)

incident-check: ## whether the twin is mended, and in how many seconds (ID=C13)
	@$(PY) -m lab incident-check $(ID)

lab-down: ## leave nothing of the lab: hosts, mounts, bridges (also after a crash, also of tests)
	@$(ANY) -m lab down --all

lab-status: ## what of the lab is there
	@$(ANY) -m lab status

lab-ssh: ## a shell on a rehearsal host (HOST=lab1)
	@$(ANY) -m lab ssh $(HOST)

setup: $(VENV)/.base ## what running rigbook needs, in .venv

$(VENV)/.base: requirements/base.txt
	@lab/install-tools python
	@test -n "$(PYTHON)" || { echo "rigbook needs Python 3.10 or newer; none was found" >&2; exit 1; }
	@echo "setup: a virtual environment in $(VENV) with the pinned packages of $<"
	@lab/quiet $(PYTHON) -m venv $(VENV)
	@lab/quiet $(PY) -m pip install --quiet --require-hashes -r $<
	@# Started in another folder, pyinfra then says so instead of failing to import rigbook.
	@$(PY) -c "import pathlib, site; pathlib.Path(site.getsitepackages()[0], 'rigbook.pth').write_text('$(CURDIR)\n')"
	@# Also where PYTHONDONTWRITEBYTECODE is set: compiled anew in each run, ours cost 0.1 s.
	@$(PY) -m compileall -q deploys facts gates node operations schema lab
	@touch $@

# What tests, bench, docs … need besides, once.
$(SETS:%=$(VENV)/.%): $(VENV)/.%: requirements/%.txt | $(VENV)/.base
	@echo "setup: the pinned packages of $<"
	@lab/quiet $(PY) -m pip install --quiet --require-hashes -r $<
	@touch $@

packages-%: $(VENV)/.%
	@:

tools: tools-lab

tools-%:
	@lab/install-tools $*
