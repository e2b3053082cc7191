# Each target works as the only command typed on a fresh clone: the environment in .venv is made once and reused.
#
#   make check    the main job: checks examples/tour.py and examples/broken.py, writes build/report.html
#   make test     the test suite
#   make lint     style and types
#   make docs     the documentation, in site/
#   make browser  installs Chromium for the tests of the HTML report, where that is possible
#   make bench    every benchmark, quick form (BENCH_ARGS= for the full form)
#   make clean    removes what the other targets made, except .venv
#
# PYTHON=python3.12 make test    uses another Python for a new .venv.

PYTHON ?= python3
PYTEST_ARGS ?= -n 2
BENCH_ARGS ?= --quick

BIN := .venv/bin
# torch must come from exactly the constraint: a looser range would download a second build of several gigabytes.
INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt

.PHONY: help check test lint pyright docs readme browser bench clean
.DEFAULT_GOAL := help

help:
	@sed -n '3,11s/^# \{0,1\}//p' Makefile

check: .venv/installed
	@$(BIN)/python examples/verify.py

test: .venv/installed
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: .venv/installed
	@$(BIN)/python -m ruff check .
	@$(BIN)/python -m ruff format --check --quiet .
	@$(BIN)/python -m mypy

# Pyright is not a Python program: its first run downloads a version for Node. Hence not a part of `lint`.
pyright: .venv/installed
	@$(BIN)/python -m pyright --pythonpath .venv/bin/python

docs: .venv/installed-docs
	@mkdir -p build
	@# Not --quiet: with it, warnings are not counted, and --strict lets everything pass.
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict >build/docs.log 2>&1 || { cat build/docs.log; exit 1; }
	@echo "documentation written to site/index.html"

# The console output in README.md is real; a test compares it.
readme: .venv/installed
	@$(BIN)/python docs/readme.py

# Debian's packages, installed when they are missing and apt-get may be used; without them the tests are skipped.
browser:
	@if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then \
	    echo "$$(chromium --version 2>/dev/null)"; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing chromium and chromium-driver ..."; \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
	        chromium chromium-driver >/dev/null || echo "could not: the tests of the HTML report in a browser will be skipped"; \
	else \
	    echo "no chromium with chromedriver: the tests of the HTML report in a browser will be skipped"; \
	fi

bench: .venv/installed
	@set -e; for script in benchmarks/[!_]*.py; do \
	    [ -e "$$script" ] || { echo "no benchmarks yet"; break; }; \
	    echo "== $$script $(BENCH_ARGS)"; $(BIN)/python "$$script" $(BENCH_ARGS); \
	done

clean:
	rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache
	find src tests examples docs benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit("gradwright needs Python 3.10 or newer; set PYTHON=...") if sys.version_info < (3, 10) else None'
	@echo "creating .venv with $$($(PYTHON) --version) ..."
	@$(PYTHON) -m venv .venv

.venv/installed: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing PyTorch into .venv (the first time takes a few minutes) ..."
	@$(INSTALL) torch
	@echo "installing gradwright and its development tools ..."
	@$(INSTALL) -e '.[dev]'
	@touch $@

.venv/installed-docs: .venv/installed
	@echo "installing the documentation tools ..."
	@$(INSTALL) -e '.[docs]'
	@touch $@
