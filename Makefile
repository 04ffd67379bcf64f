# Every target sets up .venv by itself; all it needs is Python 3.11 and make.
PYTHON ?= python3.11
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-oldest lint format bench clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

demo: $(READY)  ## partition a GPT training step, run it on 8 virtual devices, compare with one device and with XLA
	$(BIN)/python examples/quickstart.py
	$(BIN)/python -m benchmarks.run --programs gpt3

test: $(READY)  ## all tests but the slow ones
	$(BIN)/python -m pytest -n $(JOBS) -m "not slow"

test-all: $(READY)  ## every test, the long property tests included
	MESHBRIDGE_EXAMPLES=long $(BIN)/python -m pytest -n $(JOBS)

# The lower bound of jax in pyproject.toml, as the first release of its series.
OLDEST = $(shell sed -n 's/.*"jax>=\([0-9.]*\)".*/\1/p' pyproject.toml).0

test-oldest:  ## the tests with the oldest jax that pyproject.toml allows, in a venv of its own
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/pip install --quiet --disable-pip-version-check --editable '.[dev]' jax==$(OLDEST) jaxlib==$(OLDEST)
	.venv-oldest/bin/python -m pytest -n $(JOBS) -m "not slow"

lint: $(READY)  ## style, imports, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(READY)  ## rewrite the code in the project's style
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)  ## side by side with XLA's partitioners, on 8 virtual devices
	$(BIN)/python -m benchmarks.run

clean:  ## remove what the targets above have made
	rm -rf $(VENV) .venv-oldest build .pytest_cache .mypy_cache .ruff_cache .hypothesis
