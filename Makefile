# Every command sets up its own environment in .venv first, and does nothing for it when nothing changed.
#
#   make demo      train on the corpus inside the package, translate, draw; results in demo/
#   make test      the tests that take moments; `make check` adds the slow ones
#   make check     format, lint, types, all tests with coverage, other libraries' too: what CI runs
#   make format    put the code in form; make lint and make types say what is wrong with it
#   make lock      resolve pyproject.toml afresh and write requirements.lock and requirements-peers.lock
#   make clean     remove what these commands made, except .venv
#
# PYTHON    candidates for making .venv; the first that is Python 3.11 or newer is taken
# WORKERS   how many processes share the tests
# COVERAGE  the least coverage, in percent of lines and branches, that `make check` accepts

PYTHON ?= python3 python3.13 python3.12 python3.11 python3.14 python
WORKERS ?= 2
COVERAGE ?= 90

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo test check format lint types lock clean

BIN := .venv/bin
READY := .venv/ready
PEERS := .venv/peers
RECENT := sys.exit(sys.version_info < (3, 11))
USABLE := import sys, pip; $(RECENT)
CAN_MAKE_ONE := import sys, venv, ensurepip; $(RECENT)
# Each worker computes on one thread: more would only queue for the same cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal

help:
	@sed -n 's/^#   //p' Makefile

# A .venv whose Python still runs is kept and brought up to date; any other is made anew.
$(READY): pyproject.toml requirements.lock
	@if ! $(BIN)/python -c '$(USABLE)' 2>/dev/null; then \
	  for python in $(PYTHON); do \
	    if "$$python" -c '$(CAN_MAKE_ONE)' 2>/dev/null; then found="$$python"; break; fi; \
	  done; \
	  if [ -z "$${found:-}" ]; then \
	    echo "Pellucid needs Python 3.11 or newer with venv and pip, and '$(PYTHON)' is not that;" \
	      "install it (Debian: apt install python3 python3-venv), or name it: make PYTHON=/path/to/python3" >&2; \
	    exit 1; \
	  fi; \
	  echo "making .venv with $$("$$found" --version)"; \
	  "$$found" -m venv --clear .venv; \
	fi
	@echo "installing what requirements.lock lists into .venv"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

# Other libraries, which masks are compared with; a .venv that was made anew has lost them, and this mark with them.
$(PEERS): requirements-peers.lock | $(READY)
	@echo "installing what requirements-peers.lock lists into .venv"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock \
	  --requirement requirements-peers.lock
	@touch $@

demo: $(READY)
	@$(BIN)/pellucid demo --out demo

test: $(READY)
	@$(PYTEST) -m "not slow"

check: $(READY) $(PEERS)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(PYTEST) --cov --cov-fail-under=$(COVERAGE)

format: $(READY)
	@$(BIN)/ruff format
	@$(BIN)/ruff check --fix

lint: $(READY)
	@$(BIN)/ruff format --check
	@$(BIN)/ruff check

types: $(READY)
	@$(BIN)/mypy

# The comments at the heads of the locks are kept. Builds (+cpu) and the libraries of torch's build differ by machine.
FROZEN = build/lock/bin/python -m pip freeze --all --exclude pip --exclude pellucid \
  | sed 's/+[a-z0-9.]*$$//' | grep -v -i -E '^(nvidia|cuda|triton)'
lock: $(READY)
	@rm -rf build/lock && $(BIN)/python -m venv build/lock
	@build/lock/bin/python -m pip install --quiet --disable-pip-version-check "setuptools>=77"
	@build/lock/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation ".[dev,tensorboard]"
	@{ grep '^#' requirements.lock; $(FROZEN); } > build/requirements.lock
	@build/lock/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation \
	  --constraint build/requirements.lock ".[peers]"
	@{ grep '^#' requirements-peers.lock; $(FROZEN) | grep -v -x -F -f build/requirements.lock; } \
	  > build/requirements-peers.lock
	@mv build/requirements.lock build/requirements-peers.lock . && rm -rf build/lock

clean:
	@rm -rf build dist demo .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache src/*.egg-info
	@find . -path ./.venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
