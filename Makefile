# The commands of this project, the same ones for people and for CI. `make help` lists them.
# Somewhere else when this folder may not be entered by other users: as root, the embedded
# PostgreSQL runs as one.
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=
# Files of tests at once. Servers that tests start take as much of a processor again.
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup demo check format test kill-test load-test wire-fuzz clients driver-suites psql-scripts bi bench lock wheel clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv with everything in it; quick when nothing changed

$(STAMP): pyproject.toml requirements.lock scripts/setup
	@PYTHON='$(PYTHON)' VENV='$(VENV)' scripts/setup
	@touch $@

demo: $(STAMP) ## start a marketplace with four owners and ask it questions; ARGS=--once to stop then
	@$(BIN)/oar demo $(ARGS)

check: $(STAMP) ## lint, format, types, import contracts, lock file
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/check_lock.py

format: $(STAMP) ## rewrite the sources in the one format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# A file's tests one after another, as they share what it starts; files in their order, in which the
# longest come early.
test: $(STAMP) ## run the tests, WORKERS=2 files at once; ARGS="-k name" for some of them
	$(BIN)/pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

kill-test: $(STAMP) ## kill proxies and hubs 500 times and look at the ledger; ten minutes
	@$(BIN)/oar bench kills --count 500 $(ARGS)

load-test: $(STAMP) ## 1,200 clients, and faults that must not reach others; five minutes
	@$(BIN)/oar bench load $(ARGS)

wire-fuzz: $(STAMP) ## break a million conversations, and 3000 connections; five minutes
	@$(BIN)/oar bench wire --count 1000000 --sockets 3000 $(ARGS)

clients: $(STAMP) ## do the same with every client installed, at a PostgreSQL and through the proxy
	@PYTHONPATH=tests/support $(BIN)/python -m clients $(ARGS)

driver-suites: $(STAMP) ## run drivers' own test suites both ways; half an hour. ARGS=--help
	@PYTHONPATH=tests/support $(BIN)/python -m driver_suites $(ARGS)

psql-scripts: $(STAMP) ## PostgreSQL's own scripts by psql, both ways; ARGS="SOURCES", its source tree
	@PYTHONPATH=tests/support $(BIN)/python -m psql_scripts $(ARGS)

bi: $(STAMP) ## walk through Superset and pgAdmin in a browser; ARGS=pgadmin for one of them
	@$(BIN)/python tests/bi/walks/run.py $(ARGS)

bench: $(STAMP) ## run a benchmark: ARGS="…", see oar bench --help
	@$(BIN)/oar bench $(ARGS)

# --universal: one lock for every platform and Python version that the package supports. Extra bench
# is not in it: DuckDB's wheels are there for some platforms only, and one column of one benchmark.
COMPILE = $(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --custom-compile-command 'make lock' \
	  --format requirements.txt --quiet

lock: $(STAMP) ## write the lock files anew from pyproject.toml; ARGS=--upgrade for newer versions
	$(BIN)/python -m pip install --quiet 'uv>=0.8,<1'
	$(COMPILE) --extra build --extra dev --output-file requirements.lock $(ARGS)
	$(COMPILE) --extra build --constraint requirements.lock \
	  --output-file docker/requirements.lock

wheel: $(STAMP) ## build dist/oar-*.whl
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

clean: ## remove .venv, .bi, caches and build results (not oar-data)
	rm -rf $(VENV) .bi dist build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
