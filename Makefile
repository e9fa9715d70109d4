# make demo, make test and make check each do all set-up first; make help lists the rest.
.DEFAULT_GOAL := help
SHELL := /bin/bash

# The series' version is 3.13; 3.11 or newer will do. PYTHON=python3.11 chooses another.
PYTHON ?= $(shell for p in python3.13 $$HOME/.pyenv/versions/3.13*/bin/python python3.12 python3.11 \
	python3.14 python3; do command -v $$p >/dev/null && $$p -c \
	'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { command -v $$p; break; }; done)
# PIKA=1.4.4 tests with another pika than the locked one.
PIKA ?=
VENV ?= .venv$(if $(PIKA),-pika$(PIKA))
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# What to test: make test T=tests/unit ARGS='-k ledger'
T ?= tests/unit tests/broker tests/crash tests/bench tests/browser tests/cluster
# One cluster of three nodes serves these: no worker must start another. (5: ARGS chose none of them.)
ALONE = $(filter tests/cluster%,$(T))
ARGS ?=
# Most tests wait for something real: three at a time, each worker with a broker of its own. JOBS=0: one.
JOBS ?= 3

$(READY): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; name one: make PYTHON=..."; exit 1; }
	@$(PYTHON) -c "" || { echo "$(PYTHON) does not run; name another: make PYTHON=..."; exit 1; }
	@echo "setting up $(VENV) with $$($(PYTHON) --version) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
		{ rm -rf $(VENV); echo "no venv module: on Debian or Ubuntu, apt-get install python3-venv"; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	@$(if $(PIKA),$(BIN)/python -m pip install --quiet --disable-pip-version-check pika==$(PIKA))
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

.PHONY: help setup demo chaos test bench lesson proof mutants check format lock clean
help: ## this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /make \1\t/' | expand -t 14

setup: $(READY) ## the virtual environment with the locked packages

demo: $(READY) ## the whole exchange with real processes and real failures (about 20 s)
	@$(BIN)/delivery demo

test: $(READY) ## the suite: unit, broker, crash, bench, browser (needs Chromium); ARGS and T are passed on
	@code=0; \
	$(if $(ALONE),$(BIN)/python -m pytest $(ALONE) $(ARGS) || test $$? -eq 5 || code=1;) \
	$(if $(filter-out $(ALONE),$(T)),$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(filter-out $(ALONE),$(T)) $(ARGS) || code=1;) \
	exit $$code

chaos: $(READY) ## every kind of fault against the whole exchange, judged (about 90 s); ARGS='--seed 7'
	@$(BIN)/delivery chaos $(ARGS)

# FastStream is measured beside us only: it is not among the locked packages.
bench: $(READY) ## throughput, latency, backlog beside ceilings and peers (ARGS=--quick: 3 min)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock \
		'faststream[rabbit]==0.7.8'
	@$(BIN)/python tests/bench/run.py $(ARGS)

lesson: $(READY) ## one lesson: make lesson N=07 ARGS=--step
	@$(BIN)/delivery lesson $(N) $(ARGS)

proof: $(READY) ## the lessons: every printed line, every named function, every diff that must be caught
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal tests/proof $(ARGS)

mutants: $(READY) ## mutation testing of nine modules (about 40 minutes; tests/mutation/survivors.md)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[mutation]'
	@$(BIN)/python tests/mutation/run.py $(ARGS)

check: $(READY) ## formatting, lint, types, and the map (STAGES.md, the package cut after each lesson)
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@for each in lessons/tour.py lessons/*/run.py; do $(BIN)/mypy $$each || exit 1; done
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal tests/map

format: $(READY) ## format the code
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

lock: $(READY) ## renew requirements.lock (needs uv)
	@echo 'pika==1.3.2' | uv pip compile --universal --python-version 3.11 --extra sandbox \
		--extra postgres --extra test --extra browser --extra bench --extra lint --no-header \
		--no-annotate --no-emit-index-url --constraint - pyproject.toml --output-file requirements.lock

clean: ## remove what set-up and runs left here (stops the sandbox broker)
	@if [ -x $(BIN)/delivery ] && [ -e .delivery ]; then $(BIN)/delivery broker down; fi
	@rm -rf .venv* .delivery .mutation .mypy_cache .ruff_cache .pytest_cache .hypothesis
